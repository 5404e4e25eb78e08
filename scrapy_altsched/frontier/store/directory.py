"""A directory that is held open: another one in its place is not mistaken for it.

RocksDB names a file by its path each time it opens, renames or deletes one, also in the background:
once another job's directory has the path, that writes into it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...disk import identify
from ...errors import StoreError
from ..forks import close_in_child

#: https://man7.org/linux/man-pages/man5/proc_pid_fd.5.html
_DESCRIPTORS = Path("/proc/self/fd")


class Directory:
    """A directory that this process holds open, until :meth:`close`; OSError: it cannot be opened.

    :param path: where it is now, absolute; *through*: another path to it, by which it is opened.
    :ivar place: a path that, on Linux, still leads to it when it was moved or replaced.
    """

    def __init__(self, path: Path, through: Path | None = None) -> None:
        self.path = path
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptor: int | None = os.open(through or path, flags)
        self._identity = identify(os.fstat(self._descriptor))
        place = _DESCRIPTORS / str(self._descriptor)
        self.place = place if self._is(place) else path
        close_in_child(self.close)

    def is_in_place(self) -> bool:
        """Whether its path still names it; StoreError: that cannot be told."""
        status = find(self.path)
        return status is not None and identify(status) == self._identity

    def find_moved(self) -> Path | None:
        """Where it was moved to; ``None``: it was not, or that cannot be told."""
        if self.place != self.path:
            with suppress(OSError):
                moved = self.place.readlink()
                if moved != self.path and self._is(moved):
                    return moved
        return None

    def keep(self) -> None:
        """Hold it until the process ends: what cannot be closed needs it."""
        self._descriptor = None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _is(self, path: Path) -> bool:
        with suppress(OSError):
            return identify(path.stat()) == self._identity
        return False


def find(path: Path) -> os.stat_result | None:
    """The status of what is there, if anything is; StoreError: that cannot be told."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise not_reached(path, error) from error


def not_reached(path: Path, error: OSError) -> StoreError:
    """The error for a file that may be there or not, and whose content is unknown."""
    return StoreError(
        f"{path} cannot be reached: {error.strerror or error}. Check that its disk works and"
        " that this user may read it."
    )
