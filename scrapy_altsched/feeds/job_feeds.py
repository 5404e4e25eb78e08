"""What a job records about its feeds: which it has, and the sizes of their files at each commit."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..disk import write_again
from ..engine.engine import Engine
from ..errors import FeedLockedError, JobdirError
from ..frontier.store.lease_log import boot_id
from ..signals import frontier_committing
from .configured import identify, read_feeds
from .locks import FeedLocks
from .open_files import OpenFiles
from .rows import Rows, cut_torn_row

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Names of the notes in a commit: URI -> format; path -> [bytes, kind of rows]; the path of the job
#: directory when those were noted; and the boot of the machine that may not have forced them to the
#: disk, or nothing.
FEEDS = "feeds"
FILES = "feeds.files"
JOBDIR = "feeds.jobdir"
BOOT = "feeds.boot"


class JobFeeds:
    """The feeds of a job: the files that are open, and its notes about them.

    :param note: a note of the job's last commit, by its name.
    :param jobdir: the job directory, absolute; ``None``: there is none, as with some workers.
    :param resumed: whether earlier runs left the job unfinished.
    :param sync: whether files are forced to the disk before each commit.
    :ivar is_complete: whether every file that may have a torn row of this job is in its notes.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        note: Callable[[str], bytes | None],
        *,
        jobdir: Path | None,
        resumed: bool,
        sync: bool,
    ) -> None:
        self.files = OpenFiles(spider, sync=sync)
        self.locks = FeedLocks(spider, crawler.settings)
        self._crawler = crawler
        self._spider = spider
        self._is_open = False
        self._jobdir = jobdir
        noted = note(JOBDIR)
        self._jobdir_before = None if noted is None else Path(os.fsdecode(noted))
        feeds = {
            identify(uri): str(options["format"]) for uri, options in read_feeds(crawler.settings)
        }
        stored, sizes, boot = (note(name) if resumed else None for name in (FEEDS, FILES, BOOT))
        before = {
            self._follow(name, feeds): kind for name, kind in json.loads(stored or b"{}").items()
        }
        self.is_complete = not resumed or sizes is not None
        self._missing = sorted(before.keys() - feeds.keys())
        self._sizes: dict[str, tuple[int, Rows]] = json.loads(sizes or b"{}")
        # Encoded only when it has changed: some commits hold one request.
        self._notes = {FEEDS: json.dumps({**before, **feeds}, sort_keys=True).encode()}
        if jobdir is not None:
            self._notes[JOBDIR] = os.fsencode(jobdir)
        if self.is_complete:
            self._notes[FILES] = b"{}"
        #: Whether the machine went down before its disk had all rows.
        self._lost_power = bool(boot) and boot != boot_id().encode()
        self._noted_sizes: dict[str, tuple[int, Rows]] = {}

    def open(self, files: Sequence[Path]) -> None:
        """Repair what a dying process left in the files, warn of missing feeds, and serve commits.

        Only what was written after the last commit is searched for a torn row.

        :param files: those that the feeds will write to, as far as they are known.  They are locked
            until :meth:`release`, and so are those that earlier runs wrote to.
        :raises FeedLockedError: another crawl writes to one of them; none was changed.
        :raises JobdirError: a file cannot be repaired.
        """
        written = [str(path) for path in files]
        sizes = {Path(self._follow(name, written)): size for name, size in self._sizes.items()}
        for path in (*sizes, *files):
            self.locks.take(path, create=False)
        for path, (size, rows) in sizes.items():
            try:
                self._repair(path, size, rows)
            except OSError as error:
                raise JobdirError(
                    f"The feed {path} of this job cannot be opened to check whether its last row is"
                    f" whole ({error.strerror or error}). Check that this user may read and write"
                    " it, or move it away, and run the same command again."
                ) from error
        for path in files:
            self.locks.take(path)
        self._is_open = True
        self._crawler.signals.connect(self.files.write_out, frontier_committing)
        if self._missing:
            self._warn(
                "Earlier runs of this job wrote to feeds that this run does not have: %s."
                " The items of this run will not be in them. Stop it (press Ctrl-C once) and run"
                " the same command as before, with -o or FEEDS.",
                ", ".join(self._missing),
            )

    def _warn(self, message: str, *values: Any) -> None:
        logger.warning(message, *values, extra={"spider": self._spider})

    def _follow(self, name: str, written: Collection[str]) -> str:
        """The path of a noted file after the job directory was moved or copied together with it.

        It is looked for in the same place, as seen from the job directory.

        :param name: its absolute path, as noted; or the URI of a feed elsewhere, which stays.
        :param written: the files that this run writes to.
        """
        before, now = self._jobdir_before, self._jobdir
        if before is None or now in (None, before) or not Path(name).is_absolute():
            return name
        moved = os.path.normpath(now / os.path.relpath(name, before))
        if name in written:
            return name
        # Two of three: a job that was copied alone still has the file that it had, and a run may
        # write to another one by chance.
        signs = (moved in written, not os.path.lexists(name), os.path.lexists(moved))
        return moved if sum(signs) >= 2 else name

    def _repair(self, path: Path, size: int, rows: Rows) -> None:
        found = path.stat().st_size if path.exists() else None
        if self._lost_power and found and (zeros := _find_zeros(path, size)) is not None:
            self._warn(
                "The feed %s has zeros instead of rows at byte %d: a power cut took what was not on"
                " the disk. Items of pages that are done may be missing in it. Remove the torn"
                " rows; ALTSCHED_SYNC prevents this.",
                path,
                zeros,
            )
        if (found or 0) < size:
            self._warn(
                "The feed %s has %s, but had %d at the last commit of this job: it was changed or"
                " moved, its disk is not mounted, or a power cut took its end. Items of pages that"
                " are done may be missing in it.",
                path,
                "0 bytes (the file is gone)" if found is None else f"{found} bytes",
                size,
            )
        elif found:
            cut_torn_row(path, rows, self._spider, floor=size)
            # The next commit forgets up to where the file was known.
            write_again(path, size)

    def close(self) -> None:
        """The job is closed: nothing waits for the files any longer."""
        self._is_open = False
        self._crawler.signals.disconnect(self.files.write_out, frontier_committing)
        self.files.close()

    def release(self) -> None:
        """Let other crawls have the files, except those that are still open.  May be called twice.

        To be called when no feed opens any longer, which may be after :meth:`close`.
        """
        self.locks.give_back()

    def refuse(self, error: FeedLockedError) -> None:
        """Close the spider, as another crawl has the file of a feed that was not known before."""
        logger.critical("%s", error, extra={"spider": self._spider})
        if self._is_open:
            Engine(self._crawler).close_spider(self._spider, "feed_locked")

    def notes(self) -> dict[str, bytes]:
        """What a commit is to store: nothing about closed files, which are complete."""
        sizes = self.files.sizes()
        if sizes != self._noted_sizes:
            self._noted_sizes = sizes
            self._notes[FILES] = json.dumps(sizes).encode()
        self._notes[BOOT] = b"" if self.files.sync else boot_id().encode()
        return self._notes


def _find_zeros(path: Path, end: int) -> int | None:
    """Position of the first zero byte before *end*, which no row has; ``None``: none."""
    start = 0
    with path.open("rb") as file:
        while start < end and (chunk := file.read(1024 * 1024)):
            if 0 <= (found := chunk.find(b"\0")) < end - start:
                return start + found
            start += len(chunk)
    return None
