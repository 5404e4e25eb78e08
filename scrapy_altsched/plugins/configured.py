"""The plugins that a kill harms, as a project's settings list them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from scrapy.pipelines.files import FilesPipeline
from scrapy.pipelines.images import ImagesPipeline
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_ADDON = SETTINGS_PRIORITIES["addon"]
_DELTAFETCH = f"{__package__}.deltafetch.DeltaFetch"
_FILES = f"{__package__}.files.FilesPipeline"
_IMAGES = f"{__package__}.files.ImagesPipeline"
_CACHE = f"{__package__}.httpcache.FilesystemCacheStorage"
_SCRAPYS_RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
_RETRY = f"{__package__}.retry.RetryMiddleware"
_SLOTS = f"{__package__}.slots.SlotMiddleware"
_PARENTS = f"{__package__}.parents.ParentMiddleware"
#: Nearer to the downloader than all that Scrapy has.
_NEAREST = 950
#: Nearer to the engine than all that Scrapy has.
_LAST = 10

#: A class of Scrapy's or of a plugin, by each path that settings name it by -> ours in its place.
SAFE = {
    "scrapy_deltafetch.DeltaFetch": _DELTAFETCH,
    "scrapy_deltafetch.middleware.DeltaFetch": _DELTAFETCH,
    "scrapy.pipelines.files.FilesPipeline": _FILES,
    "scrapy.pipelines.images.ImagesPipeline": _IMAGES,
    "scrapy.extensions.httpcache.FilesystemCacheStorage": _CACHE,
}
#: The class that keeps a record, by its full name, as are those derived from it -> what a kill
#: does, as the end of a sentence, and what to do instead.
KNOWN = {
    "scrapy_deltafetch.middleware.DeltaFetch": (
        "its record has pages whose items and links are not saved yet, and skips them when they"
        f" are found again. Use {_DELTAFETCH!r} in its place, or as the base of your class."
    ),
    "scrapy.pipelines.files.FSFilesStore": (
        "a file that is being written stays empty or cut short, and counts as up to date after"
        f" that. Use {_FILES!r} or {_IMAGES!r} in its place or as the base of your class, or set"
        " your class's STORE_SCHEMES to theirs."
    ),
    "scrapy.pipelines.files.FTPFilesStore": (
        "a file that is being uploaded stays cut short on the server, and counts as up to date"
        " after that. Store files in a local directory, and upload them when the job is finished."
    ),
    "scrapy.extensions.httpcache.FilesystemCacheStorage": (
        "a response that is being stored is cut short, and served like that after the resume. Set"
        f" HTTPCACHE_STORAGE = {_CACHE!r}, or derive your class from it."
    ),
    "scrapy.extensions.httpcache.DbmCacheStorage": (
        "its database, unless it is one of dbm.sqlite3, is not safe against a kill: it may serve"
        f" damaged responses after the resume, or not open. Set HTTPCACHE_STORAGE = {_CACHE!r}."
    ),
}


def make_safe(settings: BaseSettings) -> None:
    """Put a class of ours in the place of each in *settings* that a kill harms.

    Those derived from them stay.  Nothing is imported: some modules must not be before Scrapy has
    chosen its reactor.
    """
    for name in ("SPIDER_MIDDLEWARES", "ITEM_PIPELINES"):
        components = settings[name]
        for component, order in list(components.items()):
            safe = SAFE.get(_path_of(component))
            if safe is not None and order is not None and safe not in components:
                priority = components.getpriority(component)
                del components[component]
                components.set(safe, order, priority)
    safe = SAFE.get(_path_of(settings["HTTPCACHE_STORAGE"]))
    if safe is not None and settings.getbool("HTTPCACHE_ENABLED"):
        priority = settings.getpriority("HTTPCACHE_STORAGE") or 0
        settings.set("HTTPCACHE_STORAGE", safe, max(priority, _ADDON))


def delay_retries(settings: BaseSettings) -> None:
    """Put our retry middleware in the place of Scrapy's, if that is on and retries are to wait."""
    if settings.get("ALTSCHED_RETRY_DELAY") in (None, 0, "0", ""):
        return
    components = settings["DOWNLOADER_MIDDLEWARES"]
    paths = {_path_of(component): component for component in components}
    theirs = paths.get(_SCRAPYS_RETRY, _SCRAPYS_RETRY)
    order = settings["DOWNLOADER_MIDDLEWARES_BASE"].get(_SCRAPYS_RETRY)
    priority = _ADDON
    if theirs in components:
        order, priority = components[theirs], components.getpriority(theirs) or 0
    if order is not None and _RETRY not in paths:
        components.set(theirs, None, priority)
        components.set(_RETRY, order, priority)


def leave_slots_alone(settings: BaseSettings) -> None:
    """Have sites left alone that do not answer, where the project asks for it."""
    if settings.get("ALTSCHED_BREAKER") in (None, 0, "0", ""):
        return
    components = settings["DOWNLOADER_MIDDLEWARES"]
    if _SLOTS not in map(_path_of, components):
        components.set(_SLOTS, _NEAREST, _ADDON)


def keep_parents(settings: BaseSettings) -> None:
    """Have each request keep the page that it was found on, where the project asks for it."""
    if str(settings.get("ALTSCHED_KEEP_PARENT")).lower() in ("none", "false", "0", ""):
        return
    components = settings["SPIDER_MIDDLEWARES"]
    if _PARENTS not in map(_path_of, components):
        components.set(_PARENTS, _LAST, _ADDON)


def warn_of_unsafe_plugins(settings: BaseSettings, spider: Spider) -> None:
    """Log a warning for each plugin that is not safe against a kill, why, and what to do."""
    for setting, component, record in _list_records(settings):
        parents = map(_path_of, record.__mro__)
        found = next((at for at in parents if at in KNOWN or at.startswith(__package__ + ".")), "")
        if found in KNOWN:  # and not one of ours
            logger.warning(
                "%(component)s (%(setting)s) may lose data if this crawl dies: %(harm)s",
                {"component": _path_of(component), "setting": setting, "harm": KNOWN[found]},
                extra={"spider": spider},
            )


def _list_records(settings: BaseSettings) -> Iterator[tuple[str, type, type]]:
    """Setting, component, and the class that keeps its record, of those that are turned on."""
    if settings.getbool("DELTAFETCH_ENABLED"):
        for middleware in _load(settings, "SPIDER_MIDDLEWARES"):
            yield "SPIDER_MIDDLEWARES", middleware, middleware
    for pipeline in _load(settings, "ITEM_PIPELINES"):
        if issubclass(pipeline, FilesPipeline):
            is_images = issubclass(pipeline, ImagesPipeline)
            uri = str(settings["IMAGES_STORE" if is_images else "FILES_STORE"] or "")
            # As FilesPipeline reads it.
            scheme = "file" if Path(uri).is_absolute() else urlparse(uri).scheme
            if uri and scheme in pipeline.STORE_SCHEMES:
                yield "ITEM_PIPELINES", pipeline, pipeline.STORE_SCHEMES[scheme]
    if settings.getbool("HTTPCACHE_ENABLED"):
        for storage in _load(settings, "HTTPCACHE_STORAGE"):
            yield "HTTPCACHE_STORAGE", storage, storage


def _load(settings: BaseSettings, name: str) -> Iterator[type]:
    """The classes that a setting names.  What cannot be loaded is for Scrapy to report."""
    is_one = name == "HTTPCACHE_STORAGE"
    components = {settings[name]: 0} if is_one else settings.getwithbase(name)
    for component, order in components.items():
        with suppress(ImportError, AttributeError, ValueError, TypeError, NameError):
            if order is not None and isinstance(loaded := load_object(component), type):
                yield loaded


def _path_of(component: object) -> str:
    return global_object_name(component) if isinstance(component, type) else str(component)
