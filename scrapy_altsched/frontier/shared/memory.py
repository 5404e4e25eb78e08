"""Whether the server has memory for what is new, and when it is asked again."""

from __future__ import annotations

from ..clock import Clock
from ..events import MemoryFull, OnEvent
from .stream import Stream

#: Seconds after which what the server had no memory for is sent again, at first and at most.
_AGAIN_FIRST = 0.1
_AGAIN_MOST = 5.0
#: Seconds for which a server must have had memory before it is said once more that it has none.
_SAID_EVERY = 60.0


class ServerMemory:
    """Has a full server asked again with pauses that grow, and says once that it is full.

    :param stream: holds what was refused.
    """

    def __init__(self, clock: Clock, stream: Stream, on_event: OnEvent) -> None:
        self._clock = clock
        self._stream = stream
        self._on_event = on_event
        self._again_at, self._pause = 0.0, _AGAIN_FIRST
        self._is_said = False
        #: Since when it has had memory.
        self._roomy_since = 0.0

    @property
    def pause_left(self) -> float:
        """Seconds until the server is asked again."""
        return max(0.0, self._again_at - self._clock.monotonic())

    def try_again(self) -> None:
        """Let what was refused be sent, if the pause is over."""
        if self._stream.is_full and not self.pause_left:
            self._stream.try_again()

    def note_answer(self, *, is_refused: bool, is_taken: bool) -> None:
        """A batch was answered, and additions in it were refused, or taken, or none was there."""
        now = self._clock.monotonic()
        if is_refused:
            self._again_at = now + self._pause
            self._pause = min(self._pause * 2, _AGAIN_MOST)
            self._roomy_since = now
            if not self._is_said:
                self._is_said = True
                self._on_event(MemoryFull(self._stream.unacknowledged))
        elif is_taken:
            self._pause = _AGAIN_FIRST
        if self._is_said and not self._stream.is_full and now - self._roomy_since > _SAID_EVERY:
            # A server that is nearly full has memory for some in between.
            self._is_said = False
