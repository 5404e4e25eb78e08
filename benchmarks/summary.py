"""Medians of many runs, and whether they did the same work."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from .workloads import Outcome


@dataclass
class Summary:
    """The results of one contender in one case.

    :ivar outcomes: of the rounds that succeeded.
    :ivar failure: why others did not; empty if none failed.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    failure: str = ""

    @property
    def figures(self) -> dict[str, float]:
        """The median of each figure."""
        names = self.outcomes[0].figures if self.outcomes else ()
        return {name: median(outcome.figures[name] for outcome in self.outcomes) for name in names}

    @property
    def note(self) -> str:
        """Remarks on the figures."""
        notes = {outcome.note for outcome in self.outcomes if outcome.note}
        return "; ".join(sorted(notes | ({f"failed: {self.failure}"} if self.failure else set())))


#: Workload -> case's title -> contender's name -> its results.
Results = dict[str, dict[str, dict[str, Summary]]]


def disagreements(results: Results) -> list[str]:
    """A sentence for each case in which two runs did not do the same work."""
    found = []
    for workload, cases in results.items():
        done: dict[tuple[str, str], tuple[str, str]] = {}
        for case, summaries in cases.items():
            for contender, summary in summaries.items():
                for outcome in summary.outcomes:
                    for name, work in outcome.work.items():
                        first, expected = done.setdefault((case, name), (contender, work))
                        if work != expected:
                            found.append(
                                f"{workload}, {case}: {contender} did something else ({work}) than"
                                f" {first} ({expected})."
                            )
    return found
