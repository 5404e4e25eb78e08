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
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..disk import force_name
from ..errors import JobdirError
from ..frontier import Entry, Runs
from ..frontier.dead_letter import DeadLetter
from ..maintenance.importing import Imported
from ..requests.codec import encode_request
from .files import SeenFile, StockQueue, find_queues, readable
from .restoring import Restorer, shortened

if TYPE_CHECKING:
    from scrapy import Request, Spider

QUEUE = "requests.queue"
SEEN = "requests.seen"
_ACTIVE = "active.json"
#: The filter is closed right after active.json was written.
_SEEN_LATER = 10.0  # seconds


class StockJob:
    """What Scrapy's own scheduler has left in a job directory; a source for a frontier.

    :param takes_seen: whether requests.seen is imported; it is not if another filter is in use,
        which may be Scrapy's own and continue with it.
    :param trusts_seen: whether what was seen is trusted after an unclean end, too.

    Once the frontier is open:

    :ivar imported: how much was imported; ``None``: nothing.
    :ivar signs: that Scrapy's scheduler did not end cleanly.
    :ivar has_seen: whether requests.seen was there, and is taken if it is trusted.
    :ivar seen: how many fingerprints are in it, in which *formats*.
    :ivar kinds: kind of queue -> number of its records.
    :ivar joins_job: whether the job directory also holds requests of this package.
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
        self.restorer = Restorer(
            spider,
            encode=lambda request: encode_request(request, spider),
            fingerprint=fingerprint,
            slot_key=slot_key,
            is_filtered=takes_seen,
        )
        self.notes = notes
        self.takes_seen = takes_seen
        self._trusts_seen = trusts_seen
        self.has_seen = self.joins_job = False
        self._queues: list[StockQueue] = []
        self.imported: Imported | None = None
        self.signs: list[str] = []
        self.seen = 0
        self.formats: set[str] = set()
        self.kinds: Counter[str] = Counter()
        self._unreadable = 0

    # For the frontier

    def parts(self) -> dict[str, str]:
        """What there is of requests.queue and requests.seen, and what it looks like."""
        found: dict[str, str] = {}
        with readable(self.path):
            paths = list(_walk(self.path / QUEUE))
            look = hashlib.sha256()
            for path in paths:
                if not path.is_dir():
                    size = path.stat().st_size
                    name = path.relative_to(self.path)
                    look.update(f"{name} {size} {_changed_at(path)}\n".encode())
                    found[QUEUE] = look.hexdigest()
            with suppress(FileNotFoundError):
                size = (self.path / SEEN).stat().st_size
                if self.takes_seen and size:
                    found[SEEN] = f"{size} {_changed_at(self.path / SEEN)}"
                if size and paths and QUEUE not in found:
                    # All that was in the queue is lost, or done.
                    found[QUEUE] = f"empty since {max(map(_changed_at, paths))}"
        return found

    def examine(self, parts: Collection[str], runs: Runs, *, has_job: bool) -> int:
        """Look at all files; the number of pending requests."""
        self.has_seen, self.joins_job = SEEN in parts, has_job
        queue = self.path / QUEUE
        self.signs += [
            f"run {run.number}, under {run.components.scheduler}, did not end"
            for run in runs.by_filter
            if not run.ended
        ]
        with readable(self.path):
            has_queue = queue.exists()
            if has_queue or runs.has_marks or not has_job:
                self._look_at_times()
        if self.has_seen and has_job:
            # It may have come from another scheduler than Scrapy's.
            if not has_queue and not runs.beside_filter:
                self.signs.append(f"nothing tells how the crawl ended that wrote {SEEN}")
            self.signs += [
                f"run {run.number}, with {run.components.dupefilter}, did not end"
                for run in runs.beside_filter
                if not run.ended
            ]
        if QUEUE in parts:
            named = self._active()
            for found in find_queues(queue):
                look = found.look()
                self._unreadable += look.unreadable
                if not look.records:
                    continue
                self._queues.append(found)
                self.kinds[found.kind] += look.records
                name = found.path.relative_to(self.path)
                if not look.agrees or look.unreadable:
                    self.signs.append(f"{name} was not closed")
                elif named is not None and (found.slot_hash, found.priority) not in named:
                    self.signs.append(f"{_ACTIVE} does not name {name}")
        if self.has_seen:
            seen = SeenFile(self.path / SEEN)
            self.seen = sum(1 for _ in seen)
            self.formats = seen.formats
            self._unreadable += seen.unreadable
            if seen.unreadable:
                self.signs.append(f"{SEEN} holds {seen.unreadable} bytes that are no fingerprints")
        return self.kinds.total()

    @property
    def ended(self) -> bool:
        return not self.signs

    @property
    def is_trusted(self) -> bool:
        return self._trusts_seen or not self.signs

    def requests(self) -> Iterator[tuple[Entry, DeadLetter | None]]:
        records = chain.from_iterable(queue.records() for queue in self._queues)
        title = "Importing requests of Scrapy's own scheduler"
        return self.restorer.restore(records, title, self.kinds.total())

    def fingerprints(self) -> Iterator[bytes]:
        if self.has_seen and self.is_trusted:
            title = "Importing fingerprints of Scrapy's own filter"
            yield from shortened(SeenFile(self.path / SEEN), title, self.seen)

    # For the scheduler

    @property
    def unreadable(self) -> int:
        """Bytes of all files that could not be read."""
        return self._unreadable + sum(self.restorer.unreadable)

    def move_away(self) -> Path | None:
        """Move the imported files away; where they are now, if there were any."""
        place: Path | None = None
        with readable(self.path):
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
        place, number = self.path / "stock", 1
        while (place / name).exists() or (place.exists() and not place.is_dir()):
            number += 1
            place = self.path / f"stock-{number}"
        return place

    # Parts

    def _active(self) -> set[tuple[str, int]] | None:
        """The queues that active.json names, if it can be read: hash of the slot, and priority.

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

    def _look_at_times(self) -> None:
        """Look for what is later than active.json, which Scrapy's scheduler writes last."""
        active, seen = self.path / QUEUE / _ACTIVE, self.path / SEEN
        if self._active() is None:
            self.signs.append(f"{_ACTIVE} {'cannot be read' if active.exists() else 'is missing'}")
            return
        closed_at = _changed_at(active)
        for path in _walk(self.path / QUEUE):
            if _changed_at(path) > closed_at:
                self.signs.append(f"{path.relative_to(self.path)} is newer than {_ACTIVE}")
                return
        if self.has_seen and _changed_at(seen) - closed_at > _SEEN_LATER * 1e9:
            self.signs.append(f"{SEEN} is newer than {_ACTIVE}")


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def _walk(directory: Path) -> Iterator[Path]:
    """*directory* and all that is in it, in an order that does not change."""

    def fail(error: OSError) -> None:
        raise error

    if directory.exists():
        for folder, folders, files in os.walk(directory, onerror=fail):
            folders.sort()
            yield Path(folder)
            yield from (Path(folder, name) for name in sorted(files))
