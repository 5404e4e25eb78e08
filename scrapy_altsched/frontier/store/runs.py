"""Which components each run of a job had, and whether it ended cleanly.

What was seen can be believed after a death only where the queue and the seen set are stored in one
step.  Where either is another package's, a fingerprint may have been stored of a lost request.

- A seen set of ours under another *scheduler*: each of its rows, a mark, has the number of its run,
  and can be taken back when that scheduler's requests are imported.
- A queue of ours beside another *filter*: what that has a record of cannot be taken back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from .records import DAMAGE, ORPHANS, add_damage, describe_orphans
from .rows import Rows
from .seen import encode_run, run_of

_RUN = "run:"
_SETTLED = "runs settled"
#: How the names of all notes about runs begin.
NOTES = (_RUN, _SETTLED)


@dataclass(frozen=True, slots=True)
class Components:
    """The classes that kept the queue and what was seen in a run; ``None``: this package's."""

    scheduler: str | None = None
    dupefilter: str | None = None


SCRAPY_ALTSCHED = Components()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, and whether it ended cleanly, with everything committed."""

    number: int
    components: Components
    ended: bool = False

    def note(self) -> dict[str, bytes]:
        content = {**asdict(self.components), "ended": self.ended}
        return {f"{_RUN}{self.number:010}": json.dumps(content).encode()}

    @property
    def seen_value(self) -> bytes:
        """The value of the rows of what it has seen: its number if they have no queue of ours."""
        return encode_run(0 if self.components.scheduler is None else self.number)


class Runs:
    """The runs of a job of which it is not settled what to believe.

    :ivar by_filter: of our filter under another scheduler; *beside_filter*: the reverse.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._counters = rows.counters()
        self._settled = int(rows.note(_SETTLED) or 0)
        known = []
        for name, note in rows.notes(_RUN).items():
            content = json.loads(note)
            components = Components(content["scheduler"], content["dupefilter"])
            known.append(Run(int(name[len(_RUN) :]), components, content["ended"]))
        others = [run for run in known if run.components != SCRAPY_ALTSCHED]
        unsettled = [run for run in others if run.number > self._settled]
        self.by_filter = [run for run in unsettled if run.components.scheduler is not None]
        self.beside_filter = [run for run in unsettled if run.components.scheduler is None]
        #: Whether only an earlier version's filter has opened this store.
        self._is_unknown = (
            not self._settled
            and not self._counters.accepted
            and len(known) < self._counters.run
            and next(rows.seen(), None) is not None
        )

    @property
    def has_marks(self) -> bool:
        """Whether rows of the seen set, the marks, may rest on another scheduler's queue."""
        return bool(self.by_filter) or self._is_unknown

    def marks(self) -> Iterator[bytes]:
        """Keys of such rows."""
        for key, value in self._rows.seen():
            if self._is_unknown or run_of(value) > self._settled:
                yield key

    def settle(self) -> dict[str, bytes]:
        """To be noted when it is decided what to believe of all runs until now."""
        return {_SETTLED: str(self._counters.run).encode()}


def begin(run: Run, rows: Rows) -> dict[str, bytes]:
    """What is to be noted when *run* begins.

    The job lacks requests if an earlier one beside another filter died, and that filter goes on: it
    refuses what it had a record of.
    """
    notes, runs = {**run.note(), ORPHANS: b"0"}, Runs(rows)
    damage = rows.note(DAMAGE) or b""
    died = [earlier for earlier in runs.beside_filter if not earlier.ended]
    if died and run.components.dupefilter is not None:
        damage = add_damage(
            damage,
            f"run {died[-1].number} died, and {died[-1].components.dupefilter}, its"
            " DUPEFILTER_CLASS, may have a record of requests that were lost.",
        )
        notes.update(runs.settle())
    if orphans := describe_orphans(rows.counters(), rows.note(ORPHANS)):
        damage = add_damage(damage, orphans)
    return {**notes, DAMAGE: damage}
