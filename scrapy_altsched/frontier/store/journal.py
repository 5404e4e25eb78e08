"""The journal of a running crawl: its store, and the job directory around it.

Opening is the delicate part, since engines continue from whatever files they find.  What they drop
by themselves shows in the number of the last commit, which is also kept beside the store.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote

from ...disk import force_name
from ...errors import JobdirLostError, StoreDamagedError, StoreError
from .database import remedy
from .directory import Directory, find
from .engines import ENGINES, Choice, choose, require
from .jobdir import Identity, Jobdir, LastCommit, find_present, not_writable, using
from .lease_log import LeaseLog
from .migrations import migrate
from .records import Batch
from .store import Store

logger = logging.getLogger(__name__)


class Journal(Store):
    """An open store, and the job directory around it.

    :param fill: called with a store that is new, before it gets its name: it is there with all that
        this wrote, or not at all.
    :param engine: of a store that is new; one that is there keeps its own.
    :ivar rolled_back: by how many commits the job was rolled back when it was opened.
    :ivar leases: of the run that is open, or of the last one, until it is restarted.
    :raises ConfigError: the engine is not installed.
    :raises JobdirError: as by :class:`Jobdir`; StoreError: the store does not open.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        owner: str,
        fill: Callable[[Store], None] = lambda _: None,
        *,
        engine: Choice = "auto",
    ) -> None:
        # Before anything is made of a directory that this process cannot use.
        _find_engine(Path(path), engine)
        self.jobdir = Jobdir(path, owner)
        try:
            super().__init__(self.jobdir.store, _find_engine(self.jobdir.path, engine))
            self._open_job(fill, engine)
        except BaseException:  # nothing else would let go of the lock
            self.jobdir.release()
            raise

    def _open_job(self, fill: Callable[[Store], None], engine: Choice) -> None:
        self.rolled_back = 0
        #: How many requests there may be before a line of the log advises another engine.
        self._suits: int | None = None
        if find(self.path) is None:
            self._create(fill)
        with using(self.path):
            self._directory = Directory(self.path, self.jobdir.place / self.path.name)
        try:
            damage = self._open()
            self.check_directory()
            self._look_back(damage)
            self._look_at_engine(engine)
            self.leases = LeaseLog(self.jobdir.place, self.jobdir.store_id)
        except BaseException:
            with suppress(StoreError):  # what came first is what the user must hear of
                self._close_store()
            raise

    def _create(self, fill: Callable[[Store], None]) -> None:
        """Make the store beside its place and move it there: it is whole or absent."""
        partial = self.jobdir.partial
        store = Store(self.path, self.engine)
        try:
            store.create(Identity.new(self.jobdir.owner), partial)
            fill(store)
            store.database.flush()
            store.close()
            partial.rename(self.jobdir.place / self.path.name)
            force_name(self.path)
        except BaseException as error:
            with suppress(StoreError):  # nothing is to be left of what could not be filled
                store.close()
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError):
                raise not_writable(self.path, error) from error
            raise

    def _open(self) -> StoreDamagedError | None:
        """Open the store if it is this job's; what was wrong with its log, if anything was."""
        identity, damage = self._identify()
        self.jobdir.check(identity)
        known = self.jobdir.identity
        if known is None:
            self.jobdir.write_identity(identity)
        elif known.store_id != identity.store_id:
            raise JobdirLostError(
                f"The store {self.path} is not the one that JOBDIR {self.jobdir.path} was made"
                " with. Restore the JOBDIR as a whole from one copy."
            )
        self.database.open(self._directory.place)
        self.read_key_form()
        self.commit_number = self.stored_commit()
        identity = migrate(self, identity)
        if self.jobdir.identity != identity:
            self.jobdir.write_identity(identity)
        return damage

    def _identify(self) -> tuple[Identity, StoreDamagedError | None]:
        """Whose the store is, and what its log can be read up to; nothing of it is changed."""
        place, families = self._directory.place, ("meta",)
        with closing(self.database) as database:
            damage = database.open_read_only(place, families)
            value, lost = self.identity(), self.describe_lost_commits()
        if lost:
            # Where a log's end is torn, to open the store drops what is in later logs.
            with closing(self.database) as database:
                database.open_undamaged(place, families)
                lost = self.describe_lost_commits()
        if lost:
            # To be written, it would be opened with all that is there put into tables: a repair
            # could no longer tell what came after those that are lost.
            raise StoreDamagedError(f"The store {self.path} {lost}", remedy(self.path))
        if value is None:
            raise StoreDamagedError(
                f"The store {self.path} has no identity: it was cut short before its first commit.",
                remedy(self.path),
            )
        return Identity.parse(value), damage

    def _look_back(self, damage: StoreDamagedError | None) -> None:
        """Warn if the store does not hold all that was once committed to it."""
        known = self.jobdir.last_commit
        if known is not None and known.store_id == self.jobdir.store_id:
            self.rolled_back = max(0, known.number - self.commit_number)
        if damage is not None:
            logger.warning(
                "%s It was opened as it was before that: the job continues from commit %d.",
                damage,
                self.commit_number,
            )
        if known is None or not self.rolled_back:
            return
        counters = self.counters()
        logger.warning(
            "The store %s has lost the end of its log: the job is rolled back from commit %d to %d"
            " (requests accepted then: %d, done: %d). Pages found since then are found and crawled"
            " again; requests that were fed to the crawl from outside since then are lost.",
            self.path,
            known.number,
            self.commit_number,
            max(0, known.accepted - counters.accepted),
            max(0, known.done - counters.done),
        )

    def _look_at_engine(self, choice: Choice) -> None:
        suits = self.database.SUITS
        if suits is not None and self.counters().accepted < suits:
            self._suits = suits
        if choice not in ("auto", self.engine):
            logger.info(
                "The job in %s is stored in %s, and stays so, whatever ALTSCHED_STORE says. `scrapy"
                " altsched convert %s --store %s` converts it, while no crawl of the job runs.",
                self.jobdir.path,
                ENGINES[self.engine][0],
                quote(str(self.jobdir.path)),
                choice,
            )

    def reopen(self) -> None:
        """Close the store and open it again, which is what ends an engine's refusal to write.

        The last write may have been applied though it failed, and is then one commit more.
        StoreError: nothing can be written, and the store can be read; or it does not open; or it is
        not as the last commit left it.
        """
        self.check_directory()
        self.jobdir.check_writable()
        # It closes all the same, and says again what it failed to write.
        with suppress(StoreError):
            self.database.close()
        before = self.commit_number
        self._open()
        found = self.commit_number
        if found not in (before, before + 1):
            # What is in memory does not go on from there; the next run does.
            self.commit_number = before
            self.database.close()
            raise StoreError(
                f"The store {self.path} came back at commit {found} instead of {before}. Restart"
                " the crawl: it resumes from there."
            )

    def close(self, *, hold: bool = False) -> None:
        """Flush, close, and let others have the directory, unless it is on *hold*."""
        try:
            self._close_store()
        finally:
            self.leases.close()
            if not hold:
                self.jobdir.release()

    def _close_store(self) -> None:
        try:
            if self.database.is_open:
                self.check_directory()
        except (JobdirLostError, StoreError):
            self.database.abandon()
            self._directory.keep()
        else:
            with closing(self._directory):
                super().close()

    def check_directory(self) -> None:
        """JobdirLostError: the store, or its job, is not the one that was opened; or StoreError."""
        if self._directory.is_in_place() and self.jobdir.is_held():
            return
        then = (
            "What was committed before is lost with it, unless the directory was only moved:"
            " restore it from a copy, or start the crawl over."
        )
        moved = self._directory.find_moved()
        if moved is not None:
            then = (
                f"What was committed before is safe in {moved.parent}: move it back, or run"
                f" the crawl with -s JOBDIR={quote(str(moved.parent))} to resume it."
            )
        raise JobdirLostError(
            f"JOBDIR {self.jobdir.path} was deleted or replaced while the crawl was running:"
            f" nothing can be saved any more. {then}"
        )

    def write(self, batch: Batch, *, wait: bool = False) -> None:
        self.check_directory()
        super().write(batch, wait=wait)
        numbers = self.commit_number, batch.counters.accepted, batch.counters.done
        self.jobdir.note_commit(LastCommit(self.jobdir.store_id, *numbers))
        if self._suits is not None and batch.counters.accepted >= self._suits:
            logger.warning(
                "The job in %s has passed %d requests. From here on each new one costs a store of"
                " %s several kilobytes of writing, and one of RocksDB a tenth of one: `scrapy"
                " altsched convert %s --store rocksdb` converts it, while no crawl of the job"
                " runs, where rocksdict is installed.",
                self.jobdir.path,
                self._suits,
                ENGINES[self.engine][0],
                quote(str(self.jobdir.path)),
            )
            self._suits = None


def _find_engine(jobdir: Path, choice: Choice) -> str:
    """The engine of the store that is there, or of a new one; ConfigError: it is not installed."""
    store = find_present(jobdir)
    return choose(choice) if store is None else require(store)
