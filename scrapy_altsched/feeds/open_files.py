"""The feed files of a job, from their opening until all their rows are in them.

Scrapy's exporter forgets the file of a batch as soon as it is full.  If its disk is full, too,
nothing else knows that pages have rows which are not written yet.
"""

from __future__ import annotations

import logging
from errno import ENOENT
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from ..errors import CommitPostponedError
from .feed_file import FeedFile
from .rows import Rows

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)


class OpenFiles:
    """Keeps each feed file of a job until it is written and closed.

    :ivar sync: whether files are forced to the disk before each commit.
    """

    def __init__(self, spider: Spider, *, sync: bool) -> None:
        self._spider = spider
        self.sync = sync
        self._files: dict[FeedFile, Rows | None] = {}
        #: Files that are full and could not be written yet -> what fires when they are.
        self._stored: dict[FeedFile, Deferred[None]] = {}
        #: Files whose rows the last commit waited for in vain.
        self._unsaved: set[FeedFile] = set()
        #: Files that were deleted or replaced, and of which no part can be written again.
        self._gone: set[FeedFile] = set()
        self._closed = False

    def add(self, file: FeedFile, rows: Rows | None) -> None:
        """Keep *file*, which consists of *rows*, and open it as soon as possible."""
        self._files[file] = rows
        if self.sync:
            file.keep_unforced()
        file.flush()

    def sizes(self) -> dict[str, tuple[int, Rows]]:
        """The files whose rows can be told apart: bytes once all is written, and kind of rows."""
        return {file.name: (file.tell(), rows) for file, rows in self._files.items() if rows}

    def force(self) -> None:
        """Force all rows to the disk from now on: the job ends.

        :raises CommitPostponedError: as of :meth:`write_out`.
        """
        self.sync = True
        self.write_out()

    def write_out(self) -> None:
        """Write all rows to their files; a handler of ``frontier_committing``.

        :raises CommitPostponedError: some are not; they stay in memory.
        """
        failed: list[tuple[FeedFile, OSError]] = []
        written: list[FeedFile] = []
        for file in self._files:
            self._notice_gone(file)
            try:
                file.write_out(sync=self.sync)
            except OSError as error:
                failed.append((file, error))
            else:
                written.append(file)
        for file in self._stored.keys() & written:
            self._end(file)
        if not failed:
            return
        file, first = failed[0]
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

    def store(self, file: FeedFile) -> Deferred[None] | None:
        """Close *file* as soon as the disk has all of it; a deferred for that, if it is not yet.

        :raises OSError: the job is closed, and there is no retry; or the file was deleted.
        """
        self._notice_gone(file)
        if not self._closed:
            try:
                # Nothing forces it later, when it is closed.
                file.write_out(sync=True)
            except OSError:
                return self._stored.setdefault(file, Deferred())
        self._close(file)
        if file in self._gone:
            self._gone.remove(file)
            raise FileNotFoundError(ENOENT, "It was deleted, moved or replaced", file.name)
        return None

    def close(self) -> None:
        """The job is closed and no commit waits for a file: try once more, and log failures."""
        self._closed = True
        self._unsaved = {file for file in self._files if file.unwritten}
        for file in list(self._stored):
            self._end(file)

    def _notice_gone(self, file: FeedFile) -> None:
        """Have rows written to a new file if the one that they went to was deleted or replaced."""
        if file in self._gone or not file.is_gone():
            return
        rows = self._files.get(file)
        then = "What is still to be written goes with it."
        if rows is None:
            self._gone.add(file)  # the rest alone makes no whole file
        else:
            header = ", without a header line" if rows == "csv" else ""
            then = f"From now on, they go to a new file of that name{header}."
        logger.error(
            "The feed %s was deleted, moved or replaced while this crawl was writing to it."
            " The %d bytes of items that it had by then are missing there, and their pages"
            " are not crawled again. %s",
            file.name,
            file.tell() - len(file.unwritten),
            then,
            extra={"spider": self._spider},
        )
        if rows is not None:
            file.reopen()

    def _end(self, file: FeedFile) -> None:
        stored = self._stored.pop(file)
        try:
            self._close(file)
        except OSError as error:
            stored.errback(error)
        else:
            stored.callback(None)

    def _close(self, file: FeedFile) -> None:
        rows = self._files.pop(file, None)
        left = len(file.unwritten)
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
            logger.critical(
                "The last %s of the feed %s could not be written (%s). %s",
                f"{left} bytes" if left else "rows",
                file.name,
                error.strerror or error,
                then,
                extra={"spider": self._spider},
            )
            raise
