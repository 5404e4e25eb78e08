"""Requests that have stopped, grouped by reason and download slot, with how to requeue a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..maintenance.progress import follow
from ..maintenance.requeue import FailedRequest
from ..requests.codec import is_whole
from .answers import parent_of, time_of
from .selection import Selection, Stopped
from .target import Target


@dataclass(slots=True)
class Group:
    """What is told of requests that have stopped for one reason, in one download slot.

    :ivar text: what has happened to the last of them; *last*: when, in seconds since the epoch;
        ``None``: that is not known, as of dead letters.
    :ivar example: the URL of the first that has one; *found_on*: that of the page that it was found
        on, if it has kept that.
    :ivar is_whole: whether any of them can be crawled again.
    """

    selection: Selection
    target: Target
    count: int = 0
    text: str = ""
    example: str | None = None
    found_on: str | None = None
    last: float | None = None
    is_whole: bool = False

    def add(self, request: Stopped) -> None:
        self.count += 1
        if self.example is None:
            self.example = self.target.url_of(request.payload)
            self.found_on = parent_of(self.target.fields_of(request.payload))
        self.is_whole = self.is_whole or is_whole(request.payload)
        if not isinstance(request, FailedRequest):
            self.text = str(request.why)
        elif self.last is None or request.at >= self.last:
            self.text, self.last = request.why.text, request.at

    @property
    def last_at(self) -> datetime | None:
        return None if self.last is None else time_of(self.last)

    @property
    def title(self) -> str:
        return "".join(self._title())

    def _title(self) -> Iterator[str]:
        selection = self.selection
        yield f"{self.count:,} {'failed' if selection.failed else 'dead'}: {selection.reason}"
        if selection.status is not None:
            yield f" {selection.status}"
        if selection.exception:
            yield f" {selection.exception}"
        yield f", {selection.slot}" if selection.slot else ", no download slot known"

    @property
    def command(self) -> str | None:
        """What makes them pending again; ``None``: nothing whole is stored of any."""
        if not self.is_whole:
            return None
        return f"scrapy altsched requeue {self.target.words}{self.selection.words} --all"

    @property
    def advice(self) -> str:
        """The command, or why there is none."""
        return self.command or ("Nothing whole is stored of them: they cannot be crawled again.")

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.selection.as_dict(),
            "count": self.count,
            "text": self.text,
            "last": self.last_at.isoformat() if self.last_at else None,
            "example": self.example,
            "found_on": self.found_on,
            "command": self.command,
        }


def groups_of(target: Target, *, dead: bool) -> list[Group]:
    """All failed requests, the largest groups first; *dead*: dead letters, too.  None is kept."""
    groups = _group(follow("Reading failed requests", target.failed()), target)
    if dead:
        groups |= _group(follow("Reading dead letters", target.dead()), target)
    return sorted(groups.values(), key=lambda it: (-it.count, it.selection.slot or ""))


def _group(requests: Iterable[Stopped], target: Target) -> dict[Selection, Group]:
    groups: dict[Selection, Group] = {}
    for request in requests:
        selection = Selection.alike(request, target)
        if selection not in groups:
            groups[selection] = Group(selection, target)
        groups[selection].add(request)
    return groups
