"""What is said of a crawl of Scrapy's own scheduler that was taken over: log lines and stats."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Spider
    from scrapy.statscollectors import StatsCollector

    from .frontier import Imported
    from .stockjob import StockJob

logger = logging.getLogger(__name__)

_TAKEN_OVER = (
    "Took over the crawl of Scrapy's own scheduler in %(jobdir)s: %(pending)d requests pending"
    " (read: %(kinds)s), %(dead)d dead, %(duplicates)d left out that were there twice; %(seen)d"
    " fingerprints in requests.seen (%(formats)s), %(done)d of them taken over as done. Its files"
    " are kept in %(place)s; spider.state stays where it is"
)
_MOVED = "Files of Scrapy's own scheduler that were taken over before are kept in %(place)s"
_UNCLEAN = (
    "Scrapy's own scheduler did not end cleanly (%(count)d signs: %(signs)s): requests that it had"
    " in hand are lost from its queue, and requests.seen does not tell which. %(what)s"
)
_SEEN_LEFT_OUT = (
    "So requests.seen is left out: what was crawled before is crawled again, and nothing is missed."
    " With ALTSCHED_TRUST_STOCK_SEEN = True it is taken over all the same, and what was lost is"
    " missed. To have it so, move the files back and delete frontier and altsched.json."
)
_SEEN_BELIEVED = (
    "Yet what is in requests.seen is taken for crawled (ALTSCHED_TRUST_STOCK_SEEN): an unknown"
    " number of pages is missed. Start the job over in another JOBDIR to have every page."
)
_SEEN_ELSEWHERE = (
    "What DUPEFILTER_CLASS has a record of is not crawled again, lost or not. Start the job over in"
    " another JOBDIR to be sure to have every page."
)
_DEAD = (
    "%(count)d requests of Scrapy's own scheduler are kept among the dead ones and not crawled. The"
    " first: %(first)s."
)
_UNREADABLE = (
    "%(count)d bytes of the files of Scrapy's own scheduler could not be read: what a process that"
    " died has left half-written, or damage. They are kept in %(place)s."
)
_UNMATCHED = (
    "%(count)d requests pending with Scrapy's own scheduler are not in its requests.seen: the rules"
    " for fingerprints have changed since. Pages that were crawled may be crawled again."
)


def report_taking_over(job: StockJob, place: Path, spider: Spider, stats: StatsCollector) -> None:
    """Say what was taken over of *job*.

    :param place: where its files are now.
    """

    def log(level: int, message: str, **values: Any) -> None:
        logger.log(level, message, values, extra={"spider": spider})

    imported = job.imported
    if imported is None:
        log(logging.INFO, _MOVED, place=place)
        return
    _count(job, imported, stats)
    log(
        logging.INFO,
        _TAKEN_OVER,
        jobdir=job.path,
        pending=imported.pending,
        kinds=", ".join(f"{count} {kind}" for kind, count in job.kinds.items()) or "none",
        dead=imported.dead,
        duplicates=imported.duplicates,
        seen=job.seen,
        formats=" and ".join(sorted(job.formats)) or "none",
        done=imported.done,
        place=place,
    )
    if job.unclean:
        what = _SEEN_BELIEVED if job.believes_seen else _SEEN_LEFT_OUT
        what = what if job.takes_seen else _SEEN_ELSEWHERE
        log(logging.WARNING, _UNCLEAN, count=job.unclean, signs="; ".join(job.signs), what=what)
    elif imported.unmatched:
        log(logging.WARNING, _UNMATCHED, count=imported.unmatched)
    if imported.dead:
        log(logging.WARNING, _DEAD, count=imported.dead, first=job.first_dead)
    if job.unreadable:
        log(logging.WARNING, _UNREADABLE, count=job.unreadable, place=place)


def _count(job: StockJob, imported: Imported, stats: StatsCollector) -> None:
    stats.set_value("altsched/stock/pending", imported.pending)
    stats.set_value("altsched/stock/done", imported.done)
    stats.set_value("altsched/stock/dead", imported.dead)
    stats.set_value("altsched/stock/duplicates", imported.duplicates)
    stats.set_value("altsched/stock/unreadable", job.unreadable)
    stats.set_value("altsched/stock/unclean", job.unclean)
