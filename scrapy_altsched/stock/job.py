"""A crawl of Scrapy's own scheduler, imported with its job directory.

Its files (:mod:`.files`) are read, never written.  The queue is what is in the directory, not what
``active.json`` names: a process that dies does not write that.  When all is in the store, the files
are moved away.

Whether Scrapy's scheduler ended cleanly decides about ``requests.seen``, and about what this
package's filter has seen under that scheduler.  If it did, what was seen and is not pending is
done.  If not, some of what was seen was in flight in the dead process, and nothing in the files
says which: to trust them all would silently lose these pages.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..disk import force_name
from ..errors import JobdirError
from ..frontier import Entry, Runs
from ..frontier.dead_letter import DeadLetter
from ..maintenance.importing import Imported
from ..maintenance.progress import progress
from ..requests.codec import encode_request
from ..requests.fingerprint import shorten
from .files import SeenFile, StockQueue, find_queues
from .restoring import Restorer

if TYPE_CHECKING:
    from scrapy import Request, Spider

QUEUE = "requests.queue"
SEEN = "requests.seen"
_ACTIVE = "active.json"
_PLACE = "stock"
#: The filter is closed right after active.json was written.
_SEEN_LATER = 10.0  # seconds
#: How many signs of an unclean end are kept.
_SIGNS = 3


class StockJob:
    """What Scrapy's own scheduler has left in a job directory; a source for a frontier.

    :param jobdir: the job directory.
    :param fingerprint: a request's fingerprint.
    :param slot_key: the name of a request's download slot.
    :param notes: the notes of a store that is created for it.
    :param takes_seen: whether requests.seen is imported; it is not if another filter is in use,
        which may be Scrapy's own and continue with it.
    :param trusts_seen: whether what was seen is trusted after an unclean end, too.

    Once the frontier is open:

    :ivar imported: how much was imported; ``None``: nothing.
    :ivar unclean: how many signs there are that Scrapy's scheduler did not end cleanly.
    :ivar signs: the first of them.
    :ivar seen: how many fingerprints are in requests.seen.
    :ivar formats: its formats.
    :ivar kinds: kind of queue -> number of its records.
    :ivar unreadable: bytes of all files that could not be read.
    """

    def __init__(
        self,
        jobdir: str,
        spider: Spider,
        *,
        fingerprint: Callable[[Request], bytes],
        slot_key: Callable[[Request], str],
        notes: Mapping[str, bytes],
        takes_seen: bool,
        trusts_seen: bool,
    ) -> None:
        self.path = Path(jobdir).absolute()
        self._restorer = Restorer(
            spider,
            encode=lambda request: encode_request(request, spider),
            fingerprint=fingerprint,
            slot_key=slot_key,
            is_filtered=takes_seen,
        )
        self.notes = notes
        self.takes_seen = takes_seen
        self._trusts_seen = trusts_seen
        self._parts: Collection[str] = ()
        self._has_job = False
        self._queues: list[StockQueue] = []
        self.imported: Imported | None = None
        self.unclean = 0
        self.signs: list[str] = []
        self.seen = 0
        self.formats: set[str] = set()
        self.kinds: dict[str, int] = {}
        self.unreadable = 0

    # For the frontier

    def parts(self) -> dict[str, str]:
        """What there is of requests.queue and requests.seen, and what it looks like."""
        found: dict[str, str] = {}
        with self._readable():
            look = hashlib.sha256()
            is_there = False
            for path in self._walk(self.path / QUEUE):
                status = path.stat()
                if not path.is_dir():
                    is_there = True
                    name = path.relative_to(self.path)
                    look.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
            if is_there:
                found[QUEUE] = look.hexdigest()
            with suppress(FileNotFoundError):
                status = (self.path / SEEN).stat()
                if self.takes_seen and status.st_size:
                    found[SEEN] = f"{status.st_size} {status.st_mtime_ns}"
                if status.st_size and not is_there and (self.path / QUEUE).exists():
                    # All that was in the queue is lost, or done.
                    found[QUEUE] = f"empty since {self._changed_at(QUEUE)}"
        return found

    def _changed_at(self, name: str) -> int:
        return max(path.stat().st_mtime_ns for path in self._walk(self.path / name))

    def examine(self, parts: Collection[str], runs: Runs, *, has_job: bool) -> int:
        """Look at all files; the number of pending requests.

        :raises JobdirError: one of them cannot be read.
        """
        self._parts = parts
        self._has_job = has_job
        queue = self.path / QUEUE
        for run in runs.by_filter:
            if not run.ended:
                self._note_sign(f"run {run.number}, under {run.components.scheduler}, did not end")
        with self._readable():
            has_queue = queue.exists()
        if has_queue or runs.has_marks or not has_job:
            self._look_at_times()
        if SEEN in parts and has_job:
            self._look_at_runs(runs, has_queue=has_queue)
        if QUEUE in parts:
            named = self._active()
            for found in find_queues(queue):
                look = found.look()
                self.unreadable += look.unreadable
                if not look.records:
                    continue
                self._queues.append(found)
                self.kinds[found.kind] = self.kinds.get(found.kind, 0) + look.records
                name = found.path.relative_to(self.path)
                if not look.agrees or look.unreadable:
                    self._note_sign(f"{name} was not closed")
                elif named is not None and (found.slot_hash, found.priority) not in named:
                    self._note_sign(f"{_ACTIVE} does not name {name}")
        if SEEN in parts:
            seen = SeenFile(self.path / SEEN)
            self.seen = sum(1 for _ in seen)
            self.formats = seen.formats
            self.unreadable += seen.unreadable
            if seen.unreadable:
                self._note_sign(f"{SEEN} holds {seen.unreadable} bytes that are no fingerprints")
        return sum(self.kinds.values())

    @property
    def ended(self) -> bool:
        return not self.unclean

    @property
    def is_trusted(self) -> bool:
        return self._trusts_seen or not self.unclean

    def requests(self) -> Iterator[tuple[Entry, DeadLetter | None]]:
        title = "Importing requests of Scrapy's own scheduler"
        with progress(title, sum(self.kinds.values())) as step:
            for queue in self._queues:
                for record in queue.records():
                    restored = self._restorer.restore(record)
                    if restored is None:
                        self.unreadable += len(record)
                    else:
                        yield restored
                    step()

    def fingerprints(self) -> Iterator[bytes]:
        if SEEN not in self._parts or not self.imports_seen:
            return
        with progress("Importing fingerprints of Scrapy's own filter", self.seen) as step:
            for fingerprint in SeenFile(self.path / SEEN):
                yield shorten(fingerprint)
                step()

    # For the scheduler

    @property
    def first_dead(self) -> str | None:
        """The reason of the first dead letter."""
        return self._restorer.first_dead

    @property
    def imports_seen(self) -> bool:
        """Whether requests.seen was imported, if it was there."""
        return self.takes_seen and self.is_trusted

    @property
    def leaves_seen_out(self) -> bool:
        """Whether requests.seen was there and was not imported."""
        return SEEN in self._parts and not self.imports_seen

    @property
    def joins_job(self) -> bool:
        """Whether the job directory also holds requests of this package."""
        return self._has_job

    def move_away(self) -> Path | None:
        """Move the imported files away; where they are now, if there were any.

        :raises JobdirError: they cannot be moved.
        """
        place: Path | None = None
        with self._readable():
            names = list(self.parts())
            if self.imported is not None and QUEUE not in names and (self.path / QUEUE).exists():
                names.append(QUEUE)
        for name in names:
            try:
                # The store must not be younger than this, whatever a power cut leaves.
                force_name(self.path / name)
                place = self._free_place(name)
                place.mkdir(exist_ok=True)
                (self.path / name).rename(place / name)
            except OSError as error:
                raise JobdirError(
                    f"The crawl of Scrapy's own scheduler in {self.path} was imported, but its"
                    f" {name} cannot be moved to {place}: {error.strerror}. Move it away yourself,"
                    " and start this crawl again."
                ) from error
        return place

    def _free_place(self, name: str) -> Path:
        place, number = self.path / _PLACE, 1
        while (place / name).exists() or (place.exists() and not place.is_dir()):
            number += 1
            place = self.path / f"{_PLACE}-{number}"
        return place

    # Parts

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JobdirError(
                f"The crawl of Scrapy's own scheduler in {self.path} cannot be read"
                f" ({error.filename}: {error.strerror}), so it is not imported; nothing was"
                f" changed. Make it readable to this user, or move {QUEUE} and {SEEN} away to start"
                " over."
            ) from error

    @staticmethod
    def _walk(directory: Path) -> Iterator[Path]:
        """*directory* and all that is in it, in an order that does not change."""

        def fail(error: OSError) -> None:
            raise error

        if not directory.exists():
            return
        yield directory
        for folder, folders, files in os.walk(directory, onerror=fail):
            folders.sort()
            for name in sorted([*folders, *files]):
                yield Path(folder, name)

    def _active(self) -> set[tuple[str, int]] | None:
        """The queues that active.json names, as hash of the slot and priority; ``None``: it cannot.

        A slot's folder has the hash of the slot's name at its end (scrapy/pqueues.py).
        """
        try:
            active: Any = json.loads((self.path / QUEUE / _ACTIVE).read_bytes())
            if isinstance(active, list):
                return {("", int(priority)) for priority in active}
            return {
                (hashlib.md5(slot.encode(), usedforsecurity=False).hexdigest(), int(priority))
                for slot, priorities in active.items()
                for priority in priorities
            }
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None

    def _note_sign(self, sign: str) -> None:
        self.unclean += 1
        if self.unclean <= _SIGNS:
            self.signs.append(sign)

    def _look_at_times(self) -> None:
        """Look for what is later than active.json, which Scrapy's scheduler writes last."""
        with self._readable():
            active = self.path / QUEUE / _ACTIVE
            if self._active() is None:
                is_there = active.exists()
                self._note_sign(f"{_ACTIVE} {'cannot be read' if is_there else 'is missing'}")
                return
            closed_at = active.stat().st_mtime_ns
            for path in self._walk(self.path / QUEUE):
                if path.stat().st_mtime_ns > closed_at:
                    self._note_sign(f"{path.relative_to(self.path)} is newer than {_ACTIVE}")
                    return
            if SEEN in self._parts:
                later = (self.path / SEEN).stat().st_mtime_ns - closed_at
                if later > _SEEN_LATER * 1e9:
                    self._note_sign(f"{SEEN} is newer than {_ACTIVE}")

    def _look_at_runs(self, runs: Runs, *, has_queue: bool) -> None:
        """Check whether requests.seen may have come from another scheduler than Scrapy's."""
        if not has_queue and not runs.beside_filter:
            self._note_sign(f"nothing tells how the crawl ended that wrote {SEEN}")
        for run in runs.beside_filter:
            if not run.ended:
                self._note_sign(f"run {run.number}, with {run.components.dupefilter}, did not end")
