"""How hard download slots are asked by all workers of a shared crawl together."""

from __future__ import annotations

import enum
from typing import Protocol

from .entry import Lease


class Start(enum.Enum):
    """Whether a request may be downloaded."""

    NOW = "now"
    #: An :class:`.events.PaceChanged` tells when to ask again.
    LATER = "later"
    #: It is no longer this worker's.
    NEVER = "never"


class Pace(Protocol):
    """What a frontier that paces its workers is told of downloads."""

    @property
    def is_on(self) -> bool:
        """Whether the crawl has a pace, by now."""

    @property
    def may_begin(self) -> bool:
        """Whether it may have one because of what is told of a single slot."""

    def start(self, lease: Lease, /) -> Start:
        """Whether the request may be downloaded now."""

    def note_sent(self, lease: Lease, /) -> None:
        """A request that might be downloaded has been sent: from now on its slot rests."""

    def note_downloaded(self, lease: Lease, /) -> None:
        """Its download has ended, with a response or without."""

    def set_delay(self, slot: str, seconds: float, /) -> None:
        """Have the slot wait for so long between two downloads, on average."""
