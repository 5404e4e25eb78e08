"""Which start requests earlier runs of an unfinished job accepted, so that this one skips them.

Equal start requests are told apart by counting: the n-th that this run brings is the n-th that an
earlier one brought.  Who accepted an occurrence has claimed it.
"""

from __future__ import annotations

from ..store.records import encode_claim
from ..store.rows import Rows
from .uncommitted import Uncommitted


class StartClaims:
    """The start requests' occurrences that were claimed, by this run and by earlier ones.

    :param rows: claims that are committed.
    :param uncommitted: claims of this run that are not.
    :param run: number of this run.
    :param skip: whether an occurrence that an earlier run has claimed is skipped.
    """

    def __init__(self, rows: Rows, uncommitted: Uncommitted, run: int, *, skip: bool) -> None:
        self._rows = rows
        self._uncommitted = uncommitted
        self._run = run
        self._skip = skip
        #: Fingerprint -> how many occurrences this run has claimed, if that is more than one:
        #: most start requests differ, and a million of them should not be held in memory.
        self._claimed: dict[bytes, int] = {}

    def claim(self, fingerprint: bytes) -> tuple[bytes, bool]:
        """Which occurrence of a start request this one is, and whether it is skipped.

        It is, and is claimed by this run, too, if an earlier run accepted it.  If not, it is to be
        claimed by :meth:`take` once it is accepted.

        :raises StoreError: the store could not be read; nothing has changed.
        """
        occurrence = self._claimed.get(fingerprint, 0)
        claimed_by = self._claimed_by(fingerprint, occurrence)
        if claimed_by == self._run:  # the only one so far
            occurrence += 1
            claimed_by = self._claimed_by(fingerprint, occurrence)
        claim = encode_claim(fingerprint, occurrence)
        if claimed_by is None or not self._skip:
            return claim, False
        self._uncommitted.skip(claim)
        self.take(fingerprint, claim)
        return claim, True

    def take(self, fingerprint: bytes, claim: bytes) -> None:
        """Claim an occurrence for this run: the start request is accepted, or skipped."""
        self._uncommitted.claims[claim] = self._run
        occurrence = int.from_bytes(claim[-4:], "big")
        if occurrence:
            self._claimed[fingerprint] = occurrence + 1

    def _claimed_by(self, fingerprint: bytes, occurrence: int) -> int | None:
        run = self._uncommitted.claims.get(encode_claim(fingerprint, occurrence))
        return self._rows.claimed(fingerprint, occurrence) if run is None else run
