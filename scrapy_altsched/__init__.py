"""A crash-safe scheduler and duplicates filter for Scrapy.

::

    ADDONS = {"scrapy_altsched.Addon": 500}

The names below are what settings refer to, and what spiders and extensions may use.  Each is
imported on first use, so that naming one in a settings module costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .addon import Addon
    from .dupefilter import DupeFilter
    from .engine.engine import current_scheduler
    from .errors import AltschedError
    from .feeding.mixin import RedisQueueMixin
    from .requests.fingerprint import RequestFingerprinter
    from .scheduler import Scheduler
    from .stock.fingerprints import ScrapyRedisFingerprinter

__version__ = "0.1.0"

__all__ = [
    "Addon",
    "AltschedError",
    "DupeFilter",
    "RedisQueueMixin",
    "RequestFingerprinter",
    "Scheduler",
    "ScrapyRedisFingerprinter",
    "current_scheduler",
]
_MODULES = {
    "Addon": "addon",
    "AltschedError": "errors",
    "DupeFilter": "dupefilter",
    "RedisQueueMixin": "feeding.mixin",
    "RequestFingerprinter": "requests.fingerprint",
    "Scheduler": "scheduler",
    "ScrapyRedisFingerprinter": "stock.fingerprints",
    "current_scheduler": "engine",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)
