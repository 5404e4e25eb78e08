"""What a crawl reports about its job, in the log and in the stats."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timezone
from shlex import quote
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from ..command_line import resume_command
from ..errors import AltschedError, JobdirLostError, StoreDamagedError
from ..frontier.events import Isolated, Stalled
from ..inflection import inflect
from . import messages
from .messages import Message
from .outcome import DeadLetters, Outcome

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.dupefilters import BaseDupeFilter
    from scrapy.statscollectors import StatsCollector

    from ..frontier import Counts, Event
    from ..frontier.contract import JobInfo

_logger = logging.getLogger(__name__)
#: For messages that Scrapy logs as well: filters on the logger's name still match.
_scrapy_logger = logging.getLogger("scrapy.core.scheduler")

_COPIED = (
    ", or another worker was started with a copy of this one's JOBDIR (give each one of its own)"
)
_SUSPECTS = (
    "one after the other, along with the rest",
    "alone, when nothing else is pending or in a pause of the crawl, every 10 minutes",
)
#: Since scrapy-splash 0.10 its filter is deprecated, and its fingerprinter does the same.
_SPLASH = (
    "To lose none, set REQUEST_FINGERPRINTER_CLASS = 'scrapy_splash.SplashRequestFingerprinter' and"
    " DUPEFILTER_CLASS = 'scrapy_altsched.DupeFilter'."
)


class _Values(dict[str, Any]):
    """The values of a message, and the words that go with its numbers."""

    def __missing__(self, key: str) -> str:
        count, one, *many = key.split("|")
        return inflect(self[count], one, *many)


class Reports:
    """The log lines and stats of one crawl.

    :param shared: the name of the shared crawl that this is a worker of, or ``None``.
    :param place: the words by which commands find the job, or the shared crawl.
    :param logs_reason: whether the first unserializable request is logged with its traceback.
    """

    def __init__(
        self,
        spider: Spider,
        stats: StatsCollector,
        jobdir: str | None,
        shared: str | None,
        place: str,
        *,
        logs_reason: bool,
    ) -> None:
        self._spider, self._stats = spider, stats
        self._set, self._increase = stats.set_value, stats.inc_value
        self._jobdir, self._logs_reason = jobdir, logs_reason
        self._is_shared = is_shared = shared is not None
        self._reported_unserializable = self._reported_delay = self._reported_wait = False
        job = f"he shared crawl {shared!r}" if is_shared else f"he job in {jobdir}"
        other = "another worker" if is_shared else "an earlier run of this job"
        anew = "; without these data they begin a new crawl."
        if jobdir is not None:
            anew = (
                ". To begin a new crawl instead, delete the workers' JOBDIRs"
                f" ({quote(jobdir)}) first: until then they are refused."
            )
        #: What any message may use.
        self._known: dict[str, Any] = {
            "job": f"T{job}",
            "lower_job": f"t{job}",
            "jobdir": jobdir,
            "key": shared,
            "place": place,
            "setting": "ALTSCHED_SHARED_KEY" if is_shared else "JOBDIR",
            "part": "worker" if is_shared else "job",
            "who": other,
            "whom": other if is_shared else "earlier runs of this job",
            "check": f"scrapy altsched check {place}",
            # Of a shared crawl, that is what this worker keeps on its own.
            "repair": f"scrapy altsched check {quote(jobdir or '')} --repair",
            "copied": _COPIED if jobdir is not None else "",
            "requeue": f"scrapy altsched requeue {place}",
            "unpause": f"scrapy altsched resume {place}",
            "resume": resume_command(jobdir),
            # When the crawl is gone from the server.
            "remedy": "Restore the server's data, then start the workers again with the same"
            f" commands{anew}",
        }

    def log(
        self,
        message: Message,
        *,
        logger: logging.Logger = _logger,
        exc_info: Exception | None = None,
        **values: Any,
    ) -> None:
        """Log and count *message*, unless its ``count`` is 0."""
        level, text, stat = message
        count = values.get("count")
        if count == 0:
            return
        if stat is not None and count is not None:
            self._set(stat, count)
        elif stat is not None:
            self._increase(stat)
        if text:
            values = _Values(self._known, **values)
            logger.log(level, text, values, exc_info=exc_info, extra={"spider": self._spider})

    def log_event(self, event: Event, name: str = "") -> None:
        """Log and count what the frontier did by itself, with the request of this *name*."""
        message = messages.EVENTS[type(event)]
        if isinstance(event, Stalled) and not event.why:
            message = messages.GOES_ON
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        if isinstance(event, Isolated):
            times = inflect(event.deaths, "once", f"{event.deaths} times")
            values["when"] = f"{times} while it alone was in flight"
            if not event.deaths:
                values["when"] = "more than once while it was one of those in flight"
        self.log(message, name=name, **values)

    def log_opening(self, job: JobInfo, counts: Counts, due: float | None) -> None:
        """The job was opened; *due*: when its first delayed request is."""
        if job.rolled_back:
            self._stats.set_value("altsched/rolled_back", job.rolled_back)
        if counts.left:
            self.log(messages.RESUMES, logger=_scrapy_logger, queuesize=counts.left)
        self.log(messages.RETRIED, count=job.retried)
        self._log_delayed(messages.DELAYED, counts.delayed, due)
        if job.clock_behind:
            self.log(messages.CLOCK_BEHIND, seconds=job.clock_behind)
        self.log(messages.LOST_IN_MEMORY, count=job.lost_in_memory)
        how = zip((job.suspects, job.blamed), _SUSPECTS, strict=True)
        hows = "; ".join(f"{count} will be crawled {it}" for count, it in how if count)
        self.log(messages.SUSPICION, count=job.suspects + job.blamed, how=hows)
        if job.run > 1 and not job.resumed and not self._is_shared:
            or_old = " or old enough (ALTSCHED_RECRAWL_AFTER)" if job.records_ages else ""
            self.log(messages.WAS_FINISHED, or_old=or_old)
        if job.died_finished:
            self.log(messages.DIED_FINISHED)
        self._log_damage(counts, job.damage)

    def log_foreign_filter(self, dupefilter: BaseDupeFilter) -> None:
        kind = type(dupefilter)
        is_splash = "SplashAwareDupeFilter" in {parent.__name__ for parent in kind.__mro__}
        instead = _SPLASH if is_splash else "Use 'scrapy_altsched.DupeFilter' to lose none."
        self.log(messages.FOREIGN_FILTER, name=global_object_name(kind), instead=instead)

    def log_unserializable(self, request: Request, error: AltschedError) -> None:
        self._stats.inc_value("scheduler/unserializable")
        if not self._reported_unserializable:
            self._reported_unserializable = True
            values = {"request": request, "reason": error}
            cause = error if self._logs_reason else None
            self.log(messages.UNSERIALIZABLE, logger=_scrapy_logger, exc_info=cause, **values)

    def log_bad_delay(self, request: Request, key: str, value: object, why: str) -> None:
        self._stats.inc_value("altsched/delay/ignored")
        if not self._reported_delay:
            self._reported_delay = True
            self.log(messages.BAD_DELAY, request=request, key=key, value=value, why=why)

    def log_wait(self, delayed: int, next_due: Callable[[], float | None]) -> None:
        """The crawl does nothing but wait for delayed requests: told once a run."""
        if not self._reported_wait:
            self._reported_wait = True
            self._log_delayed(messages.WAITS, delayed, next_due())

    def _log_delayed(self, message: Message, count: int, due: float | None) -> None:
        if due is not None:
            until = datetime.fromtimestamp(due, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
            self.log(message, count=count, until=until)

    def log_end(
        self,
        reason: str,
        counts: Counts,
        outcome: Outcome,
        dead_letters: DeadLetters,
        *,
        orphans: int,
        damage: str | None,
        due: float | None,
    ) -> None:
        """The crawl has ended; *orphans*: requests that end with it and nothing brings again.

        *due*: when the first delayed request is.
        """
        self.set_counts(counts)
        if self._jobdir is None and not self._is_shared:
            return
        self._stats.set_value("altsched/outcome", outcome.value)
        message = messages.END[outcome]
        if dead_letters.unrestorable:
            self._stats.set_value("altsched/unrestorable", dead_letters.unrestorable)
            message = messages.END_UNRESTORABLE
        self.log(
            messages.CLOSED.get(reason, message),
            unrestorable=dead_letters.unrestorable,
            examples=dead_letters.examples,
            done=counts.done,
            pending=counts.left,
            dead=counts.dead,
        )
        self._log_delayed(messages.STAY_DELAYED, counts.delayed, due)
        but = f", but for {orphans} that came from elsewhere: lost" if orphans else ""
        self.log(messages.ENDS_IN_MEMORY, count=counts.memory_only, but=but)
        self._log_damage(counts, damage)

    def _log_damage(self, counts: Counts, damage: str | None) -> None:
        """Say what is missing; *damage*: what a repair of the store could not keep."""
        if self._is_shared:
            instead = f"Look at it with: {self._known['check']}."
        elif damage is None:
            instead = f"Run `{self._known['repair']}` to repair it."
        else:
            instead = f"Run `{self._known['check']} --accept-loss` to go on without them."
        if counts.unaccounted:
            what = "keys" if self._is_shared else "files"
            damage = damage or f"its {what} were damaged, or changed by another program."
            count = counts.unaccounted
            self.log(messages.UNACCOUNTED, count=count, damage=damage, instead=instead)
        elif damage is not None:
            self.log(messages.MISSING, damage=damage, instead=instead)

    def log_unsaved(self, changes: int, error: AltschedError) -> None:
        self._stats.set_value("altsched/unsaved", changes)
        message, then = messages.UNSAVED, self._known["resume"]
        if isinstance(error, JobdirLostError):
            message = messages.UNSAVED_LOST
        elif isinstance(error, StoreDamagedError):
            then = f"Repair the job with: {self._known['repair']}"
        self.log(message, error=error, then=then, changes=changes)

    def set_counts(self, counts: Counts) -> None:
        """Set the stats of the job, over all its runs.  What is in flight counts as pending."""
        self._stats.set_value("altsched/pending", counts.pending + counts.leased)
        self._stats.set_value("altsched/in_flight", counts.leased)
        self._stats.set_value("altsched/delayed", counts.delayed)
        self._stats.set_value("altsched/done", counts.done)
        self._stats.set_value("altsched/dead", counts.dead)
        self._stats.set_value("altsched/failed", counts.failed)
