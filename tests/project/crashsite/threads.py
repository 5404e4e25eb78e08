"""Threads of a crawl that die: an extension that has what they call raise an error."""

from __future__ import annotations

import builtins

from scrapy import signals

from scrapy_altsched.crawl.session import Session
from scrapy_altsched.frontier.store.job_run import JobRun


def _place(name):
    """Class and method that a thread calls."""
    if name == "sync":
        return JobRun, "sync"
    # What these import is optional.
    from scrapy_altsched.feeding.queue import RedisQueue
    from scrapy_altsched.frontier.shared.exchange import Exchange

    return {"exchange": (Exchange, "_ask"), "queue": (RedisQueue, "ask")}[name]


class DyingThread:
    """Settings ``DIE_IN`` (a thread), ``DIE_AT`` (``first``, ``middle``, ``closing``), ``DIE_OF``.

    ``first`` is the first call, ``middle`` the first one after three items, ``closing`` the first
    one after the scheduler, or else the thread's own part, was told to close.
    """

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        settings = crawler.settings
        if not settings["DIE_IN"]:
            return
        self.moment = settings["DIE_AT"]
        self.kind = getattr(builtins, settings["DIE_OF"])
        self.is_due = self.moment == "first"
        self.items = 0
        crawler.signals.connect(self.count, signals.item_scraped)
        owner, method = _place(settings["DIE_IN"])
        self.real = getattr(owner, method)
        self.close = Session.close
        setattr(owner, method, lambda *arguments: self.call(*arguments))
        Session.close = lambda session, reason: self.note_closing(session, reason)

    def count(self):
        self.items += 1
        if self.moment == "middle" and self.items == 3:
            self.is_due = True

    def note_closing(self, session, reason):
        self.is_due |= self.moment == "closing"
        self.close(session, reason)

    def call(self, *arguments):
        if self.is_due:
            print("dies", flush=True)
            if self.kind is UnicodeDecodeError:
                b"\xff".decode()
            raise self.kind("of the test's own")
        return self.real(*arguments)
