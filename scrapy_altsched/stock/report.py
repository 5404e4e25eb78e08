"""Reports the import of a crawl of Scrapy's own scheduler, in log lines and stats."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..inflection import inflect

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.statscollectors import StatsCollector

    from .job import StockJob

logger = logging.getLogger(__name__)


def report_import(job: StockJob, place: Path | None, stats: StatsCollector) -> None:
    """Report what was imported from *job*, whose files are in *place* now, if there were any."""

    def log(level: int, message: str, **values: Any) -> None:
        logger.log(level, message, {"place": place, **values}, extra={"spider": job.spider})

    def warn(message: str, count: int, noun: str, **values: Any) -> None:
        log(logging.WARNING, message, count=count, noun=inflect(count, noun), **values)

    if (imported := job.imported) is None:
        if place is not None:
            text = "Files of Scrapy's own scheduler that were imported before are kept in %(place)s"
            log(logging.INFO, text)
        return
    for name in ("pending", "done", "dead", "duplicates"):
        stats.set_value(f"altsched/stock/{name}", getattr(imported, name))
    stats.set_value("altsched/stock/unreadable", job.unreadable)
    stats.set_value("altsched/stock/unclean", len(job.signs))
    if place is not None:
        log(
            logging.INFO,
            "Imported the crawl of Scrapy's own scheduler in %(jobdir)s: %(pending)d %(requests)s"
            " pending (read: %(kinds)s), %(dead)d dead, %(duplicates)d left out as duplicates;"
            " fingerprints in requests.seen: %(seen)d (%(formats)s), %(done)d of them imported as"
            " done. Its files are kept in %(place)s; spider.state stays where it is",
            jobdir=job.path,
            requests=inflect(imported.pending, "request"),
            kinds=", ".join(f"{count} {kind}" for kind, count in job.kinds.items()) or "none",
            seen=job.seen,
            formats=" and ".join(sorted(job.formats)) or "none",
            **asdict(imported),
        )
    if job.signs:
        warn(
            "An earlier run did not end cleanly (%(count)d %(noun)s: %(signs)s): requests that were"
            " in flight are lost from its queue, and nothing tells which. %(what)s",
            len(job.signs),
            "sign",
            signs="; ".join(job.signs[:3]),
            what=_describe_seen(job, imported.dropped),
        )
    elif imported.unmatched:
        warn(
            "%(count)d pending %(noun)s of Scrapy's own scheduler cannot be found in its"
            " requests.seen: the rules for fingerprints have changed since. Pages that were crawled"
            " may be crawled again.",
            imported.unmatched,
            "request",
        )
    if imported.dead:
        warn(
            "%(count)d %(noun)s of Scrapy's own scheduler cannot be restored: kept as dead letters,"
            " and not crawled. The first: %(first)s.",
            imported.dead,
            "request",
            first=job.first_dead,
        )
    if job.unreadable:
        warn(
            "%(count)d %(noun)s of the files of Scrapy's own scheduler could not be read:"
            " half-written by a process that died, or damaged. None of them is deleted: see"
            " %(place)s.",
            job.unreadable,
            "byte",
        )


def _describe_seen(job: StockJob, dropped: int) -> str:
    """How the seen set of a crawl that did not end cleanly is treated."""
    start_over = "To be sure of every page, start the job over in another JOBDIR."
    if job.is_trusted:
        return (
            "What was seen is still treated as crawled (ALTSCHED_TRUST_STOCK_SEEN): an unknown"
            f" number of pages is missed. {start_over}"
        )
    if not job.is_filtered:
        return f"What DUPEFILTER_CLASS has recorded is not crawled again, lost or not. {start_over}"
    left_out = ["requests.seen"] * job.has_seen
    if dropped:
        left_out.append(f"what scrapy_altsched.DupeFilter noted then (fingerprints: {dropped})")
    if not left_out and job.joins_job:
        return "Nothing of scrapy_altsched's own job in this JOBDIR is missed."
    left_out = left_out or ["requests.seen"]
    text = (
        f"So {' and '.join(left_out)} {inflect(len(left_out), 'is', 'are')} left out: what was"
        " crawled before is crawled again, and nothing is missed."
    )
    if job.joins_job or dropped:
        return text
    return (
        f"{text} With ALTSCHED_TRUST_STOCK_SEEN = True it is imported nevertheless, and what was"
        " lost stays missing. For that, move the files back and delete frontier and altsched.json."
    )
