"""The one place where actions are applied, to a crawl that runs or to a job between its runs.

An action is applied in steps.  What a step changes goes into one commit, with a note of how far the
action has come: see :mod:`.receiver`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from scrapy import Request
from scrapy.utils.request import request_from_dict

from ..errors import AltschedError, CodecError
from ..frontier import Entry, Frontier
from ..frontier.contract import Locate
from ..frontier.entry import DeadLetter
from ..requests.codec import decode_fields
from ..steering import actions
from ..steering.actions import Action, Effect, RequestFields
from .deferrals import Deferrals
from .hold import Hold
from .outcome import DeadLetters
from .setup import Setup

_T = TypeVar("_T")
#: Seconds after which a step ends: a crawl must not wait for a million requests.
_STEP = 0.02
#: Most lines of a step, which is one batch.
_MOST = 500
#: Pages that are forgotten together: all that is pending is looked through for them.
_FORGOTTEN_AT_ONCE = 100_000


@dataclass
class Progress:
    """How far an action has come.

    :ivar line: how many of the lines that it is about were taken.
    :ivar changed: as of :class:`~..steering.actions.Effect`, and the three that follow.
    """

    line: int = 0
    changed: int = 0
    refused: int = 0
    reason: str = ""
    left: int = 0

    def refuse(self, why: str) -> None:
        """One of those that the action names is not changed; the first reason is told."""
        self.refused += 1
        self.reason = self.reason or why

    def as_effect(self, problem: str = "") -> Effect:
        """What it has come to; *problem*: why the rest is not applied, if it is not."""
        return Effect(
            self.changed, self.refused, problem, not problem, reason=self.reason, left=self.left
        )


class Inlet:
    """Applies actions.

    :param add: accepts a request; or refuses it, and says why, unless its page was seen before.
    :param locate: finds the download slot of a stored request, as the open crawl does if not given.
    """

    def __init__(
        self,
        setup: Setup,
        frontier: Frontier,
        add: Callable[[Request], str],
        deferrals: Deferrals,
        hold: Hold,
        dead_letters: DeadLetters | None = None,
        locate: Locate | None = None,
    ) -> None:
        self._spider, self._identity = setup.spider, setup.identity
        self._wall = setup.clock.wall
        self._frontier, self._add = frontier, add
        self._locate, self._check = locate or setup.entries.locate, setup.entries.check
        self._deferrals, self._hold, self._dead_letters = deferrals, hold, dead_letters

    def apply(self, action: Action, progress: Progress) -> Iterator[None]:
        """Apply an action in steps, telling *progress* of each.

        :raises AltschedError: the rest of it cannot be applied.
        """
        match action:
            case actions.Push():
                yield from _take_lines(action.requests, progress, self._push)
            case actions.Forget():
                yield from self._forget(action.urls, progress)
            case actions.Requeue():
                requeue = partial(self._requeue, action.state)
                yield from _take_lines(action.keys, progress, requeue)
            case actions.Discard():
                yield from self._discard(action, progress)
            case actions.Pause():
                progress.changed += self._hold.pause()
            case actions.Resume():
                progress.changed += self._hold.resume()
            case actions.Defer():
                seconds = max(0.0, action.until - self._wall())
                progress.changed += self._deferrals.defer(action.slot, seconds)
            case actions.Undefer():
                progress.changed += self._deferrals.undefer(action.slot)
            case actions.Stop():
                # Only once it is known to be applied: see the caller.
                progress.changed += 1

    def _push(self, fields: RequestFields, progress: Progress) -> None:
        try:
            request = request_from_dict(dict(fields), spider=self._spider)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            progress.refuse(f"{fields.get('url')!r} cannot be requested: {error}")
            return
        try:
            # No page would bring it again.
            self._check(request)
            self.push(request, progress)
        except CodecError as error:
            progress.refuse(f"{request.url} cannot be stored: {error}")
        except AltschedError:
            raise
        except Exception as error:  # of a fingerprinter of the project's own, most often
            progress.refuse(f"{request.url} was not accepted ({type(error).__name__}: {error})")

    def push(self, request: Request, progress: Progress) -> None:
        """Take in a request, and tell *progress* whether it was accepted."""
        before = self._frontier.counts()
        why = self._add(request)
        after = self._frontier.counts()
        if after.accepted + after.undecided > before.accepted + before.undecided:
            progress.changed += 1
        else:
            progress.refuse(why)

    def _forget(self, urls: Iterable[str], progress: Progress) -> Iterator[None]:
        rest = iter(urls)
        while some := list(islice(rest, _FORGOTTEN_AT_ONCE)):
            yield from self._forget_some(some, progress)

    def _forget_some(self, urls: Iterable[str], progress: Progress) -> Iterator[None]:
        pages: list[bytes | None] = []
        yield from _in_steps(urls, lambda url: pages.append(self._find_page(url, progress)))
        wanted, waiting = set(filter(None, pages)), set[bytes]()
        for found in self._frontier.find_waiting(wanted):
            waiting |= found
            yield
        yield from _take_lines(pages, progress, partial(self._forget_page, waiting))

    def _find_page(self, url: str, progress: Progress) -> bytes | None:
        try:
            request = Request(url)
        except ValueError as error:
            progress.reason = progress.reason or f"{url!r} is no URL: {error}"
            return None
        return self._identity.of(request, self._identity.page_of(request))

    def _forget_page(
        self, waiting: Container[bytes], page: bytes | None, progress: Progress
    ) -> None:
        if page in waiting:
            progress.left += 1
        elif page is not None:
            self._identity.forget_recent()
            if self._frontier.forget(page):
                progress.changed += 1
                return
        progress.refused += 1

    def _requeue(self, state: str, key: str, progress: Progress) -> None:
        try:
            why = self._frontier.requeue(state, bytes.fromhex(key), self._locate)
        except CodecError as error:
            progress.refuse(f"One of them cannot be read: {error}")
            return
        if why is None:
            progress.refused += 1
            return
        progress.changed += 1
        if isinstance(why, DeadLetter) and self._dead_letters is not None:
            self._dead_letters.note_requeued(why)

    def _discard(self, action: actions.Discard, progress: Progress) -> Iterator[None]:
        for count in self._frontier.discard(partial(_is_meant, action), self._locate):
            progress.changed += count
            yield


def _is_meant(action: actions.Discard, slot: str, entry: Entry) -> bool:
    if slot and not action.matches_slot(slot):
        return False  # and so need not be decoded
    request = entry.request
    if request is not None:
        fields: RequestFields = {"url": request.url, "meta": request.meta}
    else:
        try:
            fields = decode_fields(entry.payload or b"")
        except CodecError:
            return False
    return action.matches(fields, slot)


def _take_lines(
    lines: Iterable[_T], progress: Progress, take: Callable[[_T, Progress], object]
) -> Iterator[None]:
    """Take all lines, some at a time, and tell *progress* of each."""

    def take_next(line: _T) -> None:
        take(line, progress)
        progress.line += 1

    return _in_steps(lines, take_next)


def _in_steps(items: Iterable[_T], take: Callable[[_T], object]) -> Iterator[None]:
    ends, taken = time.thread_time() + _STEP, 0
    for item in items:
        take(item)
        taken += 1
        if taken == _MOST or time.thread_time() >= ends:
            yield
            ends, taken = time.thread_time() + _STEP, 0
