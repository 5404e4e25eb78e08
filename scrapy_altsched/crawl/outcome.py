"""How a job ends, how its dead letters decide that, and what the exit code says of it."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..exit_code import exit_code
from ..frontier.entry import Cause, DeadLetter

if TYPE_CHECKING:
    from scrapy import Spider

    from ..engine.engine import Engine
    from ..errors import AltschedError
    from ..frontier import Counts
    from ..maintenance.requeue import DeadRequest

logger = logging.getLogger(__name__)

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
        return self in (Outcome.FINISHED, Outcome.DEAD_LETTERS)

    @property
    def code(self) -> int:
        """The exit code."""
        return CODES[self]


#: 1 and 2 are Scrapy's own: for failures, and for usage errors.
CODES = {
    Outcome.FINISHED: 0,
    Outcome.DEAD_LETTERS: 3,
    Outcome.BLOCKED: 4,
    Outcome.UNFINISHED: 4,
}


def judge(counts: Counts, unrestorable: int, *, complete: bool) -> Outcome:
    """The outcome of a job; *complete*: the crawl ended by itself, and no request is missing."""
    if not complete or counts.left:
        return Outcome.UNFINISHED
    if unrestorable or (counts.dead and not counts.done):
        return Outcome.BLOCKED
    return Outcome.DEAD_LETTERS if counts.dead else Outcome.FINISHED


class DeadLetters:
    """The dead letters of a job that matter for how it ends, with examples.

    :param stored: those of earlier runs.
    :ivar unrestorable: how many could not be restored; *failed_here*: of these, in this run.
    """

    def __init__(
        self, stored: Iterable[DeadRequest], url_of: Callable[[bytes], str | None]
    ) -> None:
        self._url_of = url_of
        self.unrestorable = self.failed_here = 0
        self._examples: dict[bool, list[str]] = {True: [], False: []}
        for request in stored:
            self.note(request.fingerprint, request.payload, request.why)
        self.failed_here = 0

    def note(self, fingerprint: bytes, payload: bytes, why: DeadLetter) -> None:
        examples = self._examples[failed := why.cause is Cause.UNRESTORABLE]
        self.unrestorable += failed
        self.failed_here += failed
        if len(examples) < _EXAMPLES:
            examples.append(f"{self._url_of(payload) or fingerprint.hex()}: {why}")

    def note_requeued(self, why: DeadLetter) -> None:
        """One of them is pending again."""
        self.unrestorable -= why.cause is Cause.UNRESTORABLE

    @property
    def examples(self) -> str:
        """Some of those that could not be restored, or else of the others: URL and reason."""
        return "; ".join(self._examples[bool(self.unrestorable)])


def close_failed(engine: Engine, spider: Spider, error: AltschedError) -> None:
    """Log *error* with the traceback of its cause, and close the spider; returns before it is."""
    logger.critical(
        "%(error)s The spider is closed (%(reason)s). Start it again with the same command; if that"
        " happens once more, please report it with this traceback.",
        {"error": error, "reason": "frontier_failed"},
        exc_info=error.__cause__,
        extra={"spider": spider},
    )
    close_unfinished(engine, spider, "frontier_failed")


def close_unfinished(engine: Engine, spider: Spider, reason: str) -> None:
    """Close the spider, with the exit code of an unfinished job, whatever the settings say."""
    exit_code.set(Outcome.UNFINISHED.code)
    engine.close_spider(spider, reason)
