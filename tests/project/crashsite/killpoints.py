"""The steps of a crawl, and an extension that kills the process before or after one of them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import wraps

from scrapy_altsched.crawl.committer import Committer
from scrapy_altsched.crawl.session import Session
from scrapy_altsched.crawl.traffic import Traffic
from scrapy_altsched.feeds import FileStorage, JobFeeds
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.local.persistence import Persistence
from scrapy_altsched.frontier.local.uncommitted import Uncommitted
from scrapy_altsched.frontier.store.job_run import JobRun
from scrapy_altsched.frontier.store.jobdir import Jobdir
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.lease_log import LeaseLog
from scrapy_altsched.frontier.store.store import Store
from scrapy_altsched.resume.spider_state import SpiderStateCheckpoint
from scrapy_altsched.scheduler import Scheduler


@dataclass(frozen=True)
class Step:
    """A method that a crawl comes by.

    :ivar once: whether it does so once.
    """

    owner: type
    method: str
    once: bool = False


#: What it does -> where that is.
STEPS = {
    # At the open
    "the lock": Step(Jobdir, "_take_lock", once=True),
    "looking whose the store is": Step(Journal, "_identify", once=True),
    "opening the store": Step(Journal, "_open", once=True),
    "looking back": Step(Journal, "_look_back", once=True),
    "deleting rows of nobody": Step(Store, "remove_orphans", once=True),
    "loading": Step(Persistence, "begin", once=True),
    "restoring the spider's state": Step(SpiderStateCheckpoint, "restore", once=True),
    "opening the scheduler": Step(Scheduler, "open", once=True),
    "opening a feed's file": Step(FileStorage, "open", once=True),
    # On the way of a request
    "an add": Step(LocalFrontier, "add"),
    "a lease": Step(LocalFrontier, "lease"),
    "recording a lease": Step(LeaseLog, "note"),
    "a response": Step(JobRun, "note_response"),
    "handing out a request": Step(Traffic, "_take"),
    "the end of a request": Step(LocalFrontier, "finish"),
    # At a commit
    "a commit": Step(Committer, "_commit"),
    "settling what has happened": Step(Session, "_settle"),
    "asking others to write": Step(Committer, "_prepare_others"),
    "flushing a feed": Step(JobFeeds, "write_out"),
    "preparing a batch": Step(Uncommitted, "prepare"),
    "the commit of the frontier": Step(LocalFrontier, "commit"),
    "writing a batch": Step(Store, "write"),
    "noting the last commit": Step(Jobdir, "note_commit"),
    "beginning the log of leases anew": Step(LeaseLog, "restart"),
    "forgetting what was written": Step(Uncommitted, "settle"),
    "telling of the commit": Step(Committer, "_announce"),
    # At the close
    "noting that it begins to close": Step(LeaseLog, "note_closing", once=True),
    "closing the scheduler": Step(Scheduler, "close", once=True),
    "the last commit": Step(Committer, "finish", once=True),
    "closing the frontier": Step(LocalFrontier, "close", once=True),
    "the last batch": Step(JobRun, "finish", once=True),
    "forcing the log to the disk": Step(Store, "sync", once=True),
    "closing the store": Step(Store, "close", once=True),
    "letting the directory go": Step(Jobdir, "release", once=True),
    "closing a feed's file": Step(FileStorage, "store", once=True),
}


class KillPoint:
    """Kills the process ``before`` or ``after`` a step (setting ``KILL_POINT``), the n-th time."""

    @classmethod
    def from_crawler(cls, crawler):
        point = crawler.settings["KILL_POINT"]
        if point:
            when, _, name = point.partition(" ")
            arm(STEPS[name], when, crawler.settings.getint("KILL_TIME"))
        return cls()


def arm(step, when, left):
    method = getattr(step.owner, step.method)
    names = method.__code__.co_varnames

    @wraps(method)
    def killing(*args, **kwargs):
        nonlocal left
        # Whoever sends a signal looks which arguments a handler takes, and sees any here.
        kwargs = {name: value for name, value in kwargs.items() if name in names}
        left -= 1
        if not left and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **kwargs)
        if left <= 0 and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(step.owner, step.method, killing)
