"""What a crawl stores with its queue: states that a later run of the job goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Reads a note of the last commit by its name.
ReadNote = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """A state that commits store and a later run gets back.

    :ivar capture: returns the notes (name -> value) that the next commit is to store.
    :ivar restore: called at opening, with what reads the notes of the last commit.
    :ivar outlives_job: whether the run after a finished job gets it back, too.
    :ivar note_commit: called when a commit has stored the notes that were captured last.
    :ivar note_closing: called before the last commit of a run.
    """

    capture: Callable[[], Mapping[str, bytes]]
    restore: Callable[[ReadNote], object] = bool
    outlives_job: bool = False
    note_commit: Callable[[], object] = bool
    note_closing: Callable[[], object] = bool


class ResumeStates:
    """The states of one run; *resumed*: earlier ones ended before the job was finished."""

    def __init__(self, read: ReadNote, *, resumed: bool) -> None:
        self._read, self._resumed = read, resumed
        self._states: list[ResumeState] = []

    def add(self, state: ResumeState) -> None:
        if self._resumed or state.outlives_job:
            state.restore(self._read)
        self._states.append(state)

    def capture(self) -> dict[str, bytes]:
        return {name: note for it in self._states for name, note in it.capture().items()}

    def note_commit(self) -> None:
        for state in self._states:
            state.note_commit()

    def note_closing(self) -> None:
        for state in self._states:
            state.note_closing()
