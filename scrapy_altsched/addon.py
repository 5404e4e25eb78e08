"""One line in ``ADDONS`` turns everything on."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from .errors import JobdirError
from .frontier.store.jobdir import ensure_directory
from .plugins import delay_retries, keep_parents, leave_slots_alone, make_safe

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_SETTINGS = {
    "SCHEDULER": "scrapy_altsched.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_altsched.DupeFilter",
}
_FEED_STORAGE = "scrapy_altsched.feeds.FileStorage"
_ADDON = SETTINGS_PRIORITIES["addon"]


class Addon:
    """Sets scheduler, dupefilter and feed storage, unless the project sets its own.

    Plugins that the project has turned on, and that a kill would harm, are replaced by those of
    ours that are derived from them; so is Scrapy's retry middleware where retries are to wait.
    Where sites that do not answer are to be left alone, or requests are to keep the page that they
    were found on, a middleware is added.
    """

    def __repr__(self) -> str:
        return "<scrapy_altsched.Addon>"

    def update_settings(self, settings: BaseSettings) -> None:
        """Scrapy's interface of addons.

        :raises JobdirError: JOBDIR cannot be created: Scrapy's own extensions would fail on it
            before the scheduler opens, with an error that names no setting.
        """
        for name, path in _SETTINGS.items():
            priority = settings.getpriority(name) or 0
            if priority == SETTINGS_PRIORITIES["command"]:
                # `scrapy shell` sets its own filter.  It still gets our scheduler, which leaves
                # JOBDIR alone there; with the scheduler of Scrapy 2.19, a shell with JOBDIR hangs.
                continue
            if priority > _ADDON:
                self._report_override(name, settings[name], path)
            settings.set(name, path, priority="addon")
        storages = settings["FEED_STORAGES"]
        for scheme in ("", "file"):
            if (storages.getpriority(scheme) or 0) > _ADDON:
                name = f"FEED_STORAGES[{scheme!r}]"
                self._report_override(name, storages[scheme], _FEED_STORAGE)
            storages.set(scheme, _FEED_STORAGE, priority="addon")
        make_safe(settings)
        delay_retries(settings)
        leave_slots_alone(settings)
        keep_parents(settings)
        if settings["JOBDIR"]:
            # Absolute for all components: the spider may change the working directory.
            jobdir = Path(settings["JOBDIR"]).absolute()
            settings.set("JOBDIR", str(jobdir), priority=settings.getpriority("JOBDIR") or 0)
            try:
                ensure_directory(jobdir)
            except JobdirError as error:
                logger.critical("%s", error)
                raise

    @staticmethod
    def _report_override(name: str, value: object, path: str) -> None:
        with suppress(ImportError, AttributeError, ValueError, TypeError, NameError):
            # Not issubclass(): it accepts any class that has a scheduler's methods.
            if load_object(path) in load_object(value).__mro__:  # type: ignore[arg-type]
                return
        logger.warning(
            "%(name)s = %(value)r of the project's settings is used instead of %(path)s of the"
            " scrapy_altsched addon. Remove it to use all of scrapy_altsched.",
            {"name": name, "value": value, "path": path},
        )
