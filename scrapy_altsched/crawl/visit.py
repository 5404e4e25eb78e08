"""Applies what waits in the spool of a job that no crawl runs of, as a crawl does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scrapy import Request

from ..errors import JobdirError
from ..frontier import Counts, Verdict
from ..frontier.contract import Standing
from ..frontier.store.status import read_status
from ..maintenance.opening import visit
from ..requests.codec import locate
from ..requests.entries import Entries, RequestEntry
from ..requests.identity import PageIdentity
from ..resume.state import ResumeState, ResumeStates
from ..steering.actions import Action, tell_over_budget
from ..steering.spool import Spool
from .deferrals import Deferrals
from .hold import Hold
from .inlet import Inlet
from .receiver import Receiver
from .setup import Setup
from .status import NAMED


def entry_of(request: Request, identity: PageIdentity, entries: Entries) -> RequestEntry:
    """A request that is pushed where no crawl is open, as a frontier takes it.

    A filter of the project's own, which keeps its own record of what was seen, is not asked.
    """
    fingerprint = identity.of(request, identity.page_of(request))
    unique = not request.dont_filter and identity.is_refused is None
    return RequestEntry(fingerprint, request, unique, False, entries)


def apply_waiting(setup: Setup, takes: Callable[[Action], bool]) -> None:
    """Apply actions that wait for the job in the setup's JOBDIR; no run of it begins.

    Those who look in are told how the job stands then, also if there were none.

    :param takes: whether an action can be applied with this setup; others are left.
    :raises JobdirLockedError: a crawl runs, or another command has the job.
    :raises AltschedError: it cannot be used; what was answered is stored.
    """
    assert setup.jobdir is not None
    options = replace(setup.config.frontier, clock=setup.clock)
    frontier = visit(setup.jobdir, setup.spider.name, options)
    # The queues are those of the job, whatever the settings say now.
    setup.entries.by_slot = True
    try:

        def add(request: Request) -> str:
            verdict = frontier.add(entry_of(request, setup.identity, setup.entries))
            return tell_over_budget(request.url) if verdict is Verdict.OVER_BUDGET else ""

        def save() -> bool:
            while not frontier.commit(states.capture(), wait=True, whole=True):
                pass
            if setup.config.sync:
                frontier.run.sync()
            return True

        deferrals, hold = Deferrals(setup, frontier), Hold(setup)
        inlet = Inlet(setup, frontier, add, deferrals, hold, locate=locate)
        states = ResumeStates(frontier.run.note, resumed=True)
        receiver = Receiver(Spool(Path(setup.jobdir)), inlet, save, takes=takes)
        for part in deferrals, hold, receiver:
            states.add(ResumeState(capture=part.capture, restore=part.restore))
        while receiver.step():
            pass
        save()
        now = setup.clock.wall()
        before = Standing(setup.spider.name, Counts(), now)
        with suppress(JobdirError):  # what is damaged is written anew
            if (known := read_status(Path(setup.jobdir))) is not None:
                before = known.standing
        standing = replace(
            before,
            counts=frontier.counts(),
            at=now,
            held=deferrals.held(NAMED),
            busiest=frontier.busiest_slots(all_at_once=True),
            paused=hold.since,
        )
        frontier.run.publish(standing)
        frontier.close()
    finally:
        frontier.abandon()
