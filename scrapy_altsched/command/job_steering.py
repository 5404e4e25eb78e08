"""What is asked of a job, done by the crawl that runs, or where none does, here."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scrapy import Spider
from scrapy.exceptions import UsageError
from scrapy.utils.misc import load_object

from ..crawl.setup import Setup
from ..crawl.visit import apply_waiting
from ..dupefilter import DupeFilter
from ..errors import JobdirError, JobdirLockedError, SpoolError
from ..frontier.shared.record import NAME_CRAWL, refuse_worker_of
from ..frontier.store.holder import find_holder, is_locked
from ..frontier.store.status import NAME as STATUS
from ..frontier.store.status import read_status
from ..scheduler import Scheduler
from ..steering.actions import Action, Effect, Forget, Push, Stop
from ..steering.spool import Sent, Spool
from .project import Project, create_spider

#: Actions for which the spider has to be there.
_OF_SPIDER = (Push, Forget)
_NONE_RUNS = "No crawl of the job is running."
#: Seconds between two looks for an answer; between two tries to lock a job that a process seems to
#: have; and without a sign of life until no answer is expected.
_POLL, _SELDOM, _PATIENCE = 0.1, 2.0, 60.0


def is_running(jobdir: Path) -> bool:
    """Whether another process that has locked a job last lives, as far as that can be told."""
    holder = find_holder(jobdir)
    return holder is not None and holder.pid != os.getpid() and bool(holder.lives())


class JobSteering:
    """Has actions applied to the job in *jobdir*, of the spider *owner*.

    :param given: arguments of the spider, as ``NAME=VALUE``, in case it has to be created.
    """

    def __init__(
        self, jobdir: Path, owner: str, project: Project, given: Sequence[str] = ()
    ) -> None:
        self._jobdir, self._owner, self._project = jobdir, owner, project
        self._given = list(given)

    def apply(self, action: Action) -> Effect:
        """Have an action applied, and wait for that: by the crawl that runs, or else here.

        :raises SpoolError: the process that has the job does not answer.
        """
        status = None
        with suppress(JobdirError):  # what is damaged is written anew
            status = read_status(self._jobdir)
        if status is not None:
            refuse_worker_of(status.standing.shared, self._jobdir, NAME_CRAWL)
        if isinstance(action, Stop) and not (is_running(self._jobdir) or is_locked(self._jobdir)):
            return Effect(note=_NONE_RUNS)
        spool = Spool(self._jobdir)
        sent = spool.send(action)
        try:
            return self._wait(spool, sent, action)
        except BaseException:  # also Ctrl-C: what nothing waits for is not to be applied later
            spool.withdraw(sent)
            raise

    def tell_standing(self) -> None:
        """Write down for `status` how the job stands after a command has changed it."""
        with suppress(JobdirLockedError):  # what runs now writes that itself
            apply_waiting(self._setup(needs_spider=False), lambda _: False)

    def _wait(self, spool: Spool, sent: Sent, action: Action) -> Effect:
        needs_spider = isinstance(action, _OF_SPIDER)

        def takes(waiting: Action) -> bool:
            return needs_spider or not isinstance(waiting, _OF_SPIDER)

        note, state = "", self._sign_of_life()
        heard = tried = time.monotonic()
        while (effect := spool.take_answer(sent)) is None:
            # Seldom while a crawl seems to run: one that begins must find the job unlocked.
            is_due = not is_running(self._jobdir) or time.monotonic() - tried > _SELDOM
            if is_due and not is_locked(self._jobdir):
                tried = time.monotonic()
                with suppress(JobdirLockedError):
                    apply_waiting(self._setup(needs_spider=needs_spider), takes)
                    note = f"{_NONE_RUNS} It holds from the next one on."
                    if isinstance(action, Stop):
                        return Effect(note=_NONE_RUNS)
            time.sleep(_POLL)
            if not sent.path.exists() and (effect := spool.take_answer(sent)) is None:
                raise SpoolError(
                    f"What was asked for is gone from {spool.directory} without an answer: it was"
                    " deleted, or the crawl has skipped it as not valid, which its log tells."
                )
            if effect is not None:
                break
            if (now := self._sign_of_life()) != state:
                heard, state = time.monotonic(), now
            if time.monotonic() - heard > _PATIENCE:
                holder = find_holder(self._jobdir)
                raise SpoolError(
                    f"Process {holder.pid if holder else '(unknown)'}, which has the job in"
                    f" {self._jobdir}, has not taken what was asked for within {_PATIENCE:.0f} s,"
                    " and it was withdrawn: the process may hang, or run an older version of"
                    " scrapy_altsched."
                )
        return replace(effect, note=f"{effect.note} {note}".strip())

    def _sign_of_life(self) -> int:
        with suppress(OSError):
            return (self._jobdir / STATUS).stat().st_mtime_ns
        return 0

    def _setup(self, *, needs_spider: bool) -> Setup:
        settings = self._project.settings.copy()
        settings.set("ALTSCHED_SHARED", False, "cmdline")
        project = Project(settings)
        if needs_spider:
            spider = create_spider(project, self._owner, self._given)
        else:
            spider = Spider(self._owner)
            try:
                spider.crawler = project.crawler(self._owner)
            except UsageError:  # what is asked for can be done without its class
                spider.crawler = project.crawler()
        crawler = spider.crawler
        # Without the spider, no fingerprint is asked for.
        name = crawler.settings["DUPEFILTER_CLASS"] if needs_spider else DupeFilter
        dupefilter = load_object(name).from_crawler(crawler)
        jobdir = str(self._jobdir)
        scheduler = Scheduler(dupefilter, jobdir, stats=crawler.stats, crawler=crawler)
        scheduler.spider = spider
        own_filter = scheduler.df if isinstance(scheduler.df, DupeFilter) else None
        return Setup(scheduler, own_filter)
