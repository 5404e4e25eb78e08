"""Which failed requests, or dead letters, are meant: by their reasons, download slots and URLs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Any, TypeAlias

from ..canonical.patterns import UrlPattern
from ..frontier.entry import Cause, Reason
from ..maintenance.requeue import DeadRequest, FailedRequest
from ..requests.codec import is_whole
from .project import misuse
from .target import Target

#: A request that the crawl goes on without.
Stopped: TypeAlias = DeadRequest | FailedRequest


def _name_of(reason: Reason | Cause) -> str:
    return reason.name.lower().replace("_", "-")


_REASONS = {True: [*map(_name_of, Reason)], False: [*map(_name_of, Cause)]}


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that :meth:`Selection.of` looks at."""
    states = parser.add_mutually_exclusive_group()
    what = "those that have failed, instead of dead letters"
    states.add_argument("--failed", action="store_true", help=what)
    what = "dead letters, as without --failed"
    states.add_argument("--dead", action="store_true", help=what)
    what = "only for this reason: with --failed one of the first three, else one of the others"
    parser.add_argument("--reason", choices=[*_REASONS[True], *_REASONS[False]], help=what)
    what = "with --failed: only if the last response had this HTTP status"
    parser.add_argument("--status", type=int, help=what)
    what = "with --failed: only because of an exception of this class"
    parser.add_argument("--exception", metavar="CLASS", help=what)
    add_slot(parser)
    add_pattern(parser)


def add_slot(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a download slot."""
    what = "only of this download slot, which is a host for most projects"
    parser.add_argument("--slot", help=what)


def add_pattern(parser: argparse.ArgumentParser) -> None:
    """Add the option that :func:`read_pattern` reads."""
    parser.add_argument("--pattern", help="only URLs that match it, as in URL rules")


def read_pattern(pattern: str) -> UrlPattern:
    """The pattern that ``--pattern`` names; UsageError: it is none."""
    try:
        return UrlPattern(pattern)
    except ValueError as error:
        raise misuse(f"--pattern {pattern!r} cannot be used: {error}") from None


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests that have failed, or else dead letters; of a field that is ``None``, any."""

    failed: bool
    reason: str | None = None
    status: int | None = None
    exception: str | None = None
    slot: str | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Selection:
        """The one that the arguments name; UsageError: they make no sense."""
        chosen = cls(**{name: getattr(arguments, name) for name in cls.__dataclass_fields__})
        if not chosen.failed and (chosen.status, chosen.exception) != (None, None):
            raise misuse("--status and --exception are for --failed")
        if chosen.reason is not None and chosen.reason not in _REASONS[chosen.failed]:
            is_for = "of dead letters: leave out --failed" if chosen.failed else "for --failed"
            raise misuse(f"--reason {chosen.reason} is {is_for}")
        return chosen

    @classmethod
    def alike(cls, request: Stopped, target: Target) -> Selection:
        """All that have stopped for the reason that *request* has, in its download slot."""
        slot = target.slot_of(request.payload)
        if isinstance(request, DeadRequest):
            return cls(False, _name_of(request.why.cause), slot=slot)
        why = request.why
        if why.reason is Reason.STATUS:
            return cls(True, _name_of(why.reason), status=why.status, slot=slot)
        return cls(True, _name_of(why.reason), exception=why.exception, slot=slot)

    def filter(self, requests: Iterable[Stopped], target: Target) -> Iterator[Stopped]:
        """Those of *requests* that are meant."""
        pattern = None if self.pattern is None else read_pattern(self.pattern)
        for request in requests:
            if not self._is_reason(request):
                continue
            if pattern is not None and not pattern.matches(target.url_of(request.payload)):
                continue
            if self.slot not in (None, target.slot_of(request.payload)):
                continue
            yield request

    def _is_reason(self, request: Stopped) -> bool:
        if isinstance(request, DeadRequest):
            return self.reason in (None, _name_of(request.why.cause))
        why = request.why
        return (
            self.reason in (None, _name_of(why.reason))
            and self.status in (None, why.status)
            and self.exception in (None, why.exception)
        )

    def as_dict(self) -> dict[str, Any]:
        """What it says, for programs; of the pattern nothing."""
        return {
            "state": "failed" if self.failed else "dead",
            "reason": self.reason,
            "status": self.status,
            "exception": self.exception,
            "slot": self.slot,
        }

    @property
    def words(self) -> str:
        """The arguments that name it, quoted for a shell, each after a space."""
        options = ("reason", "status", "exception", "slot", "pattern")
        words = [_option(name, getattr(self, name)) for name in options]
        return "".join((" --failed" if self.failed else "", *words))


def _option(name: str, value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    return f" --{name}{'=' if text.startswith('-') else ' '}{quote(text)}"


def requeue_command(
    target: Target, fingerprint: bytes, payload: bytes, *, failed: bool
) -> str | None:
    """What makes a request pending that has stopped, if anything whole is stored of it."""
    if not is_whole(payload):
        return None
    return f"scrapy altsched requeue {target.words}{' --failed' * failed} {fingerprint.hex()}"
