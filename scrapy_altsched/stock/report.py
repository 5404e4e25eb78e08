"""Reports the import of a crawl of Scrapy's own scheduler, in log lines and stats."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..inflection import inflect

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Spider
    from scrapy.statscollectors import StatsCollector

    from ..maintenance.importing import Imported
    from .job import StockJob

logger = logging.getLogger(__name__)

_IMPORTED = (
    "Imported the crawl of Scrapy's own scheduler in %(jobdir)s: %(pending)d %(requests)s pending"
    " (read: %(kinds)s), %(dead)d dead, %(duplicates)d left out as duplicates; fingerprints in"
    " requests.seen: %(seen)d (%(formats)s), %(done)d of them imported as done. Its files"
    " are kept in %(place)s; spider.state stays where it is"
)
_MOVED = "Files of Scrapy's own scheduler that were imported before are kept in %(place)s"
_UNCLEAN = (
    "An earlier run did not end cleanly (%(count)d %(noun)s: %(signs)s): requests that were"
    " in flight are lost from its queue, and nothing tells which. %(what)s"
)
_SEEN_LEFT_OUT = "So %(left_out)s: what was crawled before is crawled again, and nothing is missed."
_HOW_TO_TRUST = (
    " With ALTSCHED_TRUST_STOCK_SEEN = True it is imported nevertheless, and what was lost"
    " stays missing. For that, move the files back and delete frontier and altsched.json."
)
_SEEN_TRUSTED = (
    "What was seen is still treated as crawled (ALTSCHED_TRUST_STOCK_SEEN): an unknown number of"
    " pages is missed. To be sure of every page, start the job over in another JOBDIR."
)
_SEEN_ELSEWHERE = (
    "What DUPEFILTER_CLASS has recorded is not crawled again, lost or not. To be sure of every"
    " page, start the job over in another JOBDIR."
)
_SEEN_NOWHERE = "Nothing of scrapy_altsched's own job in this JOBDIR is missed."
_DEAD = (
    "%(count)d %(requests)s of Scrapy's own scheduler cannot be restored: kept as dead letters, and"
    " not crawled. The first: %(first)s."
)
_UNREADABLE = (
    "%(count)d %(bytes)s of the files of Scrapy's own scheduler could not be read: half-written"
    " by a process that died, or damaged. None of them is deleted: see %(place)s."
)
_UNMATCHED = (
    "%(count)d pending %(requests)s of Scrapy's own scheduler cannot be found in its requests.seen:"
    " the rules for fingerprints have changed since. Pages that were crawled may be crawled again."
)


def report_import(job: StockJob, place: Path | None, spider: Spider, stats: StatsCollector) -> None:
    """Report what was imported from *job*.

    :param place: where its files are now, if there were any.
    """

    def log(level: int, message: str, **values: Any) -> None:
        logger.log(level, message, values, extra={"spider": spider})

    imported = job.imported
    if imported is None:
        if place is not None:
            log(logging.INFO, _MOVED, place=place)
        return
    _count(job, imported, stats)
    if place is not None:
        log(
            logging.INFO,
            _IMPORTED,
            jobdir=job.path,
            pending=imported.pending,
            requests=inflect(imported.pending, "request"),
            kinds=", ".join(f"{count} {kind}" for kind, count in job.kinds.items()) or "none",
            dead=imported.dead,
            duplicates=imported.duplicates,
            seen=job.seen,
            formats=" and ".join(sorted(job.formats)) or "none",
            done=imported.done,
            place=place,
        )
    if job.unclean:
        what = _describe_seen(job, imported.dropped)
        noun, signs = inflect(job.unclean, "sign"), "; ".join(job.signs)
        log(logging.WARNING, _UNCLEAN, count=job.unclean, noun=noun, signs=signs, what=what)
    elif imported.unmatched:
        requests = inflect(imported.unmatched, "request")
        log(logging.WARNING, _UNMATCHED, count=imported.unmatched, requests=requests)
    if imported.dead:
        requests = inflect(imported.dead, "request")
        log(logging.WARNING, _DEAD, count=imported.dead, requests=requests, first=job.first_dead)
    if job.unreadable:
        noun = inflect(job.unreadable, "byte")
        log(logging.WARNING, _UNREADABLE, count=job.unreadable, bytes=noun, place=place)


def _describe_seen(job: StockJob, dropped: int) -> str:
    """How the seen set of a crawl that did not end cleanly is treated."""
    if job.is_trusted:
        return _SEEN_TRUSTED
    left_out = ["requests.seen"] * job.leaves_seen_out
    if dropped:
        left_out.append(f"what scrapy_altsched.DupeFilter noted then (fingerprints: {dropped})")
    if not job.takes_seen:
        return _SEEN_ELSEWHERE
    if not left_out and job.joins_job:
        return _SEEN_NOWHERE
    left_out = left_out or ["requests.seen"]
    verb = inflect(len(left_out), "is", "are")
    text = _SEEN_LEFT_OUT % {"left_out": f"{' and '.join(left_out)} {verb} left out"}
    can_begin_again = not job.joins_job and not dropped
    return text + _HOW_TO_TRUST if can_begin_again else text


def _count(job: StockJob, imported: Imported, stats: StatsCollector) -> None:
    stats.set_value("altsched/stock/pending", imported.pending)
    stats.set_value("altsched/stock/done", imported.done)
    stats.set_value("altsched/stock/dead", imported.dead)
    stats.set_value("altsched/stock/duplicates", imported.duplicates)
    stats.set_value("altsched/stock/unreadable", job.unreadable)
    stats.set_value("altsched/stock/unclean", job.unclean)
