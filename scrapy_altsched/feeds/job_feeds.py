"""The feeds of a job: their files until all rows are in them, and what each commit notes of them.

Scrapy's exporter forgets a batch's file once it is full, even if its disk has not taken all rows.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from ..engine.engine import Engine
from ..errors import AltschedError, CommitPostponedError, FeedLockedError, JobdirError
from ..frontier.store.lease_log import boot_id
from ..signals import frontier_committing
from .configured import identify, read_feeds
from .feed_file import FeedFile
from .locks import FeedLocks
from .rows import Rows, cut_torn_row, repair

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Names of the notes in a commit: URI -> format; path -> [bytes once all is written, kind of rows];
#: the job directory's path then; and the boot of a machine that may not have forced them, if any.
FEEDS, FILES, JOBDIR, BOOT = "feeds", "feeds.files", "feeds.jobdir", "feeds.boot"


class JobFeeds:
    """The feeds of a job.

    It repairs what a dying process left in the files, warns of missing feeds, and serves commits.

    :param files: those that the feeds will write to, as far as they are known.  They are locked
        until :attr:`locks` gives them back, and so are those that earlier runs wrote to.
    :param note: a note of the job's last commit, by its name.
    :param save: stores notes at once, by their names, and forces them to the disk.
    :param jobdir: the job directory, absolute; ``None``: there is none, as with some workers.
    :param resumed: whether earlier runs left the job unfinished.
    :param sync: whether files are forced to the disk before each commit.
    :raises FeedLockedError: another crawl writes to one of the files; none was changed.
    :raises JobdirError: a file cannot be repaired.
    :ivar is_complete: whether every file that may have a torn row of this job is in its notes.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        files: Sequence[Path],
        note: Callable[[str], bytes | None],
        save: Callable[[Mapping[str, bytes]], None],
        *,
        jobdir: Path | None,
        resumed: bool,
        sync: bool,
    ) -> None:
        self.locks = FeedLocks(spider, crawler.settings)
        self._crawler, self._spider, self._save, self._sync = crawler, spider, save, sync
        self._log = logging.LoggerAdapter(logger, {"spider": spider})
        #: Whether commits wait for files.
        self._is_open = True
        self._files: dict[FeedFile, Rows | None] = {}
        #: Files that are full and could not be written yet -> what fires when they are.
        self._stored: dict[FeedFile, Deferred[None]] = {}
        #: Files whose rows the last commit waited for in vain.
        self._unsaved: set[FeedFile] = set()
        stored, sizes, boot = (note(name) if resumed else None for name in (FEEDS, FILES, BOOT))
        self.is_complete = not resumed or sizes is not None
        follow = partial(_follow, before=note(JOBDIR), now=jobdir)
        feeds = {
            identify(uri): str(options["format"]) for uri, options in read_feeds(crawler.settings)
        }
        before = {follow(name, feeds): kind for name, kind in json.loads(stored or b"{}").items()}
        # Encoded only when it has changed: some commits hold one request.
        self._sizes: dict[str, tuple[int, Rows]] = {}
        self._notes = {FEEDS: json.dumps({**before, **feeds}, sort_keys=True).encode()}
        if jobdir is not None:
            self._notes[JOBDIR] = os.fsencode(jobdir)
        if self.is_complete:
            self._notes[FILES] = b"{}"
        written = [str(path) for path in files]
        noted = {
            Path(follow(name, written)): size for name, size in json.loads(sizes or b"{}").items()
        }
        try:
            self._repair(noted, files, lost_power=bool(boot) and boot != boot_id().encode())
        except BaseException:  # nothing else would let go of the files
            self.locks.give_back()
            raise
        crawler.signals.connect(self.write_out, frontier_committing)
        if missing := sorted(before.keys() - feeds.keys()):
            self._log.warning(
                "Earlier runs of this job wrote to feeds that this run does not have: %s."
                " The items of this run will not be in them. Stop it (press Ctrl-C once) and run"
                " the same command as before, with -o or FEEDS.",
                ", ".join(missing),
            )

    def _repair(
        self, noted: Mapping[Path, tuple[int, Rows]], files: Sequence[Path], *, lost_power: bool
    ) -> None:
        for path in (*noted, *files):
            self.locks.take(path, create=False)
        for path, (size, rows) in noted.items():
            try:
                repair(path, size, rows, self._spider, lost_power=lost_power)
            except OSError as error:
                raise JobdirError(
                    f"The feed {path} of this job cannot be opened to check whether its last row is"
                    f" whole ({error.strerror or error}). Check that this user may read and write"
                    " it, or move it away, and run the same command again."
                ) from error
        for path in files:
            self.locks.take(path)

    def add(self, file: FeedFile, rows: Rows | None) -> None:
        """Keep *file*, which consists of *rows*, and open it as soon as possible.

        Before its first row the job notes how long it is: what is there now is not this job's.
        """
        self._files[file] = rows
        file.keeps_unforced = self._sync
        file.flush()
        file.is_held = rows is not None

    def continue_lines(self, path: Path) -> FeedFile:
        """A file of lines that is not a feed, kept as :meth:`add` does; FeedLockedError: locked."""
        self.locks.take(path, path)
        if not self.is_complete and path.exists():
            cut_torn_row(path, "lines", self._spider)
        file = FeedFile(
            path, lambda: path.open("ab", buffering=0), lambda: self.locks.give_back(path)
        )
        self.add(file, "lines")
        return file

    def refuse(self, file: FeedFile, error: FeedLockedError) -> None:
        """Close the spider, as another crawl has *file*, which was not known before."""
        self.add(file, None)
        self._log.critical("%s", error)
        if self._is_open:
            Engine(self._crawler).close_spider(self._spider, "feed_locked")

    def notes(self, *, before_rows: bool = False) -> dict[str, bytes]:
        """What a commit is to store, of open files whose rows can be told apart.

        :param before_rows: whether that is before what they have in memory is written, not after.
        """
        sizes = {
            file.name: (file.size if before_rows else file.tell(), rows)
            for file, rows in self._files.items()
            if rows
        }
        if sizes != self._sizes:
            self._sizes = sizes
            self._notes[FILES] = json.dumps(sizes).encode()
        self._notes[BOOT] = b"" if self._sync else boot_id().encode()
        return self._notes

    def write_out(self, *, force: bool = False) -> None:
        """Write all rows to their files; a handler of ``frontier_committing``.

        :param force: whether they are forced to the disk from now on.
        :raises CommitPostponedError: some are not written; they stay in memory.
        :raises AltschedError: none is, as the job cannot note a file before its first row.
        """
        self._sync |= force
        failed: dict[FeedFile, OSError] = {}
        for file in list(self._files):  # handlers of frontier_committed may open others
            self._notice_gone(file)
            try:
                self._write_out(file, sync=self._sync)
            except OSError as error:
                failed[file] = error
        for file in self._stored.keys() - failed.keys():
            self._end(file)
        if not failed:
            return
        file, first = next(iter(failed.items()))
        why = first.strerror or first
        if file.lost is not None:
            raise CommitPostponedError(
                f"The commit was postponed: {file.name} cannot be forced to the disk ({why}), and"
                " rows that were written to it may be lost. Check its disk, and whether the rows"
                " are in the file."
            )
        others = f" and {len(failed) - 1} more feed files" if len(failed) > 1 else ""
        raise CommitPostponedError(
            f"The commit was postponed: {file.name}{others} cannot be written ({why}). The rows"
            " stay in memory until then: free space on its disk, or check that this user may write"
            " to it."
        )

    def _write_out(self, file: FeedFile, *, sync: bool) -> None:
        if file.is_held and file.unwritten:
            if self._sync:
                # What the job knows of is on the disk.
                for noted in self._files:
                    if noted.size:
                        noted.force()
            self._save(self.notes(before_rows=True))
            for noted in self._files:
                noted.is_held = False
        file.write_out(sync=sync)

    def store(self, file: FeedFile) -> Deferred[None] | None:
        """Close *file* as soon as the disk has all of it; a deferred for that, if it has not yet.

        :raises OSError: the file was deleted; or cannot be written, and the job is closed.
        """
        self._notice_gone(file)
        if self._is_open:
            try:
                # Nothing forces it later, when it is closed.
                self._write_out(file, sync=True)
            except (OSError, AltschedError):
                return self._stored.setdefault(file, Deferred())
        self._close_file(file)
        if file.is_incomplete:
            raise FileNotFoundError(errno.ENOENT, "It was deleted, moved or replaced", file.name)
        return None

    def store_or_log(self, file: FeedFile) -> None:
        """Close *file* as soon as the disk has all of it; what goes wrong is logged."""
        with suppress(OSError):
            stored = self.store(file)
            if stored is not None:
                stored.addErrback(bool)

    def close(self) -> None:
        """The job is closed and no commit waits for a file: try once more, and log failures."""
        self._is_open = False
        self._crawler.signals.disconnect(self.write_out, frontier_committing)
        self._unsaved = {file for file in self._files if file.unwritten}
        for file in list(self._stored):
            self._end(file)

    def _notice_gone(self, file: FeedFile) -> None:
        """Have rows written to a new file if the one that they went to was deleted or replaced."""
        if file.is_incomplete or not file.is_gone():
            return
        rows, bytes_lost = self._files.get(file), file.tell() - len(file.unwritten)
        if rows is None:
            file.is_incomplete = True  # the rest alone makes no whole file
            then = "What is still to be written goes with it."
        else:
            file.reopen()
            header = ", without a header line" if rows == "csv" else ""
            then = f"From now on, they go to a new file of that name{header}."
        self._log.error(
            "The feed %s was deleted, moved or replaced while this crawl was writing to it."
            " The %d bytes of items that it had by then are missing there, and their pages"
            " are not crawled again. %s",
            file.name,
            bytes_lost,
            then,
        )

    def _end(self, file: FeedFile) -> None:
        stored = self._stored.pop(file)
        try:
            self._close_file(file)
        except OSError as error:
            stored.errback(error)
        else:
            stored.callback(None)

    def _close_file(self, file: FeedFile) -> None:
        rows, left = self._files.pop(file, None), len(file.unwritten)
        try:
            file.close(sync=True)
        except OSError as error:
            if file.lost is not None:
                then = (
                    "What was written to it may be lost if the machine goes down: check its disk,"
                    " and whether the rows are in the file."
                )
            elif rows is None:
                then = "The file is not complete."
            elif file in self._unsaved:
                then = (
                    "Their pages are not saved as done: free space on its disk and run the same"
                    " command again to crawl these pages again."
                )
            else:
                then = "They came after the job was closed, and their pages are not crawled again."
            self._log.critical(
                "The last %s of the feed %s could not be written (%s). %s",
                f"{left} bytes" if left else "rows",
                file.name,
                error.strerror or error,
                then,
            )
            raise


def _follow(name: str, written: Collection[str], *, before: bytes | None, now: Path | None) -> str:
    """The path of a noted file after the job directory was moved or copied together with it.

    It is looked for in the same place, as seen from the job directory.

    :param name: its absolute path, as noted; or the URI of a feed elsewhere, which stays.
    :param written: the files that this run writes to.
    :param before: the path of the job directory, as noted.
    """
    if before is None or now is None or now == Path(os.fsdecode(before)) or name in written:
        return name
    if not Path(name).is_absolute():
        return name
    moved = os.path.normpath(now / os.path.relpath(name, os.fsdecode(before)))
    # Two of three: a job that was copied alone still has the file that it had, and a run may
    # write to another one by chance.
    signs = (moved in written, not os.path.lexists(name), os.path.lexists(moved))
    return moved if sum(signs) >= 2 else name
