"""Which start requests earlier runs of an unfinished job accepted, so that this one skips them.

Equal start requests are told apart by counting: the n-th that this run brings is the n-th that an
earlier one brought.  Who accepted an occurrence has claimed it.
"""

from __future__ import annotations

from ..contract import Entry
from ..store.records import encode_claim
from ..store.rows import Rows
from .changes import Changes


class StartClaims:
    """The start requests' occurrences that were claimed, by this run and by earlier ones.

    :param rows: claims that are committed.
    :param changes: claims of this run that are not.
    :param run: number of this run.
    :param skip: whether an occurrence that an earlier run has claimed is skipped.
    """

    def __init__(self, rows: Rows, changes: Changes, run: int, *, skip: bool) -> None:
        self._rows = rows
        self._changes = changes
        self._run = run
        self._skip = skip
        #: Fingerprint -> how many occurrences this run has claimed, if that is more than one:
        #: most start requests differ, and a million of them should not be held in memory.
        self._claimed: dict[bytes, int] = {}

    def skip(self, entry: Entry) -> bool:
        """Whether an earlier run accepted this start request; it is claimed then.

        If not, its occurrence is noted in ``entry.claim``, for :meth:`claim`.

        :raises StoreError: the store could not be read; nothing has changed.
        """
        fingerprint = entry.fingerprint
        occurrence = self._claimed.get(fingerprint, 0)
        claimed_by = self._claimed_by(fingerprint, occurrence)
        if claimed_by == self._run:  # the only one so far
            occurrence += 1
            claimed_by = self._claimed_by(fingerprint, occurrence)
        entry.claim = encode_claim(fingerprint, occurrence)
        if claimed_by is None or not self._skip:
            return False
        self._changes.skips.append(entry.claim)
        self.claim(entry)
        return True

    def claim(self, entry: Entry) -> None:
        """Claim ``entry.claim`` for this run: the start request is accepted, or skipped."""
        assert entry.claim is not None
        self._changes.claims[entry.claim] = self._run
        occurrence = int.from_bytes(entry.claim[-4:], "big")
        if occurrence:
            self._claimed[entry.fingerprint] = occurrence + 1

    def _claimed_by(self, fingerprint: bytes, occurrence: int) -> int | None:
        run = self._changes.claims.get(encode_claim(fingerprint, occurrence))
        return self._rows.claimed(fingerprint, occurrence) if run is None else run
