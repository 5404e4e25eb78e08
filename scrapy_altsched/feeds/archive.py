"""The archive of a crawl: a line of JSON for each request that is finished.

It is what Heritrix calls crawl.log: https://heritrix.readthedocs.io/en/latest/operating.html#logs
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..background import Background
from ..disk import force, force_name
from ..errors import ConfigError, InputError
from ..requests import FOUND_ON
from .feed_file import FeedFile

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.http import Response

    from .job_feeds import JobFeeds

logger = logging.getLogger(__name__)

#: Seconds for which the end of a crawl waits for the last part to be compressed.
_PATIENCE = 60.0


class Archive:
    """The parts of an archive: ``done.jsonl``, ``done.2.jsonl`` and so on.

    A line is written before the commit that stores the end of its request, as items are, so that a
    kill leaves out none; a request that is crawled again has one more line.  A new part begins once
    the last one has reached its size; that one is compressed when no commit speaks of it any more.

    :param path: of the first part, absolute.
    :param size: bytes of a part.
    :param run: of the job; 0: there is none.
    :param feeds: of the job, whose commits wait for the lines; ``None``: there is none.
    :raises ConfigError: the file cannot be opened.
    :raises FeedLockedError: another crawl writes to it.
    """

    def __init__(
        self, path: Path, size: int, spider: Spider, *, run: int, feeds: JobFeeds | None
    ) -> None:
        self._first, self._size, self._run, self._feeds = path, size, run, feeds
        self._log = logging.LoggerAdapter(logger, {"spider": spider})
        self._statuses: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._number, left = _find_parts(path)
        #: Complete parts that the next commit may still note; and those that the last one may have.
        self._complete, self._due = left, list[Path]()
        self._compressor: Background[Path, None] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            self._file.open()
        except OSError as error:
            raise ConfigError(
                f"ALTSCHED_ARCHIVE: {path} cannot be written ({error.strerror or error}). Check"
                " that its directory is there and that this user may write to it, or name another"
                " file."
            ) from error

    def _open(self) -> None:
        path = name_part(self._first, self._number)
        if self._feeds is None:
            self._file = FeedFile(path, lambda: path.open("ab", buffering=0))
        else:
            self._file = self._feeds.continue_lines(path)
        self._written = self._file.tell()

    def note_response(self, response: Response, request: Request) -> None:
        """A handler of ``response_downloaded`` and ``response_received``."""
        self._statuses[request] = response.status

    def note_finished(self, request: Request, fingerprint: bytes) -> None:
        """Write the line of a request that is done."""
        if self._written >= self._size:
            self._begin_part()
        fields = {
            "url": request.url,
            "fingerprint": fingerprint.hex(),
            "status": self._statuses.get(request),
            "time": datetime.now(tz=timezone.utc).isoformat(timespec="milliseconds"),
            "tries": request.meta.get("retry_times", 0) + 1,
            "run": self._run,
        }
        if (found_on := request.meta.get(FOUND_ON)) is not None:
            fields["found_on"] = found_on
        self._written += self._file.write(json.dumps(fields).encode() + b"\n")

    def _begin_part(self) -> None:
        complete = self._file
        self._number += 1
        self._open()
        self._close_file(complete)
        self._complete.append(complete.path)
        if self._feeds is None:
            self._compress_all()

    def _close_file(self, file: FeedFile) -> None:
        if self._feeds is not None:
            self._feeds.store_or_log(file)
            return
        try:
            file.close()
        except OSError as error:
            self._log.error(
                "The last lines of %s, a part of the archive, could not be written (%s).",
                file.name,
                error.strerror or error,
            )

    def note_committed(self) -> None:
        """A handler of ``frontier_committed``."""
        due, self._due, self._complete = self._due, self._complete, []
        for part in due:
            if self._compressor is None:
                what = "The thread that compresses parts of the archive"
                self._compressor = Background("altsched-archive", what, self._compress)
            self._compressor.give(part)

    def _compress_all(self) -> None:
        self.note_committed()
        self.note_committed()

    def _compress(self, part: Path) -> None:
        try:
            compress(part)
        except OSError as error:
            self._log.warning(
                "%s, a part of the archive, cannot be compressed (%s), and stays as it is.",
                part,
                error.strerror or error,
            )

    def close(self) -> None:
        """Close the part; there will be no further commit."""
        self._close_file(self._file)
        self._compress_all()

    def wait(self) -> None:
        """Wait until complete parts are compressed, but for a minute at most."""
        if self._compressor is not None:
            self._compressor.stop()
            self._compressor.join(_PATIENCE)


def name_part(first: Path, number: int) -> Path:
    """The path of a part, from 1."""
    return first if number == 1 else first.with_name(f"{first.stem}.{number}{first.suffix}")


def find_part(first: Path) -> Path:
    """The part that a run begins to write to."""
    return name_part(first, _find_parts(first)[0])


def read_urls(first: Path) -> Iterator[str]:
    """The URLs of all lines in all parts, the first ones first; a crawl may be writing.

    :raises InputError: a part cannot be read, or holds something else.
    """
    for number in sorted({number for number, _ in _list_parts(first)}):
        part = name_part(first, number)
        try:
            with _open_part(part) as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # or it is being written
                        yield json.loads(line)["url"]
        except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{part}, a part of the archive, cannot be read ({error}). Move it away to go on"
                " without it."
            ) from error


def _open_part(part: Path) -> BufferedReader | gzip.GzipFile:
    try:
        return part.open("rb")
    except FileNotFoundError:  # it is compressed, perhaps only now
        return gzip.open(part.with_name(part.name + ".gz"))


def _list_parts(first: Path) -> Iterator[tuple[int, bool]]:
    """The numbers of all parts, in no order, and whether they are compressed."""
    stem, suffix = re.escape(first.stem), re.escape(first.suffix)
    match_part = re.compile(rf"{stem}(?:\.(\d+))?{suffix}(\.gz)?").fullmatch
    with suppress(FileNotFoundError):  # it is made for the first part
        for path in first.parent.iterdir():
            if match := match_part(path.name):
                yield int(match[1] or 1), bool(match[2])


def _find_parts(first: Path) -> tuple[int, list[Path]]:
    """The number of the last part that is not compressed, or of a new one; those before it."""
    parts = list(_list_parts(first))
    plain = {number for number, is_compressed in parts if not is_compressed}
    last = max((number for number, _ in parts), default=0)
    number = last if last in plain else last + 1
    return number, [name_part(first, other) for other in sorted(plain) if other < number]


def compress(part: Path) -> None:
    """Replace a file by a compressed one, ``.gz``; a crash leaves the one or the other.

    :raises OSError: it cannot be; the file is as it was.
    """
    whole = part.with_name(part.name + ".gz")
    partial = whole.with_name(whole.name + ".partial")
    try:
        with part.open("rb") as source, partial.open("wb") as target:
            with gzip.GzipFile(part.name, "wb", fileobj=target) as packed:
                shutil.copyfileobj(source, packed)
            target.flush()
            force(target.fileno())
        partial.replace(whole)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    force_name(whole)
    part.unlink()
