"""Locks on feed files: only one crawl at a time writes to a file.

A resume cuts a torn row after where its file ended at the last commit: with the rows of another
crawl in the same file, it could cut one that the other is writing, and ``-O`` would delete them
all.  So a crawl that has a job locks the files of its feeds at its start, before it changes any.

A crawl without a job cuts and continues no file, so it locks none and may append to a locked one,
as Scrapy has always let it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..disk import CAN_LOCK, identify, lock
from ..errors import FeedLockedError
from ..frontier.forks import close_in_child
from ..frontier.store.holder import is_alive
from ..worker import PARAMETER
from .configured import read_feeds

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


def check_files(files: Sequence[Path], settings: BaseSettings, spider: Spider) -> None:
    """Raise FeedLockedError if another crawl writes to *files* now; JobFeeds locks them."""
    locks = FeedLocks(spider, settings)
    try:
        for path in files:
            locks.take(path, create=False)
    finally:
        locks.give_back()


@dataclass(slots=True)
class _Lock:
    """A file that this crawl has locked, by a descriptor of its own.

    :ivar is_new: whether the file was created to be locked, and no feed has opened it.
    :ivar users: the feeds that have it open, and ``None`` for the job.
    """

    descriptor: int
    path: Path
    is_new: bool
    users: set[object] = field(default_factory=set)


class FeedLocks:
    """The feed files that a crawl has locked."""

    def __init__(self, spider: Spider, settings: BaseSettings) -> None:
        self._spider, self._settings = spider, settings
        #: Device and inode of each file, by whatever path it is named -> its lock.
        self._locks: dict[tuple[int, int], _Lock] = {}
        self._warned = False
        close_in_child(self._close_all)

    def take(self, path: Path, feed: object = None, *, create: bool = True) -> None:
        """Lock a file, unless it cannot be opened now, or is no regular one, such as a pipe.

        :param feed: what is about to open it; ``None``: the job, which does not.
        :param create: whether to create the file if it is not there: without a file, nothing keeps
            a crawl that starts at the same time from it.
        :raises FeedLockedError: another crawl has locked it.
        """
        held = self._lock(Path(os.path.realpath(path)), create=create)
        if held is not None:
            held.users.add(feed)
            held.is_new &= feed is None

    def give_back(self, feed: object = None) -> None:
        """Unlock all files that *feed*, or the job, has taken, and no other has.

        A file that was created to be locked, and that no feed has opened, is deleted.
        """
        for identity, held in list(self._locks.items()):
            held.users.discard(feed)
            if held.users:
                continue
            del self._locks[identity]
            with suppress(OSError):
                status = held.path.stat()
                if held.is_new and not status.st_size and identify(status) == identity:
                    held.path.unlink()
            os.close(held.descriptor)

    def _lock(self, path: Path, *, create: bool) -> _Lock | None:
        while CAN_LOCK and (opened := _open(path, create=create)):
            descriptor, is_new = opened
            with ExitStack() as stack:
                stack.callback(os.close, descriptor)
                identity = identify(os.fstat(descriptor))
                if identity in self._locks:
                    return self._locks[identity]
                try:
                    is_locked = lock(descriptor)
                except OSError as error:
                    self._warn(path, error)
                    return None
                if not is_locked:
                    raise FeedLockedError(self._describe(path, identity))
                # Else the crawl that had it has just deleted it, as it had not used it.
                with suppress(OSError):
                    if identify(path.stat()) == identity:
                        stack.pop_all()
                        return self._locks.setdefault(identity, _Lock(descriptor, path, is_new))
        return None

    def _close_all(self) -> None:
        locks, self._locks = self._locks, {}
        for held in locks.values():
            os.close(held.descriptor)

    def _describe(self, path: Path, identity: tuple[int, int]) -> str:
        process = f" (process {pid})" if (pid := _find_holder(identity)) else ""
        remedy = (
            f"Give each worker a file of its own, with %({PARAMETER})s in the feed's path (such as"
            f" items-%({PARAMETER})s.jsonl)"
        )
        if any(f"%({PARAMETER})" in uri for uri, _ in read_feeds(self._settings)):
            remedy = "Give each worker a name of its own with the setting ALTSCHED_SHARED_WORKER"
        return (
            f"The feed {path} is in use by another crawl{process}. {remedy}, or wait for the other"
            " crawl to end."
        )

    def _warn(self, path: Path, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "The feed %s cannot be locked (%s), so that two crawls could write to it. Make sure"
                " that no other crawl does.",
                path,
                error.strerror or error,
                extra={"spider": self._spider},
            )


def _open(path: Path, *, create: bool) -> tuple[int, bool] | None:
    """A descriptor of a regular file, and whether it was created; ``None``: there is none."""
    flags = os.O_WRONLY | os.O_CLOEXEC  # NFS wants it for an exclusive lock
    with suppress(OSError):  # the feed cannot write to it either, and says so
        try:
            # To open a pipe would wait for its reader.
            return (os.open(path, flags), False) if stat.S_ISREG(path.stat().st_mode) else None
        except FileNotFoundError:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                return os.open(path, flags | os.O_CREAT, 0o666), True
    return None


def _find_holder(identity: tuple[int, int]) -> int | None:
    """The process that has locked a file, if the operating system tells.

    https://man7.org/linux/man-pages/man5/proc_locks.5.html
    """
    device, inode = identity
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [name]:
                # Not if it has ended and a child holds the lock, nor if it is in another container.
                return pid if (pid := int(words[4])) > 0 and is_alive(pid) else None
    return None
