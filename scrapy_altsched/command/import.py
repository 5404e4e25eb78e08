# ruff: noqa: N999  (a subcommand's module has its name)
"""Import a crawl of scrapy-redis: its queue and its dupefilter.

They go into the job in JOBDIR or, with ALTSCHED_SHARED, into the shared crawl. Nothing is changed
on the server that they are read from.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scrapy import Spider
from scrapy.utils.misc import load_object

from ..crawl.setup import CrawlClock
from ..dupefilter import DupeFilter
from ..engine.engine import slot_of
from ..errors import ConfigError, InputError, JobdirError, SharedError
from ..frontier.contract import Frontier, Verdict
from ..frontier.events import Event, MemoryFull, Refused
from ..frontier.options import SharedOptions
from ..inflection import counted
from ..maintenance.importing import Imported
from ..maintenance.opening import open_frontier
from ..requests.entries import codec_of
from ..requests.identity import PageIdentity
from ..settings import Config, read_redis
from ..stock.job import QUEUE, SEEN
from .project import Project, add_spider_arguments, create_spider, identity_of, misuse

if TYPE_CHECKING:
    from ..stock.redis_job import RedisJob

#: What is added to a shared crawl before it is waited for.
_PORTION = 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument("spider", metavar="SPIDER", help="name of the spider")
    what = "the server of scrapy-redis, as in redis://host:6379/0"
    parser.add_argument("--from-redis", metavar="URL", required=True, help=what)
    what = "load what is there, though all who can write to it can run code here"
    parser.add_argument("--trust-pickle", action="store_true", help=what)
    what = "leave the dupefilter: what was crawled is crawled again"
    parser.add_argument("--without-seen", action="store_true", help=what)
    add_spider_arguments(parser)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    if not arguments.trust_pickle:
        raise InputError(
            "The queue of scrapy-redis holds pickles: all who can write to that server can execute"
            " code on this machine by way of this command. If you trust them, add --trust-pickle."
        )
    spider = create_spider(project, arguments.spider, arguments.arguments)
    settings = spider.crawler.settings
    config = Config.from_settings(settings, disk=True)
    shared, jobdir = config.shared_options(spider.name), settings["JOBDIR"]
    if shared is None and not jobdir:
        raise misuse("set where to: -s JOBDIR=..., or -s ALTSCHED_SHARED=1")
    _check_filter(settings["DUPEFILTER_CLASS"])
    values = read_redis(settings, "--from-redis")
    # What it needs is optional.
    from ..redis_client.connection import connect
    from ..stock.redis_job import QUEUE_KEY, SEEN_KEY, RedisJob

    identity = identity_of(spider)
    job = RedisJob(
        client=connect({"REDIS_URL": arguments.from_redis, "REDIS_PARAMS": values["REDIS_PARAMS"]}),
        queue_key=(settings["SCHEDULER_QUEUE_KEY"] or QUEUE_KEY) % {"spider": spider.name},
        seen_key=(settings["SCHEDULER_DUPEFILTER_KEY"] or SEEN_KEY) % {"spider": spider.name},
        spider=spider,
        encode=codec_of(config, spider).encode,
        fingerprint=identity.of,
        slot_key=lambda request: slot_of(request.url, request.meta),
        notes=identity.notes(),
        wants_seen=not arguments.without_seen,
    )
    if shared is not None:
        imported = _into_shared(job, spider, config, shared, identity)
        _show(job, imported, f"the shared crawl {shared.key!r}")
    else:
        imported = _into_jobdir(job, Path(jobdir), spider, config)
        _show(job, imported, f"the job in {jobdir}")
    if not arguments.without_seen and job.seen:
        _show_seen(job, imported.done)
    if shared is None:
        option = quote(f"JOBDIR={jobdir}")
        print(f"Go on with: scrapy crawl {quote(spider.name)} -s {option}")
    return 1 if imported.dead or job.no_requests else 0


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


def _into_jobdir(job: RedisJob, jobdir: Path, spider: Spider, config: Config) -> Imported:
    """Import into a job directory that holds no job."""
    names = ("frontier", "altsched.json", QUEUE, SEEN)
    if there := [name for name in names if (jobdir / name).exists()]:
        raise JobdirError(
            f"JOBDIR {jobdir} holds a job ({', '.join(there)}), and two cannot be merged: name"
            " another directory."
        )
    open_frontier(jobdir, spider.name, config.frontier, source=job).close()
    assert job.imported is not None
    return job.imported


def _into_shared(
    job: RedisJob, spider: Spider, config: Config, shared: SharedOptions, identity: PageIdentity
) -> Imported:
    """Import into a shared crawl, which may be running; requests that are dead are only counted.

    If it is interrupted it may be done again: what is filtered is not added twice.
    """
    from ..frontier.shared.opening import Worker, open_shared

    imported = Imported()

    def hear(event: Event) -> None:
        if isinstance(event, Refused):
            imported.pending -= 1
            imported.duplicates += 1
        elif isinstance(event, MemoryFull):
            raise SharedError(
                "The server has no memory for all that is imported into the shared crawl"
                f" {shared.key!r}: raise its maxmemory (redis-cli CONFIG SET maxmemory ...), then"
                " run this command again; what is filtered is not imported twice."
            )

    worker = Worker(
        spider=spider.name,
        fingerprints=identity.note,
        are_sha1=identity.are_sha1,
        jobdir=None,
        check=lambda: None,
        wake=lambda _: None,  # every answer is asked for
        fail=lambda _: None,
        warn=print,
    )
    # It leases nothing.
    options, shared = replace(config.frontier, clock=CrawlClock()), replace(shared, prefetch=1)
    frontier = open_shared(options, shared, worker, hear)
    try:
        if frontier.is_over:
            raise SharedError(
                f"The shared crawl {shared.key!r} is finished. To import into it, restart it from"
                f" nothing: scrapy altsched restart --shared {quote(shared.key)}"
            )
        for number, (entry, why) in enumerate(job.requests(), 1):
            if why is not None:
                imported.dead += 1
            elif frontier.add(entry) in (Verdict.ADDED, Verdict.UNDECIDED):
                imported.pending += 1
            else:
                imported.duplicates += 1
            _wait(frontier, number)
        for number, fingerprint in enumerate(job.fingerprints(), 1):
            imported.done += not frontier.mark_seen(fingerprint)
            _wait(frontier, number)
        _wait(frontier)
        job.parts()  # it must not have changed while it was read
        frontier.close()
    finally:
        frontier.abandon()
    return imported


def _wait(frontier: Frontier, number: int = 0) -> None:
    """Wait for what was added, if it is a whole portion by now."""
    if not number % _PORTION:
        while not frontier.commit(wait=True):
            pass


def _show(job: RedisJob, imported: Imported, place: str) -> None:
    are = counted(imported.pending, "request is", "requests are")
    print(f"{are} pending in {place}; duplicates: {imported.duplicates:,}.")
    if imported.dead:
        cannot = f"{counted(imported.dead, 'request')} cannot be restored, and will not be crawled"
        print(f"{cannot}. The first: {job.first_dead}")
    if job.no_requests:
        are = counted(job.no_requests, "entry of the queue is", "entries of the queue are")
        print(f"{are} no pickled requests, and were left out.")


def _show_seen(job: RedisJob, done: int) -> None:
    compared = f"{job.known} of {job.sampled} queued requests that were compared"
    if job.takes_seen:
        print(
            f"{done:,} more fingerprints of its dupefilter are seen, and not crawled"
            f" again ({compared} are in it). If a worker was killed, what it had in flight is among"
            " them: to crawl everything again, import with --without-seen."
        )
        return
    if not job.sampled:
        why = "no queued request shows how its fingerprints were made"
    elif job.maker is None:
        why = f"only {compared} are in it, and nothing known makes its fingerprints"
    else:
        why = (
            f"only {compared} are in it. Its fingerprints are {job.maker}: to import them, use"
            " these"
        )
    print(
        f"WARNING: its dupefilter ({job.seen:,} fingerprints) was left out: {why}. Pages that were"
        " crawled are crawled again if they are found again."
    )
