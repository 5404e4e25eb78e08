"""Why a request is a dead letter: a cause that is asked for, and a text that is read."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cause(enum.IntEnum):
    """What made a dead letter of a request; the numbers are stored."""

    #: Whatever else: it ends the process, or has no fingerprint.  The job can be finished.
    OTHER = 1
    #: The spider's code cannot restore it.  The job is not finished without it.
    UNRESTORABLE = 2
    #: As before, and the operator does without it.
    GIVEN_UP = 3


#: Cause -> how the sentence begins in which a dead letter is told, and kept on a server.
_PREFIXES = {
    Cause.UNRESTORABLE: "it cannot be restored: ",
    Cause.GIVEN_UP: "given up, since it cannot be restored: ",
    Cause.OTHER: "",
}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a request is a dead letter.

    :ivar text: a clause; without what the cause says already.
    """

    text: str
    cause: Cause = Cause.OTHER

    def __str__(self) -> str:
        return _PREFIXES[self.cause] + self.text

    @classmethod
    def parse(cls, text: str) -> DeadLetter:
        """The inverse of ``str()``: the form of job format 2, and of shared crawls."""
        cause = next(cause for cause, prefix in _PREFIXES.items() if text.startswith(prefix))
        return cls(text.removeprefix(_PREFIXES[cause]), cause)
