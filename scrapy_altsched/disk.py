"""What survives the death of the machine, files that are whole under names on the disk; and locks.

Content and the name of a new file are in memory until they are forced to the disk:
https://man7.org/linux/man-pages/man2/fsync.2.html.  After a sync that failed, the operating system
may have forgotten what it could not write ("Can Applications Recover from fsync Failures?", USENIX
ATC 2020): it has to be written again, or is not safe.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

try:
    import fcntl
except ImportError:  # Windows; CAN_LOCK is asked before it is used
    fcntl = None  # type: ignore[assignment]

#: Whether this operating system has the locks that :func:`lock` takes.
CAN_LOCK = fcntl is not None
_CHUNK = 1024 * 1024  # bytes


def force(descriptor: int) -> None:
    """Force what was written to a file, or the names in a directory, to the disk; blocks.

    :raises OSError: it may not be there, not even if a second call succeeds.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as of pipes
            raise


def force_name(path: Path) -> None:
    """Force the name of an absolute path, and those of its directories, to the disk."""
    for directory in path.parents:
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:  # one that this user may not read, and has made nothing in
            return
        try:
            force(descriptor)
        finally:
            os.close(descriptor)
        if os.path.ismount(directory):
            return


def write_name_again(path: Path) -> None:
    """Have the name of a file written anew, which a process may have failed to force.

    A second sync of a directory writes nothing if nothing has changed in it since.
    """
    try:
        NamedTemporaryFile(prefix=".altsched-", dir=path.parent).close()
    except OSError as error:  # where nothing can be made, no process has made the file
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def lock(descriptor: int) -> bool:
    """Lock an open file, without waiting; ``False``: another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def identify(status: os.stat_result) -> tuple[int, int]:
    """What tells a file or directory from any that is put in its place."""
    return status.st_dev, status.st_ino


def write_again(path: Path, start: int) -> None:
    """Write a file again as it is from *start* on, which a process may have failed to force."""
    with path.open("r+b", buffering=0) as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            file.seek(-len(chunk), os.SEEK_CUR)
            file.write(chunk)
        force(file.fileno())


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file: a crash, or an OSError, leaves the old content or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        force(file.fileno())
    partial.replace(path)
    force_name(path.absolute())


class Overwritten:
    """A small file that this process overwrites in place, also on a full disk.

    Nothing forces it to the disk.  A reader may find parts of two contents.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, content: bytes, at: int = 0) -> None:
        """Write all of it, or all from byte *at* on; OSError: it is as it was, or partly so.

        The first time that is the whole file.
        """
        if self._descriptor is None:
            # A file of this process: that of earlier ones may be in a backup, too, by a hard link.
            partial = self._path.with_name(self._path.name + ".partial")
            partial.write_bytes(content)
            partial.replace(self._path)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._descriptor, content, at)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
