"""What a crawl reports about its job, in the log and in the stats."""

from __future__ import annotations

import logging
from dataclasses import fields
from shlex import quote
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from ..command_line import resume_command
from ..errors import JobdirLostError, StoreDamagedError
from ..frontier.events import Isolated, MemoryFull, Stalled
from ..inflection import inflect
from . import messages
from .given_up import CALLBACK, DOWNLOAD, STATUS
from .messages import Message
from .outcome import DeadLetters, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Request, Spider
    from scrapy.dupefilters import BaseDupeFilter
    from scrapy.statscollectors import StatsCollector

    from ..errors import AltschedError
    from ..frontier import Counts, Event
    from ..frontier.contract import JobInfo

logger = logging.getLogger(__name__)
#: For messages that Scrapy logs as well, so that filters on the logger's name still match.
_scrapy_logger = logging.getLogger("scrapy.core.scheduler")

_COPIED = (
    ", or another worker was started with a copy of this one's JOBDIR (give each one of its own)"
)
_GIVEN_UP = {
    DOWNLOAD: "could not be downloaded",
    STATUS: "had an HTTP status of RETRY_HTTP_CODES each time",
    CALLBACK: "led to an exception in a callback or errback",
}
#: Since scrapy-splash 0.10 its filter is deprecated, and its fingerprinter does the same.
_SPLASH_FILTER = "SplashAwareDupeFilter"
_SPLASH = (
    "To lose none, set REQUEST_FINGERPRINTER_CLASS = 'scrapy_splash.SplashRequestFingerprinter' and"
    " DUPEFILTER_CLASS = 'scrapy_altsched.DupeFilter'."
)


class Reports:
    """The log lines and stats of one crawl.

    :param jobdir: the job directory, or ``None``.
    :param shared: the name of the shared crawl that this is a worker of, or ``None``.
    :param logs_reason: whether the first unserializable request is logged with its traceback
        (``SCHEDULER_DEBUG``).
    :ivar unrecorded_leases: requests that were handed out while that could not be recorded.
    """

    def __init__(
        self,
        spider: Spider,
        stats: StatsCollector,
        jobdir: str | None,
        *,
        shared: str | None = None,
        logs_reason: bool,
    ) -> None:
        self._spider = spider
        self._stats = stats
        self._count = stats.inc_value
        self._jobdir = jobdir
        self._is_shared = is_shared = shared is not None
        self._logs_reason = logs_reason
        self._reported_unserializable = False
        self.unrecorded_leases = 0
        place = quote(jobdir or "") if shared is None else f"--shared {quote(shared)}"
        job = f"he job in {jobdir}" if shared is None else f"he shared crawl {shared!r}"
        #: What any message may use.
        self._known: dict[str, Any] = {
            "job": f"T{job}",
            "lower_job": f"t{job}",
            "jobdir": jobdir,
            "key": shared,
            "quoted_key": quote(shared or ""),
            "setting": "ALTSCHED_SHARED_KEY" if is_shared else "JOBDIR",
            "whom": "another worker" if is_shared else "earlier runs of this job",
            "who": "another worker" if is_shared else "an earlier run of this job",
            "check": f"scrapy altsched check {place}",
            # Of a shared crawl, that is what this worker keeps on its own.
            "repair": f"scrapy altsched check {quote(jobdir or '')} --repair",
            "requeue": f"scrapy altsched requeue {place}",
            "resume": resume_command(jobdir),
        }

    def log(self, message: Message, **values: Any) -> None:
        """Log *message*, and count it if it has a stat."""
        if message.stat is not None:
            self._count(message.stat)
        if message.text:
            self._log(message.level, message.text, **values)

    def _log(self, level: int, text: str, **values: Any) -> None:
        count = values.get("count")
        if count is not None:
            values.setdefault("requests", inflect(count, "request"))
            values.setdefault("requests_were", inflect(count, "request was", "requests were"))
            values.setdefault("are", inflect(count, "is", "are"))
        logger.log(level, text, {**self._known, **values}, extra={"spider": self._spider})

    def log_event(self, event: Event, name: str = "") -> None:
        """Log and count what the frontier did by itself.

        :param name: of the request that it is about.
        """
        message = messages.EVENTS[type(event)]
        if isinstance(event, Stalled) and not event.why:
            message = messages.GOES_ON
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        if isinstance(event, MemoryFull):
            values["changes"] = inflect(event.waiting, "change")
        elif isinstance(event, Isolated):
            times = inflect(event.deaths, "once", f"{event.deaths} times")
            values["when"] = (
                f"{times} while it alone was in flight"
                if event.deaths
                else "more than once while it was one of those in flight"
            )
        copied = _COPIED if self._jobdir is not None else ""
        self.log(message, name=name, copied=copied, remedy=self._remedy_of_loss(), **values)

    def _remedy_of_loss(self) -> str:
        """What to do when the crawl is gone from the server."""
        again = "Restore the server's data, then start the workers again with the same commands"
        if self._jobdir is None:
            return f"{again}; without these data they begin a new crawl."
        return (
            f"{again}. To begin a new crawl instead, delete the workers' JOBDIRs"
            f" ({quote(self._jobdir)}) first: until then they are refused."
        )

    def log_opening(self, job: JobInfo, counts: Counts) -> None:
        """A job is resumed, or begins."""
        if job.rolled_back:
            self._stats.set_value("altsched/rolled_back", job.rolled_back)
        if counts.pending:
            _scrapy_logger.info(
                "Resuming crawl (%(queuesize)d requests scheduled)",
                {"queuesize": counts.pending},
                extra={"spider": self._spider},
            )
        if job.lost_in_memory:
            self._stats.set_value("altsched/lost_in_memory", job.lost_in_memory)
            self.log(messages.LOST_IN_MEMORY, count=job.lost_in_memory)
        self._log_suspicion(job.suspects, job.blamed)
        if job.run > 1 and not job.resumed and not self._is_shared:
            self.log(messages.WAS_FINISHED)
        if job.died_finished:
            self.log(messages.DIED_FINISHED)
        self.log_damage(counts, job.damage)

    def _log_suspicion(self, suspects: int, blamed: int) -> None:
        """Some requests were in flight when the process died, and may have caused that."""
        how = []
        if suspects:
            how.append(f"{suspects} will be crawled one after the other, beside the rest")
        if blamed:
            how.append(
                f"{blamed} will be crawled alone, when nothing else is pending or in a pause of"
                " the crawl, every 10 minutes"
            )
        if how:
            self._stats.set_value("altsched/suspects", suspects + blamed)
            self.log(messages.SUSPICION, count=suspects + blamed, how="; ".join(how))

    def log_foreign_filter(self, dupefilter: BaseDupeFilter) -> None:
        """Another package's dupefilter keeps its own record of what was seen."""
        is_splash = any(parent.__name__ == _SPLASH_FILTER for parent in type(dupefilter).__mro__)
        self.log(
            messages.FOREIGN_FILTER,
            name=global_object_name(type(dupefilter)),
            remedy=_SPLASH if is_splash else "Use 'scrapy_altsched.DupeFilter' to lose none.",
        )

    def log_unserializable(self, request: Request, error: AltschedError) -> None:
        """A request lives in memory only.  The first one is logged."""
        self._stats.inc_value("scheduler/unserializable")
        if not self._reported_unserializable:
            self._reported_unserializable = True
            _scrapy_logger.warning(
                messages.UNSERIALIZABLE,
                {"request": request, "reason": error},
                exc_info=error if self._logs_reason else None,
                extra={"spider": self._spider},
            )

    def log_end(
        self,
        counts: Counts,
        outcome: Outcome,
        dead_letters: DeadLetters,
        *,
        orphans: int,
        damage: str | None,
        store_damaged: bool = False,
        is_lost: bool = False,
    ) -> None:
        """The crawl ended and everything is saved.

        :param orphans: how many requests end with the process that nothing brings again.
        :param damage: what a repair of the store could not keep.
        :param store_damaged: whether the crawl ended because the store has to be repaired.
        :param is_lost: whether the shared crawl is gone from the server.
        """
        set_counts(self._stats, counts)
        if self._jobdir is None and not self._is_shared:
            return
        self._stats.set_value("altsched/outcome", outcome.value)
        if dead_letters.unrestorable:
            self._stats.set_value("altsched/unrestorable", dead_letters.unrestorable)
        message = messages.END[outcome]
        if store_damaged:
            message = Message(message.level, messages.END_DAMAGED)
        elif is_lost:
            message = Message(message.level, messages.END_LOST)
        elif dead_letters.unrestorable:
            message = messages.END_UNRESTORABLE
        self.log(
            message,
            unrestorable=dead_letters.unrestorable,
            examples=dead_letters.examples,
            remedy=self._remedy_of_loss(),
            done=counts.done,
            requests=inflect(counts.done, "request"),
            pending=counts.left,
            dead=counts.dead,
        )
        if counts.memory_only:
            self.log(
                messages.ENDS_IN_MEMORY,
                but=f", but for {orphans} that came from elsewhere: lost" if orphans else "",
                count=counts.memory_only,
                pending=inflect(counts.memory_only, "pending request"),
                end=inflect(counts.memory_only, "ends", "end"),
            )
        self.log_damage(counts, damage)

    def log_unrecorded_leases(self) -> None:
        """Requests were handed out, and that could not be recorded, if there were any."""
        if self.unrecorded_leases:
            self._stats.set_value("altsched/unrecorded_leases", self.unrecorded_leases)
            self.log(messages.UNRECORDED_LEASES, count=self.unrecorded_leases)

    def log_damage(self, counts: Counts, damage: str | None) -> None:
        """Warn if requests of the job are missing, or may be."""
        if counts.unaccounted:
            self._stats.set_value("altsched/unaccounted", counts.unaccounted)
        elif damage is None:
            return
        what = "keys" if self._is_shared else "files"
        if self._is_shared:
            remedy = f"Look at it with: {self._known['check']}."
        elif damage is None:
            remedy = f"Run `{self._known['repair']}` to repair it."
        else:
            remedy = f"Run `{self._known['check']} --accept-loss` to go on without them."
        self.log(
            messages.UNACCOUNTED if counts.unaccounted else messages.MISSING,
            count=counts.unaccounted,
            damage=damage or f"its {what} were damaged, or changed by another program.",
            remedy=remedy,
        )

    def log_nothing_to_do(self, refused: int, *, was_finished: bool) -> None:
        """A run ended without a request: nothing was pending, and no start request was new.

        :param refused: how many start requests there were.
        """
        self.log(
            messages.NOTHING_NEW if was_finished else messages.NOTHING_LEFT,
            refused=inflect(refused, "its start request was", f"all {refused} start requests were"),
        )

    def log_given_up(self, counts: Mapping[str, int]) -> None:
        """Pages were given up, in this run and in earlier ones of the job, if any were.

        :param counts: why, as in :mod:`.given_up` -> how many.
        """
        total = sum(counts.values())
        if not total or (self._jobdir is None and not self._is_shared):
            return
        why = (f"{counts[it]} {words}" for it, words in _GIVEN_UP.items() if counts.get(it))
        self.log(
            messages.GIVEN_UP,
            count=total,
            pages=inflect(total, "page was", "pages were"),
            part="worker" if self._is_shared else "job",
            why=", ".join(why),
        )

    def log_unsaved(self, changes: int, error: AltschedError) -> None:
        """The crawl ended and its last changes could not be saved."""
        self._stats.set_value("altsched/unsaved", changes)
        is_lost = isinstance(error, JobdirLostError)
        then = f"Repair the job with: {self._known['repair']}"
        self._log(
            logging.CRITICAL,
            messages.UNSAVED_LOST if is_lost else messages.UNSAVED,
            error=error,
            then=then if isinstance(error, StoreDamagedError) else self._known["resume"],
            changes=changes,
            noun=inflect(changes, "change"),
        )


def set_counts(stats: StatsCollector, counts: Counts) -> None:
    """Set the stats of the job, over all its runs.  What is in flight counts as pending."""
    stats.set_value("altsched/pending", counts.left)
    stats.set_value("altsched/done", counts.done)
    stats.set_value("altsched/dead", counts.dead)
