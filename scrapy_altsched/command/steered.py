"""What is asked of a shared crawl, done there: the server tells its workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.utils.request import request_from_dict

from ..canonical import Rules
from ..crawl.setup import CrawlClock
from ..crawl.visit import entry_of
from ..engine.engine import Engine
from ..errors import CodecError, ConfigError, InputError
from ..frontier import Entry
from ..frontier.queue.order import Order
from ..frontier.store.states import decode_value
from ..inflection import counted
from ..requests.entries import Entries, codec_of
from ..requests.identity import PageIdentity, differences
from ..settings import Config
from ..steering.actions import (
    Action,
    Defer,
    Discard,
    Effect,
    Forget,
    Pause,
    Push,
    RequestFields,
    Requeue,
    Resume,
    Stop,
    Undefer,
    tell_over_budget,
)
from .project import Project, create_spider, identity_for, identity_of

if TYPE_CHECKING:
    from ..frontier.shared.batches import Reply
    from ..frontier.shared.steering import WaitingRequest
    from .crawl import Crawl

#: Pages that are forgotten together: all that is pending is looked through for them.
_FORGOTTEN_AT_ONCE = 100_000
_FINISHED = "The crawl is finished: nothing is asked for."
#: Where they are that are still to be crawled.
_LEFT = ("pending", "delayed", "in flight")


class SharedSteering:
    """Applies actions to a shared crawl.

    :param given: arguments of the spider, as ``NAME=VALUE``.
    """

    def __init__(self, crawl: Crawl, project: Project, given: Sequence[str] = ()) -> None:
        self._crawl, self._project, self._given = crawl, project, list(given)
        self._server = crawl.crawl

    def apply(self, action: Action) -> Effect:
        """Apply an action; AltschedError: it cannot be."""
        match action:
            case Push():
                return self._push(action)
            case Pause():
                return self._pause()
            case Resume():
                return self._resume()
            case Stop():
                return self._stop()
            case Defer():
                if self._server.look().finished:
                    return Effect(note=_FINISHED, is_applied=False)
                seconds = action.until - time.time()
                return self._tell_pace(self._server.defer(action.slot, seconds))
            case Undefer():
                did_rest = self._server.rests(action.slot)
                self._server.undefer(action.slot)
                return Effect(int(did_rest))
            case Forget():
                return self._forget(action)
            case Discard():
                return Effect(self._server.discard(self.matching(action)))
            case Requeue():
                return self._requeue(action)
        raise NotImplementedError(action.verb)

    def _push(self, action: Push) -> Effect:
        from ..frontier.shared.bringing import Bringing

        known = self._server.look()
        # As in a worker, whatever else the project's own settings say.
        settings = Settings(self._project.settings)
        settings.set("ALTSCHED_SHARED", True, priority="cmdline")
        settings.set("ALTSCHED_SHARED_KEY", self._crawl.key, priority="cmdline")
        spider = create_spider(Project(settings), known.spider, self._given)
        config = Config.from_settings(spider.crawler.settings, disk=True)
        shared = config.shared_options(spider.name)
        assert shared is not None
        order = Order.parse(self._server.about()["order"])
        options = replace(config.frontier, clock=CrawlClock(), order=order)
        identity, engine = identity_of(spider), Engine(spider.crawler)
        entries = Entries(codec_of(config, spider), engine, Counter(), Rules(), by_slot=True)
        entries.on_bad_delay, entries.on_unserializable = _refuse_delay, _refuse_request
        with Bringing(
            options,
            shared,
            spider.name,
            identity.note,
            are_sha1=identity.are_sha1,
            warn=lambda _: None,
        ) as crawl:
            for entry in _entries(action.requests, spider, identity, entries):
                crawl.add(entry)
        if known.finished and not crawl.added:
            self._server.finish_again()
        over, note = crawl.over_budget, self._note_workers() if crawl.added else ""
        url = None if over is None else self._crawl.url_of(over.payload or b"")
        reason = "" if over is None else tell_over_budget(url)
        return Effect(crawl.added, crawl.refused, note, reason=reason)

    def _pause(self) -> Effect:
        if self._server.pause():
            return Effect(1)
        return Effect(note="It was paused already.")

    def _resume(self) -> Effect:
        if self._server.resume():
            return Effect(1, note=self._note_workers())
        return Effect(note="It was not paused.")

    def _stop(self) -> Effect:
        workers = self._server.stop()
        if not workers:
            return Effect(note="No worker is running.")
        return Effect(workers, note=counted(workers, "worker is told.", "workers are told."))

    def _note_workers(self) -> str:
        if self._server.look().workers:
            return ""
        return "No worker is running: start one to go on."

    @staticmethod
    def _tell_pace(reply: Reply) -> Effect:
        if reply.finished:
            return Effect(note=_FINISHED, is_applied=False)
        if not reply.limits:
            note = (
                "The server holds back no download slot of this crawl: its workers have"
                " ALTSCHED_SHARED_PACE = False, or a SCHEDULER_PRIORITY_QUEUE without slots. Stop"
                " them, and start them with other settings."
            )
            return Effect(note=note, is_applied=False)
        return Effect(1)

    def _forget(self, action: Forget) -> Effect:
        spider_class = self._project.spider_class(self._crawl.owner)
        identity = identity_for(self._project.crawler(self._crawl.owner), spider_class)
        if causes := differences(self._crawl.fingerprints(), identity.note):
            raise ConfigError(
                f"The fingerprints of the shared crawl {self._server.name} were made with"
                f" {' and '.join(causes)}: its pages cannot be told here. Run this in its project,"
                " with the settings of the crawl."
            )
        total = changed = left = 0
        rest = iter(action.urls)
        while urls := list(islice(rest, _FORGOTTEN_AT_ONCE)):
            pages = [_fingerprint(identity, url) for url in urls]
            wanted = set(pages)
            found = self._crawl.stored().find(wanted)
            waiting = {it for it, place in found if place.state in _LEFT}
            total += len(pages)
            left += sum(page in waiting for page in pages)
            changed += self._server.forget(wanted - waiting)
        return Effect(changed, total - changed, left=left)

    def matching(self, action: Discard) -> Iterator[WaitingRequest]:
        """What waits in the crawl, and would be dropped."""
        is_by_slot = self._server.order().policy == "slots"
        for it in self._server.waiting(action.slot if is_by_slot else None):
            if action.matches(self._crawl.fields_of(decode_value(it.row).payload or b"")):
                yield it

    def _requeue(self, action: Requeue) -> Effect:
        keys = {bytes.fromhex(key) for key in action.keys}
        if action.state == "dead":
            count = self._server.requeue(list(keys))
        else:
            count = self._server.requeue_failed(it for it in self._server.failed() if it[0] in keys)
        return Effect(count, len(keys) - count, self._note_workers() if count else "")


def _fingerprint(identity: PageIdentity, url: str) -> bytes:
    try:
        request = Request(url)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{url!r} is no URL ({error}). Those before it may be forgotten; correct it, and name"
            " all of them again."
        ) from error
    return identity.of(request, identity.page_of(request))


def _entries(
    requests: Iterable[RequestFields], spider: Spider, identity: PageIdentity, entries: Entries
) -> Iterator[Entry]:
    """Requests as the frontier takes them; InputError: one cannot be made, or stored."""
    for number, fields in enumerate(requests, 1):
        try:
            entry = entry_of(request_from_dict(dict(fields), spider=spider), identity, entries)
            entry.encode()
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise InputError(
                f"Request {number:,} ({fields.get('url')}) cannot be pushed:"
                f" {type(error).__name__}: {error}. Those before it are in the crawl. Correct it,"
                " and push all of them again: what is filtered is not added twice."
            ) from error
        yield entry


def _refuse_delay(_: Request, key: str, value: object, must_be: str) -> None:
    raise ValueError(f"{key} = {value!r} cannot be used: {must_be}")


def _refuse_request(_: Entry, error: CodecError) -> None:
    raise error
