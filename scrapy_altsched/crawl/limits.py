"""How hard a project's settings allow download slots to be asked, for all workers together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..limit import Limits
from . import messages

if TYPE_CHECKING:
    from .setup import Setup

_CAP = "CONCURRENT_REQUESTS_PER_DOMAIN"


def find_limits(setup: Setup) -> Limits | None:
    """The limits of a project; ``None``: each worker is to have its own.

    :raises ConfigError: nothing could be downloaded with them.
    """
    settings, config = setup.crawler.settings, setup.config
    if not config.shared_pace:
        return None
    if not setup.engine.can_pace:
        setup.reports.log(messages.OTHER_DOWNLOADER, downloader=settings["DOWNLOADER"])
        return None
    default, slots = setup.engine.limits()
    is_throttled = settings.getbool("AUTOTHROTTLE_ENABLED")
    is_capped = (settings.getpriority(_CAP) or 0) > 0
    are_set = bool(default.delay or slots or is_throttled or is_capped)
    if config.order.policy != "slots":
        if are_set:
            setup.reports.log(messages.NO_PACE)
        return None
    for name, limit in ((None, default), *slots.items()):
        if limit.cap < 1:
            where = f"{_CAP} = {limit.cap}" if name is None else f"DOWNLOAD_SLOTS[{name!r}]"
            raise ConfigError(
                f"{where} lets nothing be downloaded: set a concurrency of 1 or more, or"
                " ALTSCHED_SHARED_PACE = False to leave it to Scrapy."
            )
    return Limits(default, slots, are_set=are_set)
