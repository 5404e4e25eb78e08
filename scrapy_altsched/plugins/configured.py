"""Known plugins, as a project's settings list them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from scrapy.pipelines.files import FilesPipeline
from scrapy.pipelines.images import ImagesPipeline
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from .known import KNOWN, SAFE, Plugin

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_ADDON = SETTINGS_PRIORITIES["addon"]


def make_safe(settings: BaseSettings) -> None:
    """Put a class of ours in the place of each that a kill harms, where *settings* list it.

    A class of the project's own stays, even one that is derived from such a class.  Nothing is
    imported: some modules must not be before Scrapy has chosen its reactor.
    """
    for name in ("SPIDER_MIDDLEWARES", "ITEM_PIPELINES"):
        components = settings[name]
        for component, order in list(components.items()):
            safe = SAFE.get(_path_of(component))
            if safe is not None and order is not None and safe not in components:
                priority = components.getpriority(component)
                del components[component]
                components.set(safe, order, priority)
    if settings.getbool("HTTPCACHE_ENABLED"):
        safe = SAFE.get(_path_of(settings["HTTPCACHE_STORAGE"]))
        if safe is not None:
            priority = settings.getpriority("HTTPCACHE_STORAGE") or 0
            settings.set("HTTPCACHE_STORAGE", safe, max(priority, _ADDON))


def warn_of_unsafe_plugins(settings: BaseSettings, spider: Spider) -> None:
    """Log a warning for each plugin that is not safe against a kill, why, and what to do."""
    for setting, component, record in _list_records(settings):
        plugin = _find(record)
        if plugin is not None:
            logger.warning(
                "%(component)s (%(setting)s) may lose data if this crawl dies: %(harm)s."
                " %(recipe)s",
                {
                    "component": _path_of(component),
                    "setting": setting,
                    "harm": plugin.harm,
                    "recipe": plugin.recipe,
                },
                extra={"spider": spider},
            )


def _list_records(settings: BaseSettings) -> Iterator[tuple[str, type, type]]:
    """Setting, component, and the class that keeps its record, of those that are turned on."""
    if settings.getbool("DELTAFETCH_ENABLED"):
        for middleware in _load_all(settings, "SPIDER_MIDDLEWARES"):
            yield "SPIDER_MIDDLEWARES", middleware, middleware
    for pipeline in _load_all(settings, "ITEM_PIPELINES"):
        if issubclass(pipeline, FilesPipeline):
            is_images = issubclass(pipeline, ImagesPipeline)
            uri = str(settings["IMAGES_STORE" if is_images else "FILES_STORE"] or "")
            # As FilesPipeline reads it.
            scheme = "file" if Path(uri).is_absolute() else urlparse(uri).scheme
            if uri and scheme in pipeline.STORE_SCHEMES:
                yield "ITEM_PIPELINES", pipeline, pipeline.STORE_SCHEMES[scheme]
    if settings.getbool("HTTPCACHE_ENABLED"):
        for storage in _load(settings["HTTPCACHE_STORAGE"]):
            yield "HTTPCACHE_STORAGE", storage, storage


def _load_all(settings: BaseSettings, name: str) -> Iterator[type]:
    for component, order in settings.getwithbase(name).items():
        if order is not None:
            yield from _load(component)


def _load(component: str | type) -> Iterator[type]:
    """The class, if it is one.  What cannot be loaded is for Scrapy to report."""
    try:
        loaded = load_object(component)
    except (ImportError, AttributeError, ValueError, TypeError, NameError):
        return
    if isinstance(loaded, type):
        yield loaded


def _find(record: type) -> Plugin | None:
    for parent in record.__mro__:
        if parent.__module__.startswith(f"{__package__}."):
            return None
        if (plugin := KNOWN.get(_path_of(parent))) is not None:
            return plugin
    return None


def _path_of(component: object) -> str:
    """The path that settings name a class by."""
    if isinstance(component, type):
        return f"{component.__module__}.{component.__qualname__}"
    return str(component)
