"""Imports what crawls of tests import, in the process that theirs are forked from.

What is missing with another Scrapy is left out.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

#: Imported with all that is in them.
_PACKAGES = ["scrapy_altsched", "scrapy.commands", "scrapy.downloadermiddlewares"]
_PACKAGES += ["scrapy.extensions", "scrapy.spidermiddlewares"]
_MODULES = [
    *["aiohttp.web", "encodings.idna", "multiprocessing.queues", "queuelib.rrqueue", "redis"],
    *["rich.progress", "scrapy.cmdline", "scrapy.core.downloader.contextfactory", "scrapy.crawler"],
    *["scrapy.core.downloader.handlers.datauri", "scrapy.core.downloader.handlers.file"],
    *["scrapy.core.downloader.handlers.ftp", "scrapy.core.downloader.handlers.http11"],
    *["scrapy.core.downloader.handlers.s3", "scrapy.dupefilters", "scrapy.logformatter"],
    *["scrapy.pipelines.images", "scrapy.pqueues", "scrapy.squeues", "scrapy.statscollectors"],
    *["scrapy.utils._remote_control", "scrapy.utils.test", "twisted.internet.asyncioreactor"],
]

# A module that needs a reactor at its import would install one: with None there, which typeshed
# does not know of, Python refuses that import.
sys.modules["twisted.internet.reactor"] = None  # type: ignore[assignment]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of modules that few crawls have
    for _name in _PACKAGES:
        _MODULES += [
            found.name for found in walk_packages(import_module(_name).__path__, f"{_name}.")
        ]
    for _name in _MODULES:
        with suppress(ImportError):
            import_module(_name)
del sys.modules["twisted.internet.reactor"]
