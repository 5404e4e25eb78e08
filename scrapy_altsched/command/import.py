# ruff: noqa: N999  (a subcommand's module has its name)
"""Import a crawl of scrapy-redis: its queue and its dupefilter.

They go into the job in JOBDIR or, with ALTSCHED_SHARED, into the shared crawl. Nothing is changed
on the server that they are read from. Stop all workers of that crawl before.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy.exceptions import UsageError
from scrapy.utils.misc import load_object

from ..dupefilter import DupeFilter
from ..errors import ConfigError, InputError, JobdirError, SharedError
from ..frontier.clock import Call, SystemClock
from ..frontier.events import Event, MemoryFull, Refused
from ..inflection import inflect
from ..maintenance.opening import open_frontier
from ..maintenance.sharing import add_all
from ..requests.entries import codec_of
from ..requests.made_by import NOTE
from ..settings import Config, read_redis
from ..stock.job import QUEUE, SEEN
from ..stock.restoring import Restorer
from .job import make_console
from .spider import add_spider_arguments, create_spider, identity_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rich.console import Console
    from scrapy import Request, Spider

    from ..maintenance.importing import Imported
    from ..stock.redis_job import RedisJob
    from .project import Project

_UNTRUSTED = (
    "The queue of scrapy-redis holds pickles: whoever can write to that server can have any code of"
    " theirs run on this machine by this command. If you trust everybody who can, add"
    " --trust-pickle."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument("spider", metavar="SPIDER", help="name of the spider")
    parser.add_argument(
        "--from-redis",
        metavar="URL",
        required=True,
        help="the server of scrapy-redis, as in redis://host:6379/0",
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="load what is there, though whoever wrote it can run code here",
    )
    parser.add_argument(
        "--without-seen",
        action="store_true",
        help="leave the dupefilter, so that what was crawled is crawled again",
    )
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`.

    :raises AltschedError: there is nothing to import, or it cannot be read or written.
    """
    if not arguments.trust_pickle:
        raise InputError(_UNTRUSTED)
    spider = create_spider(project, arguments.spider, arguments.arguments)
    settings = spider.crawler.settings
    config = Config.from_settings(settings, disk=True)
    jobdir = None if config.shared else settings["JOBDIR"]
    if not (jobdir or config.shared):
        message = "set where to: -s JOBDIR=..., or -s ALTSCHED_SHARED=1"
        raise UsageError(message, print_help=False)
    _check_filter(settings["DUPEFILTER_CLASS"])
    values = read_redis(settings, "--from-redis")
    # What it needs is optional.
    from ..redis_client.connection import connect
    from ..stock.redis_job import QUEUE_KEY, SEEN_KEY, RedisJob

    source = {"REDIS_URL": arguments.from_redis, "REDIS_PARAMS": values["REDIS_PARAMS"]}
    identity, note = identity_of(spider)
    job = RedisJob(
        connect(source),
        (settings["SCHEDULER_QUEUE_KEY"] or QUEUE_KEY) % {"spider": spider.name},
        (settings["SCHEDULER_DUPEFILTER_KEY"] or SEEN_KEY) % {"spider": spider.name},
        restorer=Restorer(
            spider,
            encode=codec_of(config, spider).encode,
            fingerprint=identity.of,
            slot_key=_slot_of,
            is_filtered=True,
        ),
        notes={NOTE: note},
        takes_seen=not arguments.without_seen,
    )
    if jobdir:
        imported, place = _into_jobdir(job, Path(jobdir), spider, config)
    else:
        imported, place = _into_shared(job, spider, config, note, are_sha1=identity.are_sha1)
    _show(make_console(), job, imported, place, wants_seen=not arguments.without_seen)
    if jobdir:
        option = quote(f"JOBDIR={jobdir}")
        make_console().print(f"Go on with: scrapy crawl {quote(spider.name)} -s {option}")
    return 1 if imported.dead or job.restorer.unreadable else 0


def _check_filter(path: object) -> None:
    try:
        is_ours = DupeFilter in load_object(path).__mro__  # type: ignore[arg-type]
    except ImportError:  # scrapy-redis's own, say, which need not be here
        is_ours = False
    if not is_ours:
        raise ConfigError(
            f"DUPEFILTER_CLASS = {path!r} keeps its own record of what was seen, which nothing is"
            " imported into: remove the setting, or set it to 'scrapy_altsched.DupeFilter'."
        )


def _slot_of(request: Request) -> str:
    return str(request.meta.get("download_slot") or urlsplit(request.url).hostname or "")


class _Clock(SystemClock):
    """Calls nothing by itself, where there is no event loop."""

    def call_at(self, when: float, call: Callable[[], object]) -> Call:  # noqa: ARG002
        return _Never()


class _Never:
    def cancel(self) -> None:
        pass


def _ignore(_: object) -> None:
    """Do nothing: this command asks for every answer itself."""


def _into_jobdir(
    job: RedisJob, jobdir: Path, spider: Spider, config: Config
) -> tuple[Imported, str]:
    """Import into a job directory that holds no job."""
    there = [
        name for name in ("frontier", "altsched.json", QUEUE, SEEN) if (jobdir / name).exists()
    ]
    if there:
        raise JobdirError(
            f"JOBDIR {jobdir} holds a job ({', '.join(there)}), and two cannot be merged: name"
            " another directory."
        )
    frontier = open_frontier(jobdir, spider.name, config.frontier, source=job)
    frontier.close()
    assert job.imported is not None
    return job.imported, f"the job in {jobdir}"


def _into_shared(
    job: RedisJob, spider: Spider, config: Config, note: bytes, *, are_sha1: bool
) -> tuple[Imported, str]:
    """Import into a shared crawl, which may be running."""
    from ..frontier.shared.opening import Worker, open_shared

    out = make_console()
    shared = config.shared_options(spider.name)
    assert shared is not None
    worker = Worker(
        spider=spider.name,
        fingerprints=note,
        are_sha1=are_sha1,
        jobdir=None,
        check=lambda: None,
        wake=_ignore,
        fail=_ignore,
        warn=out.print,
    )
    refused = 0

    def hear(event: Event) -> None:
        nonlocal refused
        refused += isinstance(event, Refused)
        if isinstance(event, MemoryFull):
            raise SharedError(
                "The server has no memory for all that is imported into the shared crawl"
                f" {shared.key!r}: raise its maxmemory (redis-cli CONFIG SET maxmemory ...), then"
                " run this command again; what is filtered is not imported twice."
            )

    # It leases nothing.
    options = replace(config.frontier, clock=_Clock())
    frontier = open_shared(options, replace(shared, prefetch=1), worker, hear)
    try:
        if frontier.is_over:
            raise SharedError(
                f"The shared crawl {shared.key!r} is finished. To import into it, have it start"
                f" again from nothing: scrapy altsched restart {quote(shared.key)}"
            )
        imported = add_all(frontier, job, lambda: refused)
        frontier.close()
    finally:
        frontier.abandon()
    return imported, f"the shared crawl {shared.key!r}"


def _show(out: Console, job: RedisJob, imported: Imported, place: str, *, wants_seen: bool) -> None:
    unreadable = len(job.restorer.unreadable)
    are = inflect(imported.pending, "request is", "requests are")
    out.print(
        f"{imported.pending:,} {are} pending in {place}; duplicates: {imported.duplicates:,}."
    )
    if imported.dead:
        cannot = inflect(imported.dead, "request", "requests")
        out.print(
            f"{imported.dead:,} {cannot} cannot be restored, and will not be crawled. The first:"
            f" {job.restorer.first_dead}"
        )
    if unreadable:
        are = inflect(unreadable, "entry of the queue is", "entries of the queue are")
        out.print(f"{unreadable:,} {are} no pickled requests, and were left out.")
    if not wants_seen or not job.seen:
        return
    compared = f"{job.known} of {job.sampled} queued requests that were compared"
    if job.takes_seen:
        out.print(
            f"{imported.done:,} more fingerprints of its dupefilter are seen, and not crawled"
            f" again ({compared} are in it). If a worker was killed, what it had in flight is among"
            " them: to crawl everything again, import with --without-seen."
        )
        return
    out.print(f"WARNING: its dupefilter ({job.seen:,} fingerprints) was left out: {_why(job)}")


def _why(job: RedisJob) -> str:
    result = "Pages that were crawled are crawled again if they are found again."
    if not job.sampled:
        return f"no queued request shows how its fingerprints were made. {result}"
    why = f"only {job.known} of {job.sampled} queued requests that were compared are in it"
    if job.maker is None:
        return f"{why}, and nobody known makes its fingerprints. {result}"
    return f"{why}. Its fingerprints are {job.maker}: to import them, use these. {result}"
