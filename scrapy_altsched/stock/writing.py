"""A job directory for Scrapy's own scheduler, made of a crawl of this package's.

Scrapy's own classes write it, those that the project's settings name, so that it is as the
installed version reads it.  That scheduler knows requests that are pending and fingerprints that
were seen, and has no place for anything else.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import load_object

from ..engine.components import fingerprinter_of
from ..engine.request_parts import slot_of
from ..errors import CodecError, ConfigError, JobdirError
from ..frontier.content import Content, SeenPage, StoredRequest
from ..frontier.store.seen import FINGERPRINTS
from ..frontier.store.states import DEAD, DELAYED, FAILED
from ..inflection import counted
from ..requests.carrying import check_of, pickled, url_in
from ..requests.codec import decode_request
from ..requests.identity import NOTE
from ..settings import Config

if TYPE_CHECKING:
    from scrapy import Request, Spider

#: Settings of that scheduler that name the classes of its queues.
_QUEUES = ("SCHEDULER_DISK_QUEUE", "SCHEDULER_MEMORY_QUEUE", "SCHEDULER_PRIORITY_QUEUE")


class _Fingerprints:
    """A fingerprinter of fingerprints."""

    def fingerprint(self, request: Any) -> Any:
        return request


class _Engine:
    """What Scrapy's queues ask of an engine, where none runs: the download slots of requests."""

    def __init__(self) -> None:
        self.downloader = self
        self.slots: dict[str, Any] = {}

    def get_slot_key(self, request: Request) -> str:
        return slot_of(request.url, request.meta)


def write_stock(content: Content, directory: Path, spider: Spider) -> list[str]:
    """Make *directory*; what the crawl there lacks, in sentences.

    :raises JobdirError: there is such a directory, or it cannot be written.
    """
    partial = directory.with_name(f"{directory.name}.partial")
    try:
        if directory.exists() and any(directory.iterdir()):
            raise JobdirError(f"{directory} is not empty: name a directory that is not there yet.")
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of an earlier try that was killed
            partial.mkdir(parents=True)
            writing = _Writing(content, partial, spider)
            writing.run()
            partial.rename(directory)
        except BaseException:  # nothing is to be left of it, whatever has ended it
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise JobdirError(
            f"{directory} cannot be written ({error.strerror or error}): name a directory that this"
            " user can make, on a disk with space left."
        ) from error
    return list(writing.remarks())


class _Writing:
    def __init__(self, content: Content, directory: Path, spider: Spider) -> None:
        self._content, self._spider = content, spider
        self._crawler = crawler = spider.crawler
        crawler.engine = _Engine()  # type: ignore[assignment]  # it has what is asked for
        self._filter = RFPDupeFilter(str(directory), fingerprinter=_Fingerprints())
        self._check: Callable[[bytes], bytes] = bytes
        if not content.trusted:
            self._check = check_of(Config.from_settings(crawler.settings, disk=None))
        self._fingerprint = fingerprinter_of(crawler).fingerprint
        note = json.loads(content.head.notes.get(NOTE) or b'{"rules": ""}')
        self._has_rules = bool(note["rules"])
        self._knows_done = content.head.keys == FINGERPRINTS and not self._has_rules
        self._counts: Counter[str] = Counter()
        self._left_out = ""
        self._scheduler = self._open_scheduler(str(directory))

    def _open_scheduler(self, directory: str) -> Scheduler:
        paths = {name: self._crawler.settings[name] for name in _QUEUES}
        try:
            on_disk, in_memory, of_priorities = map(load_object, paths.values())
            scheduler = Scheduler(
                self._filter,
                directory,
                on_disk,
                in_memory,
                stats=MemoryStatsCollector(self._crawler),
                pqclass=of_priorities,
                crawler=self._crawler,
            )
            scheduler.open(self._spider)
        except OSError:
            raise
        except Exception as error:  # whatever the queues' code raises
            values = ", ".join(f"{name} = {path!r}" for name, path in paths.items())
            raise ConfigError(
                f"Scrapy's own scheduler cannot be created with {values}"
                f" ({type(error).__name__}: {error}). Correct the setting that is wrong."
            ) from error
        return scheduler

    def run(self) -> None:
        try:
            for request in self._in_order():
                self._push(request)
        finally:
            self._scheduler.close("shutdown")

    def _in_order(self) -> Iterator[Request]:
        """Requests as they were accepted, the first one first; what was seen is written before."""
        with closing(sqlite3.connect("")) as database:  # a file of its own, which has no name
            database.execute("CREATE TABLE request (sequence INTEGER, payload BLOB)")
            for part in self._content.parts:
                if isinstance(part, SeenPage):
                    if self._knows_done:
                        self._mark(part.key)
                elif isinstance(part, StoredRequest):
                    request = self._restore(part)
                    self._counts[part.state.family] += 1
                    if request is not None and part.state in (FAILED, DEAD):
                        self._mark(self._fingerprint(request))
                    elif request is not None:
                        row = part.sequence, pickled(part.entry.payload or b"")
                        database.execute("INSERT INTO request VALUES (?, ?)", row)
            rows = database.execute("SELECT payload FROM request ORDER BY sequence")
            for (payload,) in rows:
                yield decode_request(payload, self._spider)

    def _restore(self, part: StoredRequest) -> Request | None:
        payload, spider = part.entry.payload or b"", self._spider
        is_over = part.state in (FAILED, DEAD)
        try:
            return decode_request(pickled(self._check(payload)), None if is_over else spider)
        except CodecError as error:
            url = url_in(payload, trusted=self._content.trusted)
            self._leave_out(url or part.entry.fingerprint.hex(), error)
            return None

    def _leave_out(self, url: str, error: Exception) -> None:
        self._counts["left out"] += 1
        self._left_out = self._left_out or f"{url}: {error}"

    def _push(self, request: Request) -> None:
        if not request.dont_filter:
            self._mark(self._fingerprint(request))
        assert self._scheduler.dqs is not None
        try:
            self._scheduler.dqs.push(request)
        except ValueError as error:  # it cannot be serialized
            self._leave_out(request.url, error)
        else:
            self._counts["pushed"] += 1

    def _mark(self, fingerprint: bytes) -> None:
        self._filter.request_seen(fingerprint)  # type: ignore[arg-type]  # see _Fingerprints

    def remarks(self) -> Iterator[str]:
        counts, done = self._counts, self._content.head.counters.done
        are = counted(counts["pushed"], "request is", "requests are")
        yield f"{are} pending for Scrapy's own scheduler."
        if done and not self._knows_done:
            why = "with rules for URLs" if self._has_rules else "no more than digests"
            yield (
                f"WARNING: {counted(done, 'page')} that are done are fetched again if they are"
                f" found again: of their fingerprints the crawl has kept {why}, and Scrapy's own"
                " filter needs them whole."
            )
        if self._has_rules:
            yield "Rules for URLs have no effect there: URLs that they make one are several."
        if delayed := counts[DELAYED.family]:
            yield f"{counted(delayed, 'delayed request')} do not wait there until they are due."
        for state in (FAILED, DEAD):
            if count := counts[state.family]:
                yield f"{counted(count, state.noun)} left out: not crawled again there."
        if count := counts["left out"]:
            yield (
                f"WARNING: {counted(count, 'request')} cannot be restored and left out. The first:"
                f" {self._left_out}"
            )
