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
from ..inflection import inflect
from ..signals import frontier_committing
from .configured import Rows, identify, names_worker, read_feeds
from .feed_file import FeedFile
from .locks import FeedLocks
from .moved import follow
from .open_files import OpenFiles
from .rows import cut_torn_row, find_zeros

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
#: Why the spider is closed if another crawl has the file of a feed that opens now.
FEED_LOCKED = "feed_locked"


class JobFeeds:
    """The feeds of a job: the files that are open, and its notes about them.

    :param note: a note of the job's last commit, by its name.
    :param jobdir: the job directory, absolute; ``None``: there is none, as with some workers.
    :param resumed: whether earlier runs left the job unfinished.
    :param sync: whether files are forced to the disk before each commit.
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
        self._crawler = crawler
        self._signals = crawler.signals
        self._spider = spider
        self._is_open = False
        feeds = {
            identify(uri): str(options["format"]) for uri, options in read_feeds(crawler.settings)
        }
        self.locks = FeedLocks(spider, by_worker=names_worker(crawler.settings))
        noted = note(JOBDIR)
        self._jobdir = jobdir
        self._jobdir_before = None if noted is None else Path(os.fsdecode(noted))
        before: dict[str, str] = json.loads(note(FEEDS) or b"{}") if resumed else {}
        before = {self._follow(name, feeds): kind for name, kind in before.items()}
        sizes = note(FILES) if resumed else None
        #: Whether every file that may have a torn row of this job is in its notes.
        self.is_complete = not resumed or sizes is not None
        self._missing = sorted(before.keys() - feeds.keys())
        self._sizes: dict[str, Any] = json.loads(sizes or b"{}")
        # Encoded only when it has changed: some commits hold one request.
        self._notes = {FEEDS: json.dumps({**before, **feeds}, sort_keys=True).encode()}
        if jobdir is not None:
            self._notes[JOBDIR] = os.fsencode(jobdir)
        if self.is_complete:
            self._notes[FILES] = b"{}"
        boot = note(BOOT) if resumed else None
        #: Whether the machine went down before its disk had all rows.
        self._lost_power = bool(boot) and boot != boot_id().encode()
        self._noted_sizes: dict[FeedFile, tuple[int, Rows]] = {}

    def open(self, files: Sequence[Path]) -> None:
        """Repair what a dying process left in the files, warn of missing feeds, and serve commits.

        Only what was written after the last commit is searched for a torn row.

        :param files: those that the feeds will write to, as far as they are known.  They are locked
            until :meth:`release`, and so are those that earlier runs wrote to.
        :raises FeedLockedError: another crawl writes to one of them; none was changed.
        :raises JobdirError: a file cannot be repaired.
        """
        written = [str(path) for path in files]
        self._sizes = {self._follow(name, written): size for name, size in self._sizes.items()}
        for path in (*map(Path, self._sizes), *files):
            self.locks.claim(path, create=False)
        for name, (size, rows) in self._sizes.items():
            try:
                self._repair(Path(name), size, rows)
            except OSError as error:
                raise JobdirError(
                    f"The feed {name} of this job cannot be opened to check whether its last row is"
                    f" whole ({error.strerror or error}). Check that this user may read and write"
                    " it, or move it away, and run the same command again."
                ) from error
        for path in files:
            self.locks.claim(path, create=True)
        self._is_open = True
        self._signals.connect(self.files.write_out, frontier_committing)
        if self._missing:
            logger.warning(
                "Earlier runs of this job wrote to feeds that this run does not have: %(feeds)s."
                " The items of this run will not be in them. Stop it (press Ctrl-C once) and run"
                " the same command as before, with -o or FEEDS.",
                {"feeds": ", ".join(self._missing)},
                extra={"spider": self._spider},
            )

    def _follow(self, name: str, written: Collection[str]) -> str:
        return follow(name, self._jobdir_before, self._jobdir, written)

    def _repair(self, path: Path, size: int, rows: str) -> None:
        found = path.stat().st_size if path.exists() else None
        if self._lost_power and found:
            with path.open("rb") as file:
                zeros = find_zeros(file)
            if zeros is not None and zeros < size:
                logger.warning(
                    "The feed %(path)s has zeros instead of rows at byte %(at)d: a power cut took"
                    " what was not on the disk. Items of pages that are done may be missing in it."
                    " Remove the torn rows; ALTSCHED_SYNC prevents this.",
                    {"path": path, "at": zeros},
                    extra={"spider": self._spider},
                )
        if (found or 0) < size:
            logger.warning(
                "The feed %(path)s %(found)s, but had %(size)d at the last commit of this job:"
                " it was changed or moved, its disk is not mounted, or a power cut took its end."
                " Items of pages that are done may be missing in it.",
                {
                    "path": path,
                    "found": "has 0 bytes (the file is gone)"
                    if found is None
                    else f"has {found} bytes",
                    "size": size,
                },
                extra={"spider": self._spider},
            )
        elif found:
            cut = cut_torn_row(path, quoted=rows == "csv", floor=size)
            report_cut(path, cut, self._spider)
            # The next commit forgets up to where the file was known.
            write_again(path, size)

    def close(self) -> None:
        """The job is closed: nothing waits for the files any longer."""
        self._is_open = False
        self._signals.disconnect(self.files.write_out, frontier_committing)
        self.files.close()

    def release(self) -> None:
        """Let other crawls have the files, except those that are still open.  May be called twice.

        To be called when no feed opens any longer, which may be after :meth:`close`.
        """
        self.locks.release()

    def refuse(self, error: FeedLockedError) -> None:
        """Close the spider, as another crawl has the file of a feed that was not known before."""
        logger.critical("%s", error, extra={"spider": self._spider})
        if self._is_open:
            Engine(self._crawler).close_spider(self._spider, FEED_LOCKED)

    def notes(self) -> dict[str, bytes]:
        """What a commit is to store: nothing about closed files, which are complete."""
        sizes = self.files.sizes()
        if sizes != self._noted_sizes:
            self._noted_sizes = sizes
            self._notes[FILES] = json.dumps(
                {file.name: value for file, value in sizes.items()}
            ).encode()
        self._notes[BOOT] = b"" if self.files.are_forced else boot_id().encode()
        return self._notes


def report_cut(path: Path, cut: int, spider: Spider) -> None:
    """Log that *cut* bytes of a torn row were cut, if any were."""
    if cut:
        logger.info(
            "%(count)d %(bytes)s of a torn last row in %(path)s: cut, its page is crawled again",
            {"count": cut, "bytes": inflect(cut, "byte"), "path": path},
            extra={"spider": spider},
        )
