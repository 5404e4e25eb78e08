"""How hard download slots may be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limit:
    """How hard a download slot may be asked.

    :ivar delay: seconds between two downloads, on average.
    :ivar jitter: by what part of itself the delay varies, up and down; 0 to 1.
    :ivar cap: how many of its requests may be open at once; 0: any number.
    """

    delay: float = 0.0
    jitter: float = 0.0
    cap: int = 0

    def __str__(self) -> str:
        parts = []
        if self.delay:
            varies = f" that varies by {self.jitter:.0%}" if self.jitter else ""
            parts.append(f"a delay of {self.delay:g} s{varies}")
        if self.cap:
            parts.append(f"{self.cap} at once")
        return " and ".join(parts) or "no limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a crawl's download slots.

    :ivar default: of each slot; *slots*: name -> the limit of a single one.
    :ivar are_set: whether a project has set any of them, or has left them at what Scrapy does.
    """

    default: Limit
    slots: Mapping[str, Limit] = field(default_factory=dict)
    are_set: bool = True
