"""What a crawl reports about its job, in the log and in the stats."""

from __future__ import annotations

import logging
from shlex import quote
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from ..command_line import resume_command
from ..errors import JobdirLostError, StoreDamagedError
from ..inflection import inflect
from .given_up import CALLBACK, DOWNLOAD, STATUS
from .outcome import DeadLetters, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Request, Spider
    from scrapy.dupefilters import BaseDupeFilter
    from scrapy.statscollectors import StatsCollector

    from ..errors import AltschedError
    from ..frontier import Counts
    from ..frontier.contract import JobInfo

logger = logging.getLogger(__name__)
#: For messages that Scrapy logs as well, so that filters on the logger's name still match.
_scrapy_logger = logging.getLogger("scrapy.core.scheduler")

_FINISHED = "%(job)s is finished: %(done)d %(requests)s done, none pending, %(dead)d dead"
_DEAD_LETTERS = _FINISHED + ". List the dead ones with: %(requeue)s"
_NOT_FINISHED = (
    "%(job)s is not finished: %(done)d %(requests)s done, %(pending)d pending, %(dead)d dead. "
)
_UNRESTORABLE = (
    "%(unrestorable)d of the dead letters could not be restored, for example %(examples)s. Fix"
    " what the reasons name, then make them pending again with: %(requeue)s --all  %(resume)s"
)
_NOTHING_DONE = (
    "Nothing was crawled: the first requests are dead, for example %(examples)s. Fix the cause,"
    " then make them pending again with: %(requeue)s --all  %(resume)s"
)
_UNFINISHED = _NOT_FINISHED + "%(resume)s"
_UNACCOUNTED = (
    "Of the requests that %(job)s had accepted, %(count)d %(are)s neither done,"
    " pending nor dead: %(damage)s"
)
_MISSING = "Requests of %(job)s may be missing: %(damage)s"
_DAMAGED = (
    "%(job)s is not finished, and its store is damaged: %(done)d %(requests)s done,"
    " %(pending)d pending, %(dead)d dead. Repair it with: %(repair)s"
)
_COPIED = (
    ", or another worker was started with a copy of this one's JOBDIR (give each one of its own)"
)
_LOST = _NOT_FINISHED + "%(remedy)s"
_END = {
    Outcome.FINISHED: (logging.INFO, _FINISHED),
    Outcome.DEAD_LETTERS: (logging.WARNING, _DEAD_LETTERS),
    Outcome.BLOCKED: (logging.ERROR, _NOT_FINISHED + _NOTHING_DONE),
    Outcome.UNFINISHED: (logging.INFO, _UNFINISHED),
}
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
#: Why a finished job refuses start requests, and why an unfinished one does.
_SEEN = {
    "why": "seen by earlier runs, which finished the job",
    "or": ", or yield start requests with dont_filter=True.",
}
_STARTED = {"why": "accepted by earlier runs, which crawled everything there was", "or": "."}


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
        self._jobdir = jobdir
        self._shared = shared
        self._is_shared = shared is not None
        self._job = f"The job in {jobdir}" if shared is None else f"The shared crawl {shared!r}"
        self._logs_reason = logs_reason
        self._reported_unserializable = False
        self.unrecorded_leases = 0
        place = f"--shared {quote(shared)}" if shared is not None else quote(jobdir or "")
        self._check = f"scrapy altsched check {place}"
        # Of a shared crawl, that is what this worker keeps on its own.
        self._repair = f"scrapy altsched check {quote(jobdir or '')} --repair"
        self._requeue = f"scrapy altsched requeue {place}"
        self._resume = resume_command(jobdir)

    def log_opening(self, job: JobInfo, counts: Counts) -> None:
        """A job is resumed, or begins."""
        self._log_resumption(counts.pending, job)
        self._log_suspicion(job.suspects, job.blamed)
        if job.run > 1 and not job.resumed and not self._is_shared:
            self._log_was_finished()
        if job.died_finished:
            self._log_died_finished()
        self.log_damage(counts, job.damage)

    def _log_resumption(self, pending: int, job: JobInfo) -> None:
        lost_in_memory = job.lost_in_memory
        if job.rolled_back:
            self._stats.set_value("altsched/rolled_back", job.rolled_back)
        if pending:
            _scrapy_logger.info(
                "Resuming crawl (%(queuesize)d requests scheduled)",
                {"queuesize": pending},
                extra={"spider": self._spider},
            )
        if lost_in_memory:
            self._stats.set_value("altsched/lost_in_memory", lost_in_memory)
            self._log(
                logging.WARNING,
                "%(count)d %(requests)s that could not be serialized ended with an earlier run of"
                " this job. The pages and start requests that led to them are crawled again, to"
                " find them.",
                count=lost_in_memory,
                requests=inflect(lost_in_memory, "request"),
            )

    def _log_was_finished(self) -> None:
        """A finished job is run again."""
        self._log(
            logging.INFO,
            "The job in %(jobdir)s had finished. This run crawls its start requests again, unless"
            " they are filtered as duplicates, and whatever is new. To crawl everything"
            " again, delete that directory or set another JOBDIR.",
            jobdir=self._jobdir,
        )

    def _log_died_finished(self) -> None:
        """The last run finished the job, but its process was killed before it exited."""
        self._log(
            logging.WARNING,
            "The last run finished the job in %(jobdir)s, but its process died before it exited."
            " This run only completes it: nothing is crawled again, and feeds are appended to, not"
            " overwritten. To crawl the start requests again, run the same command once more after"
            " this.",
            jobdir=self._jobdir,
        )

    def log_foreign_filter(self, dupefilter: BaseDupeFilter) -> None:
        """Another package's dupefilter keeps its own record of what was seen."""
        is_splash = any(parent.__name__ == _SPLASH_FILTER for parent in type(dupefilter).__mro__)
        self._log(
            logging.WARNING,
            "DUPEFILTER_CLASS is %(name)s: what it has seen and what this scheduler has stored are"
            " not saved atomically, so after a crash requests may be missing or crawled twice."
            " %(remedy)s",
            name=global_object_name(type(dupefilter)),
            remedy=_SPLASH if is_splash else "Use 'scrapy_altsched.DupeFilter' to lose none.",
        )

    def log_unserializable(self, request: Request, error: AltschedError) -> None:
        """A request lives in memory only.  The first one is logged, in Scrapy's words."""
        self._stats.inc_value("scheduler/unserializable")
        if self._reported_unserializable:
            return
        self._reported_unserializable = True
        _scrapy_logger.warning(
            "Unable to serialize request: %(request)s - reason: %(reason)s - no more"
            " unserializable requests will be logged (stats being collected)",
            {"request": request, "reason": error},
            exc_info=error if self._logs_reason else None,
            extra={"spider": self._spider},
        )

    def log_dead_lettered(self, name: str, why: str) -> None:
        """A request is a dead letter."""
        self._log(
            logging.WARNING,
            "The request %(name)s is now a dead letter and is not crawled: %(why)s.",
            name=name,
            why=why,
        )

    def log_unrestorable(self, url: str | None, error: AltschedError) -> None:
        """A request cannot be restored: the first one of this run, of which there may be more."""
        self._log(
            logging.WARNING,
            "The request for %(url)s cannot be restored and becomes a dead letter: %(error)s."
            " Further ones are only counted, and the total is logged when the crawl ends.",
            url=url or "an unknown URL",
            error=error,
        )

    def log_hopeless(self, count: int, reason: str) -> None:
        """The spider is closed, since none of *count* requests could be restored."""
        self._log(
            logging.ERROR,
            "The spider is closed (%(reason)s): none of the first %(count)d requests could be"
            " restored. The others stay pending.",
            reason=reason,
            count=count,
        )

    def log_skipped_starts(self, count: int) -> None:
        """Start requests were skipped, as earlier runs had accepted them."""
        self._log(
            logging.INFO,
            "%(count)d start %(requests)s skipped: accepted by %(whom)s (setting"
            " ALTSCHED_SKIP_STARTED). A request that every run has to make, such as a login, needs"
            " meta={'altsched_every_run': True}.",
            count=count,
            whom="another worker" if self._is_shared else "earlier runs of this job",
            requests=inflect(count, "request was", "requests were"),
        )

    def log_skipped_again(self, count: int) -> None:
        """Start requests that were skipped are crawled again, as ``start()`` waits."""
        self._log(
            logging.WARNING,
            "start() waits, and nothing else is left to do. It may wait for a page that was skipped"
            " because %(whom)s had accepted its request: the last %(requests)s skipped %(are)s"
            " crawled again. Give a request that start() waits for meta={'altsched_every_run':"
            " True}: every run makes it then.",
            whom="another worker" if self._is_shared else "an earlier run of this job",
            requests=inflect(count, "request", f"{count} requests"),
            are=inflect(count, "is", "are"),
        )

    def log_start_waits(self, count: int) -> None:
        """``start()`` waits, and there is nothing to crawl again.

        :param count: how many of its requests were refused.
        """
        self._log(
            logging.WARNING,
            "start() waits, and nothing else is left to do. %(requests)s refused, as accepted"
            " before: if it waits for the page of one, this run does not end. Yield such a request"
            " with dont_filter=True, or with meta={'altsched_every_run': True}.",
            requests=inflect(count, "One of its requests was", f"{count} of its requests were"),
        )

    def log_overdue(self, in_flight: int, to_come: int) -> None:
        """Requests that every run has to make took too long."""
        self._log(
            logging.WARNING,
            "Of the requests that every run has to make (meta key altsched_every_run),"
            " after three times DOWNLOAD_TIMEOUT, %(in_flight)d are still in flight and"
            " %(to_come)d did not come from start(). All others are crawled now, without waiting"
            " for these any longer.",
            in_flight=in_flight,
            to_come=to_come,
        )

    def _log_suspicion(self, suspects: int, blamed: int) -> None:
        """Some requests were in flight when the process died, and may have caused that."""
        if suspects or blamed:
            self._stats.set_value("altsched/suspects", suspects + blamed)
            how = []
            if suspects:
                how.append(f"{suspects} will be crawled one after the other, beside the rest")
            if blamed:
                how.append(
                    f"{blamed} will be crawled alone, when nothing else is pending or in a pause of"
                    " the crawl, every 10 minutes"
                )
            self._log(
                logging.INFO,
                "Earlier runs of this job died, and %(all)d %(requests)s may be the reason:"
                " %(how)s.",
                all=suspects + blamed,
                requests=inflect(suspects + blamed, "request"),
                how="; ".join(how),
            )

    def log_unreachable(self, error: AltschedError) -> None:
        """The server of a shared crawl does not answer, or refuses what it is told."""
        self._log(
            logging.WARNING,
            "%(error)s The crawl continues with the requests at hand, and tries again.",
            error=error,
        )

    def log_server(self, warning: str) -> None:
        """The server of a shared crawl is not as it should be."""
        self._log(logging.WARNING, "%(warning)s", warning=warning)

    def log_memory_full(self, waiting: int) -> None:
        """The server of a shared crawl has no memory for new requests."""
        self._log(
            logging.WARNING,
            "The server of the shared crawl has no memory for new requests: %(waiting)d %(changes)s"
            " and those that follow wait here, and are sent again every few seconds; what is stored"
            " is crawled meanwhile. Raise the server's maxmemory (redis-cli CONFIG SET maxmemory"
            " ...), or delete what is not needed, such as a shared crawl: scrapy altsched drop KEY",
            waiting=waiting,
            changes=inflect(waiting, "change"),
        )

    def log_stalled(self, seconds: float, why: str) -> None:
        """Nothing is done for long, though there is something to do; no reason: it goes on."""
        if why:
            self._stats.inc_value("altsched/shared/stalled")
            self._log(
                logging.ERROR,
                "This worker has made no progress for %(seconds).0f s: %(why)s. Look at the crawl"
                " with: %(check)s",
                seconds=seconds,
                why=why,
                check=self._check,
            )
        else:
            self._log(
                logging.INFO,
                "This worker makes progress again, after %(seconds).0f s",
                seconds=seconds,
            )

    def log_history_lost(self) -> None:
        """The server has lost its latest changes."""
        self._log(
            logging.WARNING,
            "The server of the shared crawl %(key)r has lost its latest changes, as after a"
            " restart%(copy)s. Pages in flight go back, and are crawled again; start() runs once"
            " more.",
            key=self._shared,
            copy=_COPIED if self._jobdir is not None else "",
        )

    def log_frontier_lost(self) -> None:
        """The crawl is gone from the server."""
        self._log(
            logging.ERROR,
            "%(job)s is no longer on the server, or is another one: the spider is closed"
            " (frontier_lost). %(remedy)s",
            job=self._job,
            remedy=self._remedy_of_loss(),
        )

    def _remedy_of_loss(self) -> str:
        """What to do when the crawl is gone from the server."""
        again = "Restore the server's data, then start the workers again with the same commands"
        if self._jobdir is None:
            return f"{again}; without these data they begin a new crawl."
        return (
            f"{again}. To begin a new crawl instead, delete the workers' JOBDIRs"
            f" ({quote(self._jobdir)}) first: until then they are refused."
        )

    def log_came_late(self) -> None:
        """The crawl had finished before."""
        self._log(
            logging.INFO,
            "%(job)s had finished before this worker came to it. To crawl everything again, run:"
            " scrapy altsched restart %(key)s",
            job=self._job,
            key=quote(self._shared or ""),
        )

    def log_isolated(self, name: str, deaths: int) -> None:
        """A request is leased alone.

        :param deaths: of the process, while it was alone before.
        """
        times = inflect(deaths, "once", f"{deaths} times")
        self._log(
            logging.INFO,
            "The request %(name)s is crawled alone, since the process died %(when)s. All others"
            " wait until it is done.",
            name=name,
            when=(
                f"{times} while it alone was in flight"
                if deaths
                else "more than once while it was one of those in flight"
            ),
        )

    def log_accompanied(self, name: str, why: str) -> None:
        """A request that was leased alone no longer is."""
        self._log(
            logging.WARNING,
            "The request %(name)s is no longer crawled alone: %(why)s.",
            name=name,
            why=why,
        )

    def log_unrecorded_leases(self) -> None:
        """Requests were handed out, and that could not be recorded, if there were any."""
        count = self.unrecorded_leases
        if not count:
            return
        self._stats.set_value("altsched/unrecorded_leases", count)
        self._log(
            logging.WARNING,
            "Could not record in JOBDIR %(jobdir)s that %(count)d %(requests)s in flight: one that"
            " had killed the process would not have been identified. Check that the disk has space"
            " and can be written to.",
            count=count,
            requests=inflect(count, "request was", "requests were"),
            jobdir=self._jobdir,
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
        level, message = _END[outcome]
        if store_damaged:
            message = _DAMAGED
        elif is_lost:
            message = _LOST
        elif dead_letters.unrestorable:
            level, message = logging.ERROR, _NOT_FINISHED + _UNRESTORABLE
        self._log(
            level,
            message,
            job=self._job,
            repair=self._repair,
            requeue=self._requeue,
            unrestorable=dead_letters.unrestorable,
            examples=dead_letters.examples,
            resume=self._resume,
            remedy=self._remedy_of_loss() if is_lost else "",
            done=counts.done,
            requests=inflect(counts.done, "request"),
            pending=counts.pending + counts.leased,
            dead=counts.dead,
        )
        if counts.memory_only:
            self._log(
                logging.WARNING,
                "%(count)d %(requests)s could not be serialized and %(end)s with this process. The"
                " pages and start requests that led to them stay pending, and find them again"
                "%(but)s.",
                but=f", but for {orphans} that came from elsewhere: lost" if orphans else "",
                count=counts.memory_only,
                requests=inflect(counts.memory_only, "pending request"),
                end=inflect(counts.memory_only, "ends", "end"),
            )
        self.log_damage(counts, damage)

    def log_damage(self, counts: Counts, damage: str | None) -> None:
        """Warn if requests of the job are missing, or may be."""
        if counts.unaccounted:
            self._stats.set_value("altsched/unaccounted", counts.unaccounted)
        if counts.unaccounted or damage is not None:
            self._log(
                logging.WARNING,
                f"{_UNACCOUNTED if counts.unaccounted else _MISSING} The job cannot be finished."
                " %(remedy)s To be sure of every page, start it over with another %(setting)s.",
                setting="ALTSCHED_SHARED_KEY" if self._is_shared else "JOBDIR",
                count=counts.unaccounted,
                are=inflect(counts.unaccounted, "is", "are"),
                job=self._job[0].lower() + self._job[1:],
                damage=damage
                or f"its {'keys' if self._is_shared else 'files'} were damaged, or"
                " changed by another program.",
                remedy=self._remedy(damage),
            )

    def _remedy(self, damage: str | None) -> str:
        if self._is_shared:
            return f"Look at it with: {self._check}."
        if damage is None:
            return f"Run `{self._repair}` to repair it."
        return f"Run `{self._check} --accept-loss` to go on without them."

    def log_nothing_to_do(self, refused: int, *, was_finished: bool) -> None:
        """A run ended without a request: nothing was pending, and no start request was new.

        :param refused: how many start requests there were.
        """
        self._log(
            logging.WARNING,
            "This run crawled nothing: no request was pending in JOBDIR %(jobdir)s, and"
            " %(requests)s %(why)s. To crawl it all again, set another JOBDIR%(or)s",
            jobdir=self._jobdir,
            requests=inflect(
                refused, "its start request was", f"all {refused} start requests were"
            ),
            **(_SEEN if was_finished else _STARTED),
        )

    def log_given_up(self, counts: Mapping[str, int]) -> None:
        """Pages were given up, in this run and in earlier ones of the job, if any were.

        :param counts: why, as in :mod:`.given_up` -> how many.
        """
        total = sum(counts.values())
        if not total or (self._jobdir is None and not self._is_shared):
            return
        self._log(
            logging.WARNING,
            "%(count)d %(pages)s given up by this %(who)s, and not crawled again: %(why)s. The log"
            " names each of them. To crawl them again, start over with another %(setting)s.",
            count=total,
            pages=inflect(total, "page was", "pages were"),
            who="worker" if self._is_shared else "job",
            why=", ".join(
                f"{counts[reason]} {words}"
                for reason, words in _GIVEN_UP.items()
                if counts.get(reason)
            ),
            setting="ALTSCHED_SHARED_KEY" if self._is_shared else "JOBDIR",
        )

    def log_unsaved(self, changes: int, error: AltschedError) -> None:
        """The crawl ended and its last changes could not be saved."""
        self._stats.set_value("altsched/unsaved", changes)
        if isinstance(error, JobdirLostError):
            # Whether the rest is safe, and where, it says itself.
            self._log(
                logging.CRITICAL,
                "The end of this crawl could not be saved (%(changes)d %(noun)s): %(error)s",
                error=error,
                changes=changes,
                noun=inflect(changes, "change"),
            )
            return
        self._log(
            logging.CRITICAL,
            "The end of this crawl could not be saved: %(error)s What was committed before is safe;"
            " the rest (%(changes)d %(noun)s) will be crawled again. %(then)s",
            error=error,
            then=(
                f"Repair the job with: {self._repair}"
                if isinstance(error, StoreDamagedError)
                else self._resume
            ),
            changes=changes,
            noun=inflect(changes, "change"),
        )

    def _log(self, level: int, message: str, **values: Any) -> None:
        logger.log(level, message, values, extra={"spider": self._spider})


def set_counts(stats: StatsCollector, counts: Counts) -> None:
    """Set the stats of the job, over all its runs.  What is in flight counts as pending."""
    stats.set_value("altsched/pending", counts.pending + counts.leased)
    stats.set_value("altsched/done", counts.done)
    stats.set_value("altsched/dead", counts.dead)
