"""How a job ends, and how its dead letters decide that."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..frontier.dead_letter import Cause, DeadLetter

if TYPE_CHECKING:
    from ..frontier import Counts
    from ..maintenance.requeue import DeadRequest

#: Reason for closing a spider if no request can be restored, and after how many.
RESTORE_FAILED = "restore_failed"
HOPELESS = 100
#: How many dead letters are shown by their URLs.
_EXAMPLES = 3


class Outcome(enum.Enum):
    """What a run leaves behind; the values are those of the stat ``altsched/outcome``.

    ===============================================  ==================
    nothing dead                                     finished
    something dead, unless it is one of these:       finished, with a warning
    dead letters, and nothing at all was done        not finished: nothing but start requests
                                                     (or what was fed from outside) was tried
    a request that could not be restored             not finished: the spider's code is at fault
    anything pending, in flight or missing           not finished
    ===============================================  ==================
    """

    FINISHED = "finished"
    DEAD_LETTERS = "finished_with_dead_letters"
    #: Nothing is left to crawl but dead letters that the job cannot do without.
    BLOCKED = "blocked"
    UNFINISHED = "not_finished"

    @property
    def is_finished(self) -> bool:
        """Whether the job counts as finished."""
        return self in (Outcome.FINISHED, Outcome.DEAD_LETTERS)


def judge(counts: Counts, unrestorable: int, *, complete: bool) -> Outcome:
    """The outcome of a job with these counts.

    :param unrestorable: how many of the dead letters could not be restored.
    :param complete: whether the crawl ended by itself, and no request is missing.
    """
    if not complete or counts.left:
        return Outcome.UNFINISHED
    if unrestorable or (counts.dead and not counts.done):
        return Outcome.BLOCKED
    return Outcome.DEAD_LETTERS if counts.dead else Outcome.FINISHED


class DeadLetters:
    """The dead letters of a job that matter for how it ends, with examples.

    :param stored: those of earlier runs.
    :param url_of: the URL of a stored request, if it can be read.
    :ivar unrestorable: how many could not be restored.
    :ivar failed_here: how many of these in this run.
    """

    def __init__(
        self, stored: Iterable[DeadRequest], url_of: Callable[[bytes], str | None]
    ) -> None:
        self._url_of = url_of
        self.unrestorable = 0
        self.failed_here = 0
        self._examples: dict[bool, list[str]] = {True: [], False: []}
        for request in stored:
            self._note(request.fingerprint, request.payload, request.why)

    def note(self, fingerprint: bytes, payload: bytes, why: DeadLetter) -> None:
        """A request became a dead letter in this run."""
        self.failed_here += self._note(fingerprint, payload, why)

    def _note(self, fingerprint: bytes, payload: bytes, why: DeadLetter) -> bool:
        failed = why.cause is Cause.UNRESTORABLE
        self.unrestorable += failed
        examples = self._examples[failed]
        if len(examples) < _EXAMPLES:
            examples.append(f"{self._url_of(payload) or fingerprint.hex()}: {why}")
        return failed

    @property
    def examples(self) -> str:
        """Some of those that could not be restored, or else of the others: URL and reason."""
        return "; ".join(self._examples[bool(self.unrestorable)])
