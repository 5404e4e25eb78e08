"""A feed's file that keeps what a full disk did not take."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER = 64 * 1024  # bytes


class FeedFile(io.BufferedIOBase):
    """A binary file to be written, whose :meth:`write` never fails.

    Python's own drops what it is given while its buffer cannot be written out, and an exporter
    would lose that item.  Here it stays in memory: :meth:`flush`, called before each commit, raises
    and so postpones the commit, until the disk takes it.

    :param raw: the file without a buffer.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        self.raw = raw
        self.name = getattr(raw, "name", "")
        self.mode = getattr(raw, "mode", "wb")
        self._unwritten = bytearray()
        self._flush_at = _BUFFER

    def write(self, data: Buffer) -> int:
        """Take *data*, to be written now or later."""
        if self.closed:
            raise ValueError("write to closed file")
        before = len(self._unwritten)
        self._unwritten += data
        taken = len(self._unwritten) - before
        if len(self._unwritten) >= self._flush_at:
            try:
                self.flush()
            except OSError:
                # It is tried again before the next commit, and not at each item.
                self._flush_at = len(self._unwritten) + _BUFFER
        return taken

    def flush(self) -> None:
        """Hand everything to the operating system.

        :raises OSError: it did not take everything; the rest is kept.
        """
        while self._unwritten:
            written = self.raw.write(self._unwritten)
            del self._unwritten[: written or 0]
        self._flush_at = _BUFFER

    def close(self) -> None:
        """Write what is left, and close.

        :raises OSError: it could not be written; the file is closed all the same.
        """
        if self.closed:
            return
        try:
            self.flush()
        finally:
            self._unwritten.clear()
            self.raw.close()
            super().close()

    def fileno(self) -> int:
        """The descriptor."""
        return self.raw.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Whether its position means something."""
        return self.raw.seekable()

    def tell(self) -> int:
        """The position at which the next item will be."""
        return self.raw.tell() + len(self._unwritten)
