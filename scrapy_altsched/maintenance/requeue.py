"""Dead letters and failed requests: listing them, and making them pending again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from ..errors import CodecError
from ..frontier.contract import Frontier, Locate
from ..frontier.entry import DeadLetter, PageFailure
from ..frontier.local.rework import PORTION
from ..frontier.store.states import (
    DEAD,
    FAILED,
    State,
    decode_failed_key,
    decode_value,
)


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """A dead letter.

    :ivar key: that it was pending under; *value*: its stored form.
    :ivar payload: empty for one that lived in memory only.
    """

    state: ClassVar[State] = DEAD

    key: bytes
    fingerprint: bytes
    payload: bytes
    why: DeadLetter
    value: bytes


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that has failed, as :class:`DeadRequest` is one that is dead.

    :ivar key: when it has failed, and the key that it was pending under.
    """

    state: ClassVar[State] = FAILED

    key: bytes
    fingerprint: bytes
    payload: bytes
    why: PageFailure
    value: bytes

    @property
    def at(self) -> float:
        """When it has failed, in seconds since the epoch."""
        return decode_failed_key(self.key)[0] / 1000


def dead_requests(stored: Iterable[tuple[bytes, DeadLetter, bytes]]) -> Iterator[DeadRequest]:
    """All dead letters of *stored*: ``dead()`` of rows, a frontier, or a crawl on a server."""
    for key, why, value in stored:
        entry = decode_value(value)
        yield DeadRequest(key, entry.fingerprint, entry.payload or b"", why, value)


def failed_requests(stored: Iterable[tuple[bytes, PageFailure, bytes]]) -> Iterator[FailedRequest]:
    """All failed requests of *stored*: ``failed()`` of rows, or of a crawl on a server."""
    for key, why, value in stored:
        entry = decode_value(value)
        yield FailedRequest(key, entry.fingerprint, entry.payload or b"", why, value)


def requeue(
    frontier: Frontier, chosen: Iterable[DeadRequest | FailedRequest], locate: Locate
) -> int:
    """Make requests pending again, some at a time; how many of them could be.

    Crashes of dead ones are forgotten already: the record of them went when they became dead
    letters.  Of those that have failed, the tries are counted anew.

    :raises StoreError: it could not be read or written.
    """
    rest, count = iter(chosen), 0
    while portion := list(islice(rest, PORTION)):
        for request in portion:
            with suppress(CodecError):  # one that cannot be read stays what it is
                count += frontier.requeue(request.state.family, request.key, locate) is not None
        while not frontier.commit(wait=True):
            pass
    return count
