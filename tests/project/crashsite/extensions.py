"""What the tests' crawls do to themselves, and what they say about it."""

from __future__ import annotations

import os
import signal

from scrapy import signals

from scrapy_altsched.signals import frontier_committed, frontier_committing


class Killer:
    """Kills the process at the n-th event (setting ``KILL_AT``) of the kinds in ``KILL_ON``."""

    EVENTS = {
        "scheduled": signals.request_scheduled,
        "dropped": signals.request_dropped,
        "reached": signals.request_reached_downloader,
        "left": signals.request_left_downloader,
        "received": signals.response_received,
        "item": signals.item_scraped,
        "committing": frontier_committing,
        "committed": frontier_committed,
        "opened": signals.spider_opened,
        "idle": signals.spider_idle,
    }

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        self.left = crawler.settings.getint("KILL_AT")
        if self.left:
            for name in crawler.settings.getlist("KILL_ON") or self.EVENTS:
                crawler.signals.connect(self.count, self.EVENTS[name])

    def count(self):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class Announcer:
    """Appends to a file (setting ``ANNOUNCE``) which commits were announced, each in a write."""

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        path = crawler.settings["ANNOUNCE"]
        if path:
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            crawler.signals.connect(self.announce, frontier_committed)

    def announce(self, commit):
        os.write(self.file, f"{commit}\n".encode())


class Reporter:
    """Says on standard output what the test waits for (setting ``REPORT``: names of events)."""

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def __init__(self, crawler):
        self.handlers = []
        for name in crawler.settings.getlist("REPORT"):
            self.connect(crawler, name)

    def connect(self, crawler, name):
        def report():
            print(name, flush=True)

        self.handlers.append(report)  # signals keep only weak references
        crawler.signals.connect(report, Killer.EVENTS[name])
