"""A feed's file that keeps in memory what a full disk did not take."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..disk import force, force_name, identify

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER = 64 * 1024  # bytes


class FeedFile(io.BufferedIOBase):
    """A binary file to be written, whose :meth:`write` and :meth:`flush` never fail.

    Python's own drops what it is given while its buffer cannot be flushed, and an exporter would
    lose that item.  Here it stays in memory: :meth:`write_out`, called before each commit,
    raises and so postpones the commit, until the disk takes it.

    What could not be forced to the disk is written again before the next try, as the operating
    system may have forgotten it.

    :param path: absolute; identifies the file.
    :param open_raw: opens the file without a buffer, and may raise OSError: it is called again.
    :param closed: called when the file was closed, however that went.
    """

    def __init__(
        self,
        path: Path,
        open_raw: Callable[[], io.RawIOBase],
        closed: Callable[[], object] | None = None,
    ) -> None:
        self.path = path
        self.name = str(path)
        self.mode = "ab"
        self._open_raw = open_raw
        self._note_closed = closed
        self._raw: io.RawIOBase | None = None
        self._identity = (0, 0)
        self._unwritten = bytearray()
        self._flush_at = _BUFFER
        #: What was written since the disk had everything; ``None``: it is not kept.
        self._unforced: bytearray | None = None
        self._is_forced = True
        #: Whether the disk has the name of the file.
        self._has_name = False
        #: Why the disk may lack what cannot be written again.
        self._lost: OSError | None = None

    def keep_unforced(self) -> None:
        """Keep in memory what the disk may not have: it will be forced often."""
        self._unforced = bytearray()

    def open(self) -> io.RawIOBase:
        """The open file, without a buffer.

        :raises OSError: it cannot be opened now.
        """
        if self._raw is None:
            self._raw = self._open_raw()
            self._identity = identify(os.fstat(self._raw.fileno()))
        return self._raw

    @property
    def unwritten(self) -> int:
        """Bytes that are in memory only."""
        return len(self._unwritten)

    @property
    def is_lost(self) -> bool:
        """Whether the disk may lack what was written and cannot be written again."""
        return self._lost is not None

    @property
    def size(self) -> int:
        """Bytes of the file once all is written; without those on a disk that does not respond."""
        size = 0
        with suppress(OSError):
            status = self.path.stat() if self._raw is None else os.fstat(self._raw.fileno())
            size = status.st_size
        return size + len(self._unwritten)

    def is_gone(self) -> bool:
        """Whether its path does not name the open file any more: it was deleted or replaced."""
        if self._raw is None:
            return False
        try:
            return identify(self.path.stat()) != self._identity
        except FileNotFoundError:
            return True
        except OSError:  # it may still be there
            return False

    def reopen(self) -> None:
        """Let go of the open file, and open the one that its path names before the next write."""
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(OSError):  # where it was moved to, it is kept
                force(raw.fileno())
            raw.close()
        if self._note_closed is not None:
            self._note_closed()
        if self._unforced is not None:
            self._unforced.clear()
        self._is_forced, self._has_name, self._lost = True, False, None

    def write(self, data: Buffer) -> int:
        """Accept *data*, to be written now or later."""
        if self.closed:
            raise ValueError("write to closed file")
        before = len(self._unwritten)
        self._unwritten += data
        taken = len(self._unwritten) - before
        if len(self._unwritten) >= self._flush_at:
            self.flush()
            # What is left is retried before the next commit, and not at each item.
            self._flush_at = len(self._unwritten) + _BUFFER
        return taken

    def flush(self) -> None:
        """Hand everything to the operating system if it takes it now; never fails."""
        with suppress(OSError):
            self.write_out()

    def write_out(self, *, sync: bool = False) -> None:
        """Hand everything to the operating system: all of it or nothing.

        :param sync: whether to force it to the disk as well.
        :raises OSError: it did not take everything; all of it is kept, and the file as it was.  Or
            it could not be forced, and what is not kept may be lost: then each further call to
            force it fails, too.
        """
        raw = self.open()
        written = 0
        try:
            with memoryview(self._unwritten) as unwritten:
                while written < len(unwritten):
                    written += raw.write(unwritten[written:]) or 0
        except OSError:
            self._take_back(raw, written)
            raise
        if self._unwritten:
            self._is_forced = False
            if self._unforced is not None:
                self._unforced += self._unwritten
        self._unwritten.clear()
        self._flush_at = _BUFFER
        if sync:
            self._force(raw)

    def _force(self, raw: io.RawIOBase) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            if not self._is_forced:
                force(raw.fileno())
        except OSError as error:
            self._lost = error
            if self._unforced is not None:
                raw.truncate(os.fstat(raw.fileno()).st_size - len(self._unforced))
                raw.seek(0, os.SEEK_END)
                self._unwritten, self._unforced = self._unforced, bytearray()
                self._lost = None
            raise
        self._is_forced = True
        if self._unforced is not None:
            self._unforced.clear()
        try:
            if not self._has_name:
                force_name(self.path)
        except OSError as error:
            self._lost = error
            raise
        self._has_name = True

    def _take_back(self, raw: io.RawIOBase, written: int) -> None:
        """Leave no part of a row in the file: if the process died now, it would stay there."""
        if not written:
            return
        try:
            raw.truncate(os.fstat(raw.fileno()).st_size - written)
            raw.seek(0, os.SEEK_END)
        except OSError:  # a pipe
            del self._unwritten[:written]

    def close(self, *, sync: bool = False) -> None:
        """Write what is left, and close.

        :param sync: whether to force it to the disk as well.
        :raises OSError: it could not be written; the file is closed all the same.
        """
        if self.closed:
            return
        try:
            self.write_out(sync=sync)
        finally:
            self._unwritten.clear()
            super().close()
            if self._raw is not None:
                self._raw.close()
            if self._note_closed is not None:
                self._note_closed()

    def fileno(self) -> int:
        """The descriptor.

        :raises OSError: the file cannot be opened now.
        """
        return self.open().fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always: it has a position, though that cannot be changed."""
        return True

    def tell(self) -> int:
        """The position at which the next item will be."""
        return self.size
