"""Locks on feed files: only one crawl at a time writes to a file.

A job knows how long its file was at its last commit, and a resume cuts a torn row after that: with
the rows of another crawl in the same file, it could cut one that the other is writing, and ``-O``
would delete them all.  So a crawl that has a job locks the files of its feeds at its start, before
it changes any, and is refused if another one has them.

A crawl without a job locks nothing: it cuts and continues no file, and Scrapy has always let such
crawls append to one.  It is not kept from a locked file either, as Scrapy's own storage is not: the
lock is advisory.

The lock is held by a descriptor of its own.  It lasts while the file is opened, closed and opened
again, as by two feeds that write to one file; a forked child closes it without touching the file.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..disk import identify
from ..errors import FeedLockedError
from ..frontier.forks import close_in_child
from ..worker import PARAMETER

try:
    import fcntl
except ImportError:  # Windows, where there is no job either
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

_LOCKS = Path("/proc/locks")
#: What tells one file from all others, by whatever path it is named: device and inode.
_Identity = tuple[int, int]


@dataclass(slots=True)
class _Lock:
    """A file that this crawl has locked.

    :ivar is_new: whether the file was created to be locked, and no feed has opened it.
    :ivar is_claimed: whether it stays locked while no feed has it open.
    :ivar feeds: how many feeds have it open.
    """

    descriptor: int
    path: Path
    is_new: bool
    is_claimed: bool = False
    feeds: int = 0


class FeedLocks:
    """The feed files that a crawl has locked.

    :param by_worker: whether the name of the worker is in the path of a feed already.
    """

    def __init__(self, spider: Spider, *, by_worker: bool) -> None:
        self._spider = spider
        self._by_worker = by_worker
        self._locks: dict[_Identity, _Lock] = {}
        self._warned = False
        close_in_child(self._close_all)

    def claim(self, path: Path, *, create: bool) -> None:
        """Lock a file until :meth:`release`, whether or not a feed has it open.

        :param create: whether to create the file if it is not there: without a file, nothing keeps
            a crawl that starts at the same time from it.
        :raises FeedLockedError: another crawl has locked it.
        """
        lock = self._take(path, create=create)
        if lock is not None:
            lock.is_claimed = True

    def open(self, path: Path) -> Callable[[], None] | None:
        """Lock a file for a feed that is about to open it.

        :return: to be called once when the feed has closed the file; ``None``: it is not locked, as
            it cannot be opened now, is no regular file, or is where there are no locks.
        :raises FeedLockedError: another crawl has locked it.
        """
        lock = self._take(path, create=True)
        if lock is None:
            return None
        lock.is_new = False
        lock.feeds += 1

        def give_back() -> None:
            lock.feeds -= 1
            self._unlock_unused(lock)

        return give_back

    def release(self) -> None:
        """Unlock all files but those that a feed has open.  May be called twice.

        A file that was created to be locked, and that no feed has opened, is deleted.
        """
        for lock in list(self._locks.values()):
            lock.is_claimed = False
            self._unlock_unused(lock)

    def _take(self, path: Path, *, create: bool) -> _Lock | None:
        path = Path(os.path.realpath(path))
        while fcntl is not None:
            try:
                opened = _open(path, create=create)
            except OSError:
                # The feed will not be able to write to it either, and says so.
                return None
            if opened is None:
                return None
            descriptor, is_new = opened
            identity = identify(os.fstat(descriptor))
            held = self._locks.get(identity)
            if held is not None:
                os.close(descriptor)
                return held
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise FeedLockedError(self._describe(path, identity)) from error
                self._warn(path, error)
                return None
            with suppress(OSError):
                if identify(path.stat()) == identity:
                    lock = self._locks[identity] = _Lock(descriptor, path, is_new)
                    return lock
            # The crawl that had it has just deleted it, as it had not used it.
            os.close(descriptor)
        return None

    def _unlock_unused(self, lock: _Lock) -> None:
        identity = next((key for key, held in self._locks.items() if held is lock), None)
        if identity is None or lock.is_claimed or lock.feeds:
            return
        del self._locks[identity]
        with suppress(OSError):
            status = lock.path.stat()
            if lock.is_new and not status.st_size and identify(status) == identity:
                lock.path.unlink()
        os.close(lock.descriptor)

    def _close_all(self) -> None:
        locks, self._locks = self._locks, {}
        for lock in locks.values():
            os.close(lock.descriptor)

    def _describe(self, path: Path, identity: _Identity) -> str:
        pid = _find_holder(identity)
        process = f" (process {pid})" if pid is not None else ""
        if self._by_worker:
            remedy = "Give each worker a name of its own with the setting ALTSCHED_SHARED_WORKER"
        else:
            remedy = (
                f"Give each worker a file of its own, with %({PARAMETER})s in the feed's path (such"
                f" as items-%({PARAMETER})s.jsonl)"
            )
        return (
            f"The feed {path} is in use by another crawl{process}. {remedy}, or wait for the other"
            " crawl to end."
        )

    def _warn(self, path: Path, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "The feed %(path)s cannot be locked (%(error)s), so that two crawls could write to"
                " it. Make sure that no other crawl does.",
                {"path": path, "error": error.strerror or error},
                extra={"spider": self._spider},
            )


def _open(path: Path, *, create: bool) -> tuple[int, bool] | None:
    """A descriptor of a regular file, and whether it was created; ``None``: there is no such file.

    It is open for writing, which NFS wants for an exclusive lock.

    :raises OSError: the file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        # To open a pipe would wait for its reader.
        return (os.open(path, flags), False) if stat.S_ISREG(path.stat().st_mode) else None
    except FileNotFoundError:
        if not create:
            return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, flags | os.O_CREAT, 0o666), True


def _find_holder(identity: _Identity) -> int | None:
    """The process that has locked a file; ``None``: the operating system does not tell.

    https://man7.org/linux/man-pages/man5/proc_locks.5.html
    """
    device, inode = identity
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    with suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [name]:
                # Not if it has ended and a child holds the lock, nor if it is in another container.
                return pid if (pid := int(words[4])) > 0 and _is_alive(pid) else None
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
