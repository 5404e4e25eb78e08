"""Crawls that end by a failure: that is logged once, and the exit code is not 0."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .exit_code import exit_code
from .outcome import Outcome

if TYPE_CHECKING:
    from scrapy import Spider

    from ..engine.engine import Engine
    from ..errors import AltschedError

logger = logging.getLogger(__name__)

#: Why the spider is closed then.
FRONTIER_FAILED = "frontier_failed"


def close_failed(engine: Engine, spider: Spider, error: AltschedError) -> None:
    """Log *error* with the traceback of its cause, and close the spider; returns before it is."""
    logger.critical(
        "%(error)s The spider is closed (%(reason)s). Start it again with the same command; if that"
        " happens once more, please report it with this traceback.",
        {"error": error, "reason": FRONTIER_FAILED},
        exc_info=error.__cause__,
        extra={"spider": spider},
    )
    close_unfinished(engine, spider, FRONTIER_FAILED)


def close_unfinished(engine: Engine, spider: Spider, reason: str) -> None:
    """Close the spider, which returns before it is, and have its process started again.

    It exits with the code of a job that is not finished, whatever the settings say.
    """
    exit_code.set(Outcome.UNFINISHED)
    engine.close_spider(spider, reason)
