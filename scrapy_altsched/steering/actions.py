"""What can be asked of a crawl: each action, and its form in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from ..canonical.patterns import UrlPattern
from ..engine.request_parts import slot_of
from ..errors import InputError

#: Name of the note about the actions that were applied.
NOTE = "actions"
#: A request as :func:`scrapy.utils.request.request_from_dict` takes it: ``url`` at least.
RequestFields: TypeAlias = Mapping[str, Any]


class Action:
    """Something that is asked of a crawl.

    :cvar verb: its name.
    """

    verb: ClassVar[str]

    def arguments(self) -> dict[str, Any]:
        """What it says, in values that JSON has; without :meth:`lines`."""
        return {
            it.name: getattr(self, it.name)
            for it in fields(self)  # type: ignore[arg-type]  # each action is a dataclass
            if not it.metadata.get("lines")
        }

    def lines(self) -> Iterable[Any]:
        """What it is about, in values that JSON has, one at a time: there may be a million."""
        return next(
            (getattr(self, it.name) for it in fields(self) if it.metadata.get("lines")),  # type: ignore[arg-type]  # as above
            (),
        )


def _lines() -> Any:
    return field(metadata={"lines": True})


@dataclass(frozen=True)
class Push(Action):
    """Take in requests, as if the spider had yielded them."""

    verb = "push"

    requests: Iterable[RequestFields] = _lines()


@dataclass(frozen=True)
class Pause(Action):
    """Hand out no more requests, also in later runs, until :class:`Resume`."""

    verb = "pause"


@dataclass(frozen=True)
class Resume(Action):
    """Hand out requests again."""

    verb = "resume"


@dataclass(frozen=True)
class Stop(Action):
    """End this run as one Ctrl-C does: what is in flight is finished; the job can be resumed."""

    verb = "stop"


@dataclass(frozen=True)
class Defer(Action):
    """Leave a download slot alone.

    :ivar until: in seconds since the epoch.
    """

    verb = "defer"

    slot: str
    until: float


@dataclass(frozen=True)
class Undefer(Action):
    """Let a download slot be asked again at once."""

    verb = "undefer"

    slot: str


@dataclass(frozen=True)
class Forget(Action):
    """Let pages be crawled again that were seen, once they are found again.

    Those that are pending, delayed or in flight are left as they are.

    :ivar urls: of these pages.
    """

    verb = "forget"

    urls: Iterable[str] = _lines()


@dataclass(frozen=True)
class Discard(Action):
    """Drop pending and delayed requests; their pages stay seen.

    Those go that meet each condition that is not ``None``; one at least is not.

    :ivar slot: the download slot; *pattern*: of URLs, as in URL rules; *depth_over*: of links.
    """

    verb = "discard"

    slot: str | None = None
    pattern: str | None = None
    depth_over: int | None = None

    @cached_property
    def _urls(self) -> UrlPattern | None:
        if self.pattern is None:
            return None
        try:
            return UrlPattern(self.pattern)
        except ValueError as error:
            raise InputError(f"The pattern {self.pattern!r} cannot be used: {error}") from None

    def matches(self, request: RequestFields, slot: str = "") -> bool:
        """Whether a request goes; InputError: the pattern is none.

        :param request: what is stored of it: its URL, and its meta if it has one; empty: that
            cannot be read, and it stays.
        :param slot: the one in whose queue it is; empty: that is not known.
        """
        if (url := request.get("url")) is None:
            return False
        meta = request.get("meta") or {}
        if not self.matches_slot(slot or slot_of(url, meta)):
            return False
        if self._urls is not None and not self._urls.matches(url):
            return False
        depth = meta.get("depth", 0)
        # It can be the project's own.
        return self.depth_over is None or (isinstance(depth, int) and depth > self.depth_over)

    def matches_slot(self, slot: str) -> bool:
        """Whether requests of a download slot may go."""
        return self.slot in (None, slot)


@dataclass(frozen=True)
class Requeue(Action):
    """Make requests pending again that have failed, or are dead.

    :ivar state: "failed" or "dead"; *keys*: of these requests, in hexadecimal digits.
    """

    verb = "requeue"

    state: str
    keys: Iterable[str] = _lines()


_ACTIONS: Sequence[type[Action]] = (
    *(Push, Pause, Resume, Stop, Defer, Undefer),
    *(Forget, Discard, Requeue),
)


def parse_action(verb: str, arguments: Mapping[str, Any], lines: Iterable[Any]) -> Action:
    """The action of that name; ValueError: there is none, or it takes other arguments."""
    for kind in _ACTIONS:
        if kind.verb == verb:
            more = {it.name: lines for it in fields(kind) if it.metadata.get("lines")}  # type: ignore[arg-type]  # as above
            try:
                return kind(**arguments, **more)
            except TypeError as error:
                raise ValueError(f"it has other arguments than {verb} takes: {error}") from None
    raise ValueError(f"there is no action {verb!r} in this version of scrapy_altsched")


def tell_over_budget(url: str | None) -> str:
    """Why a request that was pushed is refused though its page was not seen."""
    return (
        f"{url or 'a request'}: as many requests of its download slot were accepted as"
        " ALTSCHED_SLOT_BUDGET permits. --dont-filter pushes it nevertheless."
    )


@dataclass(frozen=True, slots=True)
class Effect:
    """What an action has come to.

    :ivar changed: how many requests, pages or slots it has changed.
    :ivar refused: how many of those that it named it has not: as seen before, most often.
    :ivar note: what else the operator has to know, in a sentence; or why it could not be applied.
    :ivar is_applied: whether it was.
    :ivar reason: why one of these that were refused was, if it was no usual reason.
    :ivar left: how many of them are pages that are still to be crawled, and left as they are.
    """

    changed: int = 0
    refused: int = 0
    note: str = ""
    is_applied: bool = True
    reason: str = ""
    left: int = 0
