# ruff: noqa: N999  (a subcommand's module has its name)
"""Import a crawl: of a JOBDIR, of Scrapy's own scheduler, from a file, or from a server.

It goes into the job in JOBDIR or, with ALTSCHED_SHARED, into a shared crawl; both must be new. All
of it is imported, or nothing. Nothing is changed where it comes from.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scrapy import Spider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import load_object

from ..crawl.deferrals import NOTE as DEFERRED
from ..crawl.hold import NOTE as PAUSED
from ..dupefilter import DupeFilter
from ..errors import CodecError, ConfigError, InputError, JobdirError
from ..frontier.content import Content, Part, SeenPage, StoredRequest
from ..frontier.options import SharedOptions
from ..frontier.store.journal import Journal
from ..frontier.store.seen import SINCE
from ..frontier.store.states import STATES
from ..frontier.store.store import Store
from ..inflection import counted
from ..maintenance.filling import fill_job, recoded
from ..maintenance.importing import Imported
from ..maintenance.opening import open_frontier
from ..maintenance.progress import follow
from ..requests.carrying import pickled, portable
from ..requests.codec import PICKLED
from ..requests.identity import NOTE, PageIdentity, differences
from ..resume.spider_state import STATE
from ..settings import Config, read_redis
from ..stock.job import StockJob
from ..stock.report import report_import
from .job import Job
from .project import Project, add_spider_arguments, create_spider, identity_of, misuse
from .sources import is_server, is_stock, open_content, redis_job, refuse_present, stock_job

if TYPE_CHECKING:
    from ..stock.foreign import ForeignJob
    from ..stock.redis_job import RedisJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`scrapy_altsched.command`."""
    parser.add_argument("spider", metavar="SPIDER", help="name of the spider")
    what = (
        "a JOBDIR, an exported file, - for standard input, or the URL of a Redis server, as in"
        " redis://host:6379/0"
    )
    parser.add_argument("--from", dest="source", metavar="SOURCE", required=True, help=what)
    what = "the shared crawl on that server that has this ALTSCHED_SHARED_KEY; without it, a crawl"
    parser.add_argument("--key", help=f"{what} of scrapy-redis")
    what = "load pickles of a server or a file, though all who can write to it can run code here"
    parser.add_argument("--trust-pickle", action="store_true", help=what)
    what = "leave the dupefilter of scrapy-redis: what was crawled is crawled again"
    parser.add_argument("--without-seen", action="store_true", help=what)
    add_spider_arguments(parser)


@dataclass(frozen=True)
class _Target:
    """What is imported into: *shared*, or else *jobdir*."""

    spider: Spider
    config: Config
    identity: PageIdentity
    shared: SharedOptions | None
    jobdir: Path

    @property
    def name(self) -> str:
        if self.shared is not None:
            return f"the shared crawl {self.shared.key!r}"
        return f"the job in {self.jobdir}"


def run(arguments: argparse.Namespace, project: Project) -> int:
    """See :mod:`scrapy_altsched.command`."""
    source, is_foreign = arguments.source, is_stock(arguments.source)
    if is_server(source) and arguments.key is None:
        is_foreign = True
        if not arguments.trust_pickle:
            raise InputError(
                "The queue of scrapy-redis holds pickles: all who can write to that server can"
                " execute code on this machine by way of this command. If you trust them, add"
                " --trust-pickle. To import a shared crawl of scrapy_altsched instead, name it with"
                " --key."
            )
    if arguments.key is not None and not is_server(source):
        raise misuse(
            "--key names a crawl on a server: --from must be its URL, as redis://HOST:PORT"
        )
    if arguments.without_seen and not (is_foreign and is_server(source)):
        raise misuse("--without-seen is for crawls of scrapy-redis")
    target = _find_target(arguments, project)
    if not is_foreign:
        with open_content(
            source,
            project,
            target.spider,
            key=arguments.key,
            trusted=arguments.trust_pickle,
        ) as content:
            code = _import(content, target, source)
    else:
        code = _import_foreign(arguments, target, project)
    if target.shared is None:
        Job(project, target.jobdir).tell_standing()
    return code


def _find_target(arguments: argparse.Namespace, project: Project) -> _Target:
    spider = create_spider(project, arguments.spider, arguments.arguments)
    settings = spider.crawler.settings
    config = Config.from_settings(settings, disk=True)
    shared, jobdir = config.shared_options(spider.name), settings["JOBDIR"]
    if shared is None and not jobdir:
        raise misuse("set where to: -s JOBDIR=..., or -s ALTSCHED_SHARED=1")
    _check_filter(settings["DUPEFILTER_CLASS"])
    if shared is None:
        refuse_present(Path(jobdir), arguments.source)
    return _Target(spider, config, identity_of(spider), shared, Path(jobdir or ""))


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


def _import(content: Content, target: _Target, source: str) -> int:
    """Import a crawl of this package's."""
    head, spider = content.head, target.spider
    if head.spider != spider.name:
        raise InputError(
            f"{source} is a crawl of spider {head.spider!r}, not of {spider.name!r}. Nothing was"
            " imported."
        )
    counts = Counter[str]()
    _fill(content.with_parts(_counted(content.parts, counts)), target)
    numbers = ", ".join(
        f"{counts[state.family]:,} {state.family}" for state in STATES if counts[state.family]
    )
    print(
        f"Imported into {target.name}: {numbers or 'no requests'}; {head.counters.done:,} done,"
        f" {counts['seen']:,} seen."
    )
    for remark in head.remarks:
        print(remark, file=sys.stderr)
    _show_next(target)
    return 0


def _counted(parts: Iterator[Part], counts: Counter[str]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, StoredRequest):
            counts[part.state.family] += 1
        elif isinstance(part, SeenPage):
            counts["seen"] += 1
        yield part


def _fill(content: Content, target: _Target) -> None:
    parts = follow("Importing", content.parts, content.total)
    content = content.with_parts(parts)
    if target.shared is not None:
        _fill_shared(content, target, target.shared)
        return
    is_filled = False

    def fill(store: Store) -> None:
        nonlocal is_filled
        fill_job(store, recoded(content, pickled, "a job directory"))
        is_filled = True

    engine = target.config.frontier.store
    with closing(Journal(target.jobdir, target.spider.name, fill, engine=engine)) as journal:
        if (counters := journal.counters()).finished and is_filled:
            # Where it comes from, nothing of its end was left to be done.
            journal.jobdir.note_end(counters.run)
    if not is_filled:
        raise JobdirError(f"JOBDIR {target.jobdir} got a job meanwhile: name another directory.")


def _fill_shared(content: Content, target: _Target, shared: SharedOptions) -> None:
    from ..frontier.shared.content import fill_crawl
    from ..redis_client.connection import connect

    head, identity = content.head, target.identity
    if found := differences(head.notes.setdefault(NOTE, identity.note), identity.note):
        raise ConfigError(
            f"The fingerprints of that crawl were made with {' and '.join(found)}: workers with"
            " these settings cannot join it. Set what it had; or recompute them in a job directory"
            " first: scrapy altsched refingerprint JOBDIR"
        )
    for note, what in ((STATE, "spider.state"), (SINCE, "When pages were finished")):
        if note in head.notes:
            head.remarks.append(f"{what} is left out: shared crawls do not keep it.")
    if head.notes.get(DEFERRED, b"{}") != b"{}":
        head.remarks.append("Download slots that were left alone for a while are asked again.")
    if head.notes.get(PAUSED):
        head.remarks.append(
            "It was paused, and is not any more. To pause it again before a worker is started:"
            f" scrapy altsched pause --shared {shared.words}"
        )
    fill_crawl(
        connect(shared.redis),
        shared.key,
        recoded(content, _encoder(target.config), "a server", keeps_dead=True),
        target.config.frontier.order,
        NOTE,
        are_sha1=identity.are_sha1,
        words=shared.words,
    )


def _encoder(config: Config) -> Callable[[bytes], bytes]:
    def encode(payload: bytes) -> bytes:
        try:
            return portable(payload)
        except CodecError:
            if config.shared_pickle and payload[:1] == PICKLED:
                return payload
            raise

    return encode


def _import_foreign(arguments: argparse.Namespace, target: _Target, project: Project) -> int:
    """Import a crawl of another scheduler: into a job, and from there to a server."""
    source, wants_seen = arguments.source, not arguments.without_seen
    ways = target.spider, target.config, target.identity
    job: RedisJob | StockJob = (
        redis_job(source, *ways, wants_seen=wants_seen)
        if is_server(source)
        else stock_job(source, *ways)
    )
    options = target.config.frontier
    if target.shared is None:
        open_frontier(target.jobdir, target.spider.name, options, source=job).close()
    else:
        read_redis(target.spider.crawler.settings)
        with tempfile.TemporaryDirectory(prefix="altsched-import-") as directory:
            open_frontier(directory, target.spider.name, options, source=job).close()
            with Job(project, Path(directory)).content() as content:
                _fill(content, target)
    imported = job.imported
    if imported is None:
        raise InputError(f"There is nothing of a crawl of {job.scheduler} to import.")
    _show(job, imported, target)
    if isinstance(job, StockJob):
        report_import(job, None, MemoryStatsCollector(target.spider.crawler))
    elif wants_seen and job.seen:
        _show_seen(job, imported.done)
    _show_next(target)
    return 1 if imported.dead or job.no_requests else 0


def _show(job: ForeignJob, imported: Imported, target: _Target) -> None:
    are = counted(imported.pending, "request is", "requests are")
    print(f"{are} pending in {target.name}; duplicates: {imported.duplicates:,}.")
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


def _show_next(target: _Target) -> None:
    if target.shared is None:
        option = quote(f"JOBDIR={target.jobdir}")
        print(f"Go on with: scrapy crawl {quote(target.spider.name)} -s {option}")
