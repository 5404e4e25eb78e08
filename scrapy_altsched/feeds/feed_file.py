"""A feed's file that keeps in memory what a full disk did not take."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..disk import force, force_name, identify, write_name_again

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER = 64 * 1024  # bytes


class FeedFile(io.BufferedIOBase):
    """A binary file to be written, whose :meth:`write` and :meth:`flush` never fail.

    Python's own drops what it is given while its buffer cannot be flushed, and an exporter would
    lose that item.  Here it stays in memory: :meth:`write_out`, called before each commit,
    raises and so postpones the commit, until the disk takes it.

    What could not be forced to the disk is written again before the next try (see :mod:`..disk`).

    :param path: absolute.
    :param open_raw: opens the file without a buffer; called again if it raises OSError.
    :param closed: called when the file was closed, however that went.
    :ivar unwritten: what is in memory only.
    :ivar lost: why the disk may lack what was written and cannot be written again.
    :ivar is_incomplete: whether it was deleted or replaced, and cannot be written from its start.
    :ivar keeps_unforced: whether what the disk may not have is kept: it will be forced often.
    :ivar is_held: whether :meth:`flush` leaves everything in memory.
    """

    mode = "ab"
    is_incomplete = keeps_unforced = is_held = False

    def __init__(
        self, path: Path, open_raw: Callable[[], io.RawIOBase], closed: Callable[[], object] = bool
    ) -> None:
        self.path, self.name = path, str(path)
        self._open_raw, self._note_closed = open_raw, closed
        self._raw: io.RawIOBase | None = None
        self._identity = (0, 0)
        self.unwritten = bytearray()
        self._flush_at = _BUFFER
        #: What was written since the disk had everything, if it is kept.
        self._unforced = bytearray()
        self._is_forced = True
        #: Whether the disk has the name of the file.
        self._has_name = False
        self.lost: OSError | None = None

    def open(self) -> io.RawIOBase:
        """The open file, without a buffer; raises OSError if it cannot be opened now."""
        if self._raw is None:
            self._raw = self._open_raw()
            self._identity = identify(os.fstat(self._raw.fileno()))
        return self._raw

    def is_gone(self) -> bool:
        """Whether its path does not name the open file any more: it was deleted or replaced."""
        try:
            return self._raw is not None and identify(self.path.stat()) != self._identity
        except FileNotFoundError:
            return True
        except OSError:  # it may still be there
            return False

    def reopen(self) -> None:
        """Close the file, and open the one that its path names before the next write."""
        if self._raw is not None:
            with self._raw, suppress(OSError):  # where it was moved to, it is kept
                force(self._raw.fileno())
            self._raw = None
        self._note_closed()
        self._unforced.clear()
        self._is_forced, self._has_name, self.lost = True, False, None

    def write(self, data: Buffer) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        taken = memoryview(data).nbytes
        self.unwritten += data
        if len(self.unwritten) >= self._flush_at:
            self.flush()
            # What is left is retried before the next commit, and not at each item.
            self._flush_at = len(self.unwritten) + _BUFFER
        return taken

    def flush(self) -> None:
        if not self.is_held:
            with suppress(OSError):
                self.write_out()

    def write_out(self, *, sync: bool = False) -> None:
        """Hand everything to the operating system; with *sync*, force it to the disk.

        :raises OSError: not everything was taken: all of it is kept, and the file as it was.  Or it
            could not be forced: what is not kept may be lost, and each further sync fails, too.
        """
        raw = self.open()
        written = 0
        try:
            with memoryview(self.unwritten) as unwritten:
                while written < len(unwritten):
                    written += raw.write(unwritten[written:]) or 0
        except OSError:
            try:
                _cut(raw, written)  # lest a part of a row stays in the file
            except OSError:  # a pipe
                del self.unwritten[:written]
            raise
        if self.unwritten:
            self._is_forced = False
            if self.keeps_unforced:
                self._unforced += self.unwritten
        self.unwritten.clear()
        self._flush_at = _BUFFER
        if sync:
            self._force(raw)

    def force(self) -> None:
        """Force what the file has, also from earlier processes; raises as :meth:`write_out`."""
        raw = self.open()
        if not self._has_name:
            self._is_forced = False
            write_name_again(self.path)
        self._force(raw)

    def _force(self, raw: io.RawIOBase) -> None:
        if self.lost is not None:
            raise self.lost
        try:
            if not self._is_forced:
                force(raw.fileno())
                self._is_forced = True
                self._unforced.clear()
            if not self._has_name:
                force_name(self.path)
                self._has_name = True
        except OSError as error:
            self.lost = error
            if self._unforced and not self._is_forced:
                _cut(raw, len(self._unforced))
                self.unwritten, self._unforced = self._unforced, bytearray()
                self.lost = None
            raise

    def close(self, *, sync: bool = False) -> None:
        """Write what is left, and close, even if that raises OSError."""
        if self.closed:
            return
        try:
            self.write_out(sync=sync)
        finally:
            self.unwritten.clear()
            super().close()
            if self._raw is not None:
                self._raw.close()
            self._note_closed()

    def fileno(self) -> int:
        return self.open().fileno()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:  # it has a position, though that cannot be changed
        return True

    @property
    def size(self) -> int:
        """Bytes of the file as it is; none of those on a disk that does not respond."""
        with suppress(OSError):
            status = self.path.stat() if self._raw is None else os.fstat(self._raw.fileno())
            return status.st_size
        return 0

    def tell(self) -> int:
        """Bytes of the file once all is written."""
        return self.size + len(self.unwritten)


def _cut(raw: io.RawIOBase, count: int) -> None:
    if count:
        raw.truncate(os.fstat(raw.fileno()).st_size - count)
        raw.seek(0, os.SEEK_END)
