"""When requests were accepted, by samples: a request has a sequence number, and no time.

With each commit it is looked at whether a sample is due: the time, and the sequence number that is
given next.  They are a note of the store, and few: if there are too many, one of those goes that
are nearest to each other.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

#: Name of the note.
NOTE = "sequence times"
#: Most samples; and fewest seconds between two of them, in a job that is younger than two hours.
_MOST, _EVERY = 128, 60.0
_sequence_of = itemgetter(0)


class SequenceTimes:
    """The samples of a job: sequence number that came next, and seconds since the epoch."""

    def __init__(self, note: bytes | None = None) -> None:
        self._samples = [(int(number), float(at)) for number, at in json.loads(note or b"[]")]

    def note(self, next_sequence: int, now: float) -> bool:
        """Note what is next now; whether that is a new sample."""
        samples = self._samples
        if samples:
            every = max(_EVERY, (now - samples[0][1]) / _MOST)
            if now - samples[-1][1] < every:
                return False
            if next_sequence == samples[-1][0]:  # none was given since
                samples.pop()
        if len(samples) >= _MOST:
            inner = range(1, len(samples) - 1)
            del samples[min(inner, key=lambda it: samples[it + 1][1] - samples[it - 1][1])]
        samples.append((next_sequence, now))
        return True

    def encode(self) -> bytes:
        return json.dumps(self._samples).encode()

    def between(self, sequence: int) -> tuple[float | None, float | None]:
        """See :func:`between`."""
        return between(self._samples, sequence)


def between(
    samples: Sequence[tuple[int, float]], sequence: int
) -> tuple[float | None, float | None]:
    """After and before which time a number was given, in seconds since the epoch, if known.

    :param samples: which number came next, and when.
    """
    at = bisect_right(samples, sequence, key=_sequence_of)
    return (
        samples[at - 1][1] if at else None,
        samples[at][1] if at < len(samples) else None,
    )
