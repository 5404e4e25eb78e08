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
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeAlias

from ..disk import force_name
from ..errors import JobdirError
from ..frontier import Runs
from .files import SeenFile, StockQueue, find_queues, readable
from .foreign import ForeignJob

QUEUE = "requests.queue"
SEEN = "requests.seen"
_ACTIVE = "active.json"
#: The filter is closed right after active.json was written.
_SEEN_LATER = 10.0  # seconds
#: The queues that active.json names, if it can be read: hash of the slot, and priority.
_Active: TypeAlias = set[tuple[str, int]] | None


@dataclass(kw_only=True, eq=False)
class StockJob(ForeignJob):
    """What Scrapy's own scheduler has left in a job directory.

    Unless it is filtered by us, requests.seen is not imported: the filter in use may be Scrapy's
    own and continue with it.

    :ivar path: the job directory, absolute.
    :ivar trusts_seen: whether what was seen is trusted after an unclean end, too.
    :ivar signs: that Scrapy's scheduler did not end cleanly.
    :ivar has_seen: whether requests.seen was there, and is taken if it is trusted.
    :ivar formats: of the fingerprints in it.
    :ivar kinds: kind of queue -> number of its records.
    :ivar joins_job: whether the job directory also holds requests of this package.
    """

    path: Path
    trusts_seen: bool
    has_seen: bool = False
    joins_job: bool = False
    signs: list[str] = field(default_factory=list)
    formats: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    _queues: list[StockQueue] = field(default_factory=list)

    scheduler = "Scrapy's own scheduler"

    # For the frontier

    def parts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        with readable(self.path):
            paths = list(_walk(self.path / QUEUE))
            files = [path for path in paths if not path.is_dir()]
            if files:
                looks = [f"{path.relative_to(self.path)} {_look_of(path)}\n" for path in files]
                found[QUEUE] = hashlib.sha256("".join(looks).encode()).hexdigest()
            with suppress(FileNotFoundError):
                if (self.path / SEEN).stat().st_size:
                    if self.is_filtered:
                        found[SEEN] = _look_of(self.path / SEEN)
                    if paths and not files:
                        # All that was in the queue is lost, or done.
                        found[QUEUE] = f"empty since {max(map(_changed_at, paths))}"
        return found

    def examine(self, parts: Collection[str], runs: Runs, *, has_job: bool) -> int:
        self.has_seen, self.joins_job = SEEN in parts, has_job
        self.signs += [
            f"run {run.number}, under {run.components.scheduler}, did not end"
            for run in runs.by_filter
            if not run.ended
        ]
        with readable(self.path):
            has_queue, active = (self.path / QUEUE).exists(), self._read_active()
            if has_queue or runs.has_marks or not has_job:
                self._look_at_times(active)
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
            self._look_at_queues(active)
        if self.has_seen:
            seen = SeenFile(self.path / SEEN)
            self.seen = sum(1 for _ in seen)
            self.formats = seen.formats
            self.unreadable += seen.unreadable
            if seen.unreadable:
                self.signs.append(f"{SEEN} holds {seen.unreadable} bytes that are no fingerprints")
        self.pending = self.kinds.total()
        return self.pending

    @property
    def ended(self) -> bool:
        return not self.signs

    @property
    def is_trusted(self) -> bool:
        return self.trusts_seen or not self.signs

    def records(self) -> Iterator[bytes]:
        return chain.from_iterable(queue.records() for queue in self._queues)

    def fingerprints(self) -> Iterator[bytes]:
        if self.has_seen and self.is_trusted:
            yield from self.shorten(SeenFile(self.path / SEEN), "Scrapy's own filter")

    # For the scheduler

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
        for folder in chain(["stock"], (f"stock-{number}" for number in count(2))):
            place = self.path / folder
            if (place.is_dir() or not place.exists()) and not (place / name).exists():
                break
        return place

    # Parts

    def _read_active(self) -> _Active:
        try:
            active: Any = json.loads((self.path / QUEUE / _ACTIVE).read_bytes())
            if isinstance(active, list):
                return {("", int(priority)) for priority in active}
            # A slot's folder has the hash of the slot's name at its end (scrapy/pqueues.py).
            return {
                (hashlib.md5(slot.encode(), usedforsecurity=False).hexdigest(), int(priority))
                for slot, priorities in active.items()
                for priority in priorities
            }
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None

    def _look_at_times(self, active: _Active) -> None:
        """Look for what is later than active.json, which Scrapy's scheduler writes last."""
        path = self.path / QUEUE / _ACTIVE
        if active is None:
            self.signs.append(f"{_ACTIVE} {'cannot be read' if path.exists() else 'is missing'}")
            return
        closed_at = _changed_at(path)
        for path in _walk(self.path / QUEUE):
            if _changed_at(path) > closed_at:
                self.signs.append(f"{path.relative_to(self.path)} is newer than {_ACTIVE}")
                return
        if self.has_seen and _changed_at(self.path / SEEN) - closed_at > _SEEN_LATER * 1e9:
            self.signs.append(f"{SEEN} is newer than {_ACTIVE}")

    def _look_at_queues(self, active: _Active) -> None:
        for queue in find_queues(self.path / QUEUE):
            look = queue.look()
            self.unreadable += look.unreadable
            if not look.records:
                continue
            self._queues.append(queue)
            self.kinds[queue.kind] += look.records
            name = queue.path.relative_to(self.path)
            if not look.agrees or look.unreadable:
                self.signs.append(f"{name} was not closed")
            elif active is not None and (queue.slot_hash, queue.priority) not in active:
                self.signs.append(f"{_ACTIVE} does not name {name}")


def _changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def _look_of(path: Path) -> str:
    return f"{path.stat().st_size} {_changed_at(path)}"


def _walk(directory: Path) -> Iterator[Path]:
    """*directory* and all that is in it, in an order that does not change."""

    def fail(error: OSError) -> None:
        raise error

    if directory.exists():
        for folder, folders, files in os.walk(directory, onerror=fail):
            folders.sort()
            yield Path(folder)
            yield from (Path(folder, name) for name in sorted(files))
