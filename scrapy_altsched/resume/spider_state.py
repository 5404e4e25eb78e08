"""``spider.state``, checkpointed with the frontier.

Scrapy's SpiderState extension reads the file ``spider.state`` when a spider opens, and writes it
after the scheduler has closed.  A crawl that dies never writes it; then the state of the last
commit is written there, where the extension finds it.  A large state takes long to save, and
nothing else runs meanwhile: it is saved less often, and may be older than the queue after a crash.
"""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ..disk import write_whole
from ..errors import JobdirError
from .state import ResumeState

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

#: Names of the notes in a commit.
STATE = "spider.state"
FILE = "spider.state.file"

#: What is noted of a file that is not there.
_NO_FILE = b"null"
#: Share of the time that may go into saving a state.
_SHARE = 0.02
#: Bytes of a state that is saved with each commit: that takes less than a millisecond.
_SMALL = 100_000
#: Seconds between two saves above which a warning is logged.
_SELDOM = 5.0


class SpiderStateCheckpoint:
    """The state of one spider's crawl; *place*: a path to *jobdir* that is right after a move."""

    def __init__(
        self,
        jobdir: str,
        spider: Spider,
        now: Callable[[], float] = time.monotonic,
        *,
        place: Path | None = None,
    ) -> None:
        self._shown = Path(jobdir, "spider.state")
        self._path = Path(place or jobdir, "spider.state")
        self._spider, self._now = spider, now
        self._warned = self._warned_of_size = False
        self._notes: dict[str, bytes] = {}
        #: When the next save is due, and the seconds that the last one has taken so far.
        self._due_at = self._cost = 0.0
        #: When the notes were handed out for a commit, if that has not written them yet.
        self._handed_out_at: float | None = None
        #: The file's checksum, and its time when that was computed.
        self._checksum = self._time = _NO_FILE
        self.state = ResumeState(
            capture=self.notes,
            restore=lambda note: self.restore(note(STATE), note(FILE)),
            # Scrapy's file does, too.
            outlives_job=True,
            note_commit=self.note_commit,
            note_closing=self.flush_soon,
        )

    def restore(self, state: bytes | None, file: bytes | None) -> None:
        """Put the committed *state* into Scrapy's file, unless that is newer.

        It is newer if it is readable and not the *file* that was there at the commit, by its
        content: a copy of the directory may have other times.
        """
        is_known = file in (self._describe_file(), self._describe_time())
        if state is None or (self._is_readable() and not is_known):
            return
        try:
            write_whole(self._path, state)
        except OSError as error:
            raise JobdirError(
                f"{self._shown} cannot be written ({error.strerror or error}), so the spider's"
                " state cannot be restored. Check that its disk has space and that this user may"
                " write to it."
            ) from error

    def notes(self) -> dict[str, bytes]:
        if self._now() >= self._due_at:
            self._save()
        if self._handed_out_at is not None:
            self._handed_out_at = self._now()
        return self._notes

    def note_commit(self) -> None:
        if self._handed_out_at is not None:
            self._cost += self._now() - self._handed_out_at
            self._handed_out_at = None
            self._put_off()

    def flush_soon(self) -> None:
        self._due_at = 0.0

    def _save(self) -> None:
        state = getattr(self._spider, "state", None)
        if state is None:
            return
        began = self._now()
        try:
            pickled = pickle.dumps(state, protocol=4)
        except Exception as error:  # pickling runs code of whatever the state holds
            if not self._warned:
                self._warned = True
                logger.warning(
                    "spider.state cannot be pickled (%(error)s): after a crash the spider gets the"
                    " last state that could be pickled. Keep only plain data in it.",
                    {"error": error},
                    extra={"spider": self._spider},
                )
        else:
            if self._notes.get(STATE) != pickled:
                self._handed_out_at = began
            self._notes = {STATE: pickled, FILE: self._describe_file()}
        self._cost = self._now() - began
        self._put_off()

    def _put_off(self) -> None:
        size = len(self._notes.get(STATE, b""))
        if size <= _SMALL:
            return
        pause = self._cost / _SHARE
        self._due_at = self._now() + pause - self._cost
        if pause >= _SELDOM and self._handed_out_at is None and not self._warned_of_size:
            self._warned_of_size = True
            logger.warning(
                "spider.state has %(size).1f MB and takes %(cost).2f s to save, which blocks the"
                " crawl. So it is saved every %(pause).0f s and when the crawl ends, and not with"
                " each commit: after a kill the spider gets a state that is up to that much older"
                " than the queue. Keep less in it.",
                {"size": size / 1e6, "cost": self._cost, "pause": pause},
                extra={"spider": self._spider},
            )

    def _describe_file(self) -> bytes:
        """A checksum of the file, read again only when its time or size has changed."""
        time = self._describe_time()
        if time != self._time:
            try:
                checksum = blake2b(self._path.read_bytes(), digest_size=16)
            except OSError:
                return _NO_FILE
            self._checksum, self._time = checksum.hexdigest().encode(), time
        return self._checksum

    def _describe_time(self) -> bytes:
        """The file's modification time (ns) and size (bytes): what earlier versions noted of it."""
        try:
            status = self._path.stat()
        except OSError:
            return _NO_FILE
        return json.dumps([status.st_mtime_ns, status.st_size]).encode()

    def _is_readable(self) -> bool:
        try:
            with self._path.open("rb") as file:
                pickle.load(file)
        except Exception:  # whatever the reason, Scrapy's extension would fail, too
            return False
        return True
