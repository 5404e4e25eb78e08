"""Where a crawl is imported from: a JOBDIR, an exported file, or a server."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Spider

from ..engine.request_parts import slot_of
from ..errors import InputError, JobdirError
from ..frontier.content import Content
from ..maintenance.filling import recoded
from ..maintenance.lines import from_lines
from ..requests.carrying import check_of
from ..requests.entries import codec_of
from ..requests.identity import NOTE, PageIdentity
from ..resume.spider_state import STATE
from ..settings import Config, read_redis
from ..stock.job import QUEUE, SEEN, StockJob
from .job import MOVED_NOTES, Job
from .project import Project

if TYPE_CHECKING:
    from ..stock.redis_job import RedisJob

_GZIP = b"\x1f\x8b"


def is_server(source: str) -> bool:
    """Whether a source is the URL of a server."""
    return "://" in source


def is_stock(source: str) -> bool:
    """Whether a source is a directory with a crawl of Scrapy's own scheduler, and none of ours."""
    path = Path(source)
    try:
        is_ours = any((path / name).exists() for name in ("altsched.json", "frontier"))
        return not is_ours and any((path / name).exists() for name in (QUEUE, SEEN))
    except OSError as error:
        raise _not_read(path, error) from error


def open_content(
    source: str, project: Project, spider: Spider, *, key: str | None, trusted: bool
) -> AbstractContextManager[Content]:
    """A crawl of this package's; AltschedError: it is none, or cannot be read.

    :param key: of a shared crawl on the server that *source* is the URL of.
    :param trusted: whether pickles may be loaded that are in a file, or on a server.
    """
    if key is not None:
        return nullcontext(_on_server(source, spider, key, trusted=trusted))
    if source == "-":
        return nullcontext(_in_file(sys.stdin.buffer, "Standard input", trusted=trusted))
    path = Path(source)
    if path.is_dir():
        return Job(project, path).content()
    return _opened(path, trusted=trusted)


def _not_read(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path} cannot be read ({error.strerror}): --from takes a JOBDIR, an exported file, -"
        " for standard input, or the URL of a Redis server."
    )


@contextmanager
def _opened(path: Path, *, trusted: bool) -> Iterator[Content]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise _not_read(path, error) from error
    with file:
        yield _in_file(file, str(path), trusted=trusted)


def _in_file(file: Any, name: str, *, trusted: bool) -> Content:
    return from_lines(_lines(file, name), name, MOVED_NOTES, STATE, trusted=trusted)


def _lines(file: Any, name: str) -> Iterator[bytes]:
    try:
        lines: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
        yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{name} cannot be read to its end ({error}). Nothing was imported; export the crawl"
            " again."
        ) from error


def _on_server(url: str, spider: Spider, key: str, *, trusted: bool) -> Content:
    client = _connect(url, spider)
    from ..frontier.shared.content import CrawlReader

    content = replace(CrawlReader(client, key).content(NOTE), trusted=trusted)
    if trusted:
        return content
    config = Config.from_settings(spider.crawler.settings, disk=True)
    return recoded(content, check_of(config), "this machine")


def _connect(url: str, spider: Spider) -> Any:
    values = read_redis(spider.crawler.settings, "--from")
    # What it needs is optional.
    from ..redis_client.connection import connect

    return connect({"REDIS_URL": url, "REDIS_PARAMS": values["REDIS_PARAMS"]})


def stock_job(source: str, spider: Spider, config: Config, identity: PageIdentity) -> StockJob:
    """A crawl of Scrapy's own scheduler in a directory, which is not changed."""
    return StockJob(
        path=Path(source).absolute(),
        trusts_seen=config.trust_stock_seen,
        **_ways(spider, config, identity),
    )


def redis_job(
    source: str, spider: Spider, config: Config, identity: PageIdentity, *, wants_seen: bool
) -> RedisJob:
    """A crawl of scrapy-redis on a server, which is not changed."""
    client, settings = _connect(source, spider), spider.crawler.settings
    from ..stock.redis_job import QUEUE_KEY, SEEN_KEY, RedisJob

    return RedisJob(
        client=client,
        queue_key=(settings["SCHEDULER_QUEUE_KEY"] or QUEUE_KEY) % {"spider": spider.name},
        seen_key=(settings["SCHEDULER_DUPEFILTER_KEY"] or SEEN_KEY) % {"spider": spider.name},
        wants_seen=wants_seen,
        **_ways(spider, config, identity),
    )


def _ways(spider: Spider, config: Config, identity: PageIdentity) -> dict[str, Any]:
    return {
        "spider": spider,
        "encode": codec_of(config, spider).encode,
        "fingerprint": identity.of,
        "slot_key": lambda request: slot_of(request.url, request.meta),
        "notes": identity.notes(),
    }


def refuse_present(jobdir: Path, source: str) -> None:
    """JobdirError: the directory to import into holds a job, or is the source."""
    names = ("frontier", "altsched.json", QUEUE, SEEN)
    there = [name for name in names if (jobdir / name).exists()]
    if not there:
        return
    if not is_server(source) and Path(source).exists() and jobdir.samefile(source):
        raise JobdirError(
            f"{source} is both the source and the target. A job there is continued by the next"
            " crawl that has it as its JOBDIR; to import it elsewhere, name another JOBDIR."
        )
    raise JobdirError(
        f"JOBDIR {jobdir} holds a job ({', '.join(there)}), and two cannot be merged: name"
        " another directory."
    )
