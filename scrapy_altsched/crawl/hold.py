"""Whether an operator has paused the crawl, which holds for its later runs, too."""

from __future__ import annotations

from datetime import datetime, timezone

from ..resume.state import ReadNote
from . import messages
from .setup import Setup

NOTE = "paused"


class Hold:
    """A crawl that is paused hands out nothing.

    :ivar since: when it was paused, in seconds since the epoch; ``None``: it is not.
    """

    def __init__(self, setup: Setup) -> None:
        self._engine, self._reports, self._wall = setup.engine, setup.reports, setup.clock.wall
        self.since: float | None = None

    def pause(self) -> bool:
        """Hand out no more requests; whether that is a change."""
        if self.since is not None:
            return False
        self.since = self._wall()
        self._engine.pause()
        self._reports.log(messages.PAUSED)
        return True

    def resume(self) -> bool:
        """Hand out requests again; whether that is a change."""
        if self.since is None:
            return False
        self.since = None
        self._engine.unpause()
        self._reports.log(messages.UNPAUSED)
        return True

    def capture(self) -> dict[str, bytes]:
        return {NOTE: b"" if self.since is None else repr(self.since).encode()}

    def restore(self, read: ReadNote) -> None:
        if note := read(NOTE):
            self.since = float(note)
            self._engine.pause()

    def announce(self) -> None:
        """Tell the log of a crawl that begins paused."""
        if self.since is not None:
            since = datetime.fromtimestamp(self.since, timezone.utc)
            self._reports.log(messages.STILL_PAUSED, since=f"{since:%Y-%m-%d %H:%M:%S}")
