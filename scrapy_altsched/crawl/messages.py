"""What a crawl says about its job: level, text and stat of each message.

Texts may use what :class:`.reports.Reports` knows by itself: ``job``, ``lower_job``, ``jobdir``,
``key``, ``place``, ``setting``, ``part``, ``whom``, ``who``, ``check``, ``repair``, ``requeue``,
``resume``, ``remedy``.
``%(count|page was|pages were)s`` are words that go with a number.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import NamedTuple

from ..frontier import events
from .outcome import Outcome


class Message(NamedTuple):
    """A log line.

    :ivar text: empty: nothing is logged.
    :ivar stat: set to the ``count`` that is logged, or increased by one if there is none.
    """

    level: int
    text: str
    stat: str | None = None


_info = partial(Message, logging.INFO)
_warning = partial(Message, logging.WARNING)
_error = partial(Message, logging.ERROR)

#: Kind of an event of the frontier -> what is said of it; its fields are values of the text.
EVENTS = {
    events.DeadLettered: _warning(
        "The request %(name)s is now a dead letter and is not crawled: %(why)s."
    ),
    events.Isolated: _info(
        "The request %(name)s is crawled alone, since the process died %(when)s. All others"
        " wait until it is done."
    ),
    events.FailuresDropped: _warning(
        "More requests have failed than ALTSCHED_KEEP_FAILED says to keep: the oldest %(count)d are"
        " no longer known, and count as done.",
        "altsched/failed/dropped",
    ),
    events.IsolationEnded: _warning("The request %(name)s is no longer crawled alone: %(why)s."),
    events.LeaseLost: _info("", "altsched/shared/leases_lost"),
    events.ServerRolledBack: _warning(
        "The server of the shared crawl %(key)r has lost its latest changes, as after a"
        " restart%(copied)s. Pages in flight go back, and are crawled again; start() runs once"
        " more."
    ),
    events.OtherLimits: _warning(
        "%(job)s has a pace already: for download slots, %(theirs)s. The settings of this worker"
        " say %(own)s, which does not count. To change the pace, stop all workers, and start them"
        " with the new settings."
    ),
    events.VersionOutdated: _error(
        "Another worker continues %(lower_job)s with a newer version of scrapy_altsched, and this"
        " one cannot take part any more: the spider is closed (frontier_lost). Upgrade this worker,"
        " and start it again; the others crawl what it had leased."
    ),
    events.FrontierLost: _error(
        "%(job)s is no longer on the server, or is another one: the spider is closed"
        " (frontier_lost). %(remedy)s"
    ),
    events.MemoryFull: _warning(
        "The server of the shared crawl has no memory for new requests: %(waiting)d"
        " %(waiting|change)s and those that follow wait here, and are sent again every few seconds;"
        " what is stored is crawled meanwhile. Raise the server's maxmemory (redis-cli CONFIG SET"
        " maxmemory ...), or delete what is not needed, such as a shared crawl: scrapy altsched"
        " drop KEY"
    ),
    events.Stalled: _error(
        "This worker has made no progress for %(seconds).0f s: %(why)s. Look at the crawl"
        " with: %(check)s",
        "altsched/shared/stalled",
    ),
    events.CrawlPaused: _info(
        "%(job)s is paused: what is in flight is finished, and nothing else is begun, by any"
        " worker. It goes on with: scrapy altsched resume %(place)s"
    ),
    events.CrawlGoesOn: _info("%(job)s is not paused any more."),
    events.StopRequested: _info(
        "An operator has stopped the workers of %(lower_job)s (scrapy altsched stop): the spider is"
        " closed when what is in flight is finished. Start workers again to go on."
    ),
    events.AlreadyFinished: _info(
        "%(job)s had finished before this worker came to it. To crawl everything again, run:"
        " scrapy altsched restart %(place)s"
    ),
}
#: After ``Stalled``, when it goes on.
GOES_ON = _info("This worker makes progress again, after %(seconds).0f s")

# At the opening

RESUMES = _info("Resuming crawl (%(queuesize)d requests scheduled)")  # in Scrapy's words
LOST_IN_MEMORY = _warning(
    "%(count)d %(count|request)s that could not be serialized ended with an earlier run of this"
    " job. The pages and start requests that led to them are crawled again, to find them.",
    "altsched/lost_in_memory",
)
WAS_FINISHED = _info(
    "The job in %(jobdir)s had finished. This run crawls its start requests again, unless"
    " they are filtered as duplicates, and whatever is new%(or_old)s. To crawl everything"
    " again, delete that directory or set another JOBDIR."
)
RETRIED = _info(
    "%(count)d %(count|request)s that had failed %(count|is|are)s crawled again (setting"
    " ALTSCHED_RETRY_FAILED_NEXT_RUN)",
    "altsched/failed/retried",
)
DELAYED = _info(
    "%(count)d %(count|request)s of this job %(count|is|are)s delayed, the first one until"
    " %(until)s (UTC)"
)
CLOCK_BEHIND = _warning(
    "The clock was set back by %(seconds).0f s since the last run of the job in %(jobdir)s, or is"
    " that of another machine. Nothing is crawled too early for it: delayed requests wait as if the"
    " clock had stood still since then."
)
DIED_FINISHED = _warning(
    "The last run finished the job in %(jobdir)s, but its process died before it exited. This run"
    " only completes it: nothing is crawled again, and feeds are appended to, not overwritten. To"
    " crawl the start requests again, run the same command once more after this."
)
SUSPICION = _info(
    "Earlier runs of this job died, and %(count)d %(count|request)s may be the reason: %(how)s.",
    "altsched/suspects",
)
FOREIGN_FILTER = _warning(
    "DUPEFILTER_CLASS is %(name)s: what it has seen and what this scheduler has stored are not"
    " saved atomically, so after a crash requests may be missing or crawled twice. %(instead)s"
)

# While it is open

PROGRESS = _info(
    "Progress: %(done)d of %(accepted)d %(accepted|request)s done (%(share)d%%), %(pending)d"
    " pending, %(in_flight)d in flight%(others)s; per minute, %(done_rate).0f done and"
    " %(found_rate).0f found"
)
WAITS = _info(
    "Nothing is left to do until %(until)s (UTC): %(count)d %(count|request is|requests are)s"
    " delayed. The crawl waits for %(count|it|them)s (setting ALTSCHED_WAIT_AT_CLOSE)."
)
#: The first one of a run.
BAD_DELAY = _warning(
    "meta[%(key)r] of %(request)s is %(value)r, and is ignored: %(why)s. Further ones are only"
    " counted (stat altsched/delay/ignored)."
)

PAUSED = _info(
    "The crawl is paused, and stays so in later runs until it is told otherwise: %(unpause)s."
    " Downloads in flight finish; start() goes on, and so do the settings CLOSESPIDER_*."
)
STILL_PAUSED = _warning(
    "The crawl is paused since %(since)s (UTC), when an operator asked for that: it hands out no"
    " requests until it is told otherwise: %(unpause)s"
)
UNPAUSED = _info("The crawl goes on: it is no longer paused")
#: Each time, as it may be for hours.
DEFERRED = _info("The download slot %(slot)r is left alone for %(seconds).0f s")
#: The first time.
NOT_DEFERRED = _warning(
    "%(slots)s cannot be left alone: with SCHEDULER_PRIORITY_QUEUE ="
    " 'scrapy.pqueues.ScrapyPriorityQueue' there is one queue for all of them, and with"
    " ALTSCHED_SHARED_PACE = False each worker has a pace of its own."
)
NO_PACE = _warning(
    "Download slots are asked by each worker as its settings say, not by all together: with"
    " SCHEDULER_PRIORITY_QUEUE = 'scrapy.pqueues.ScrapyPriorityQueue' there is one queue for all of"
    " them. Set it to 'scrapy.pqueues.DownloaderAwarePriorityQueue' for all workers of a new crawl."
)
OTHER_DOWNLOADER = _info(
    "Download slots are asked by each worker as its downloader likes, not by all together:"
    " %(downloader)s starts requests in a way of its own."
)
UNSERIALIZABLE = _warning(  # in Scrapy's words
    "Unable to serialize request: %(request)s - reason: %(reason)s - no more"
    " unserializable requests will be logged (stats being collected)"
)
#: The first one of a run.
UNRESTORABLE = _warning(
    "The request for %(url)s cannot be restored and becomes a dead letter: %(error)s."
    " Further ones are only counted, and the total is logged when the crawl ends."
)
HOPELESS = _error(
    "The spider is closed (restore_failed): none of the first %(count)d requests could be"
    " restored. The others stay pending."
)
SKIPPED_STARTS = _info(
    "%(count)d start %(count|request was|requests were)s skipped: accepted by %(whom)s (setting"
    " ALTSCHED_SKIP_STARTED). A request that every run has to make, such as a login, needs"
    " meta={'altsched_every_run': True}."
)
SKIPPED_AGAIN = _warning(
    "start() waits, and nothing else is left to do. It may wait for a page that was skipped"
    " because %(who)s had accepted its request: the last %(last)s skipped %(count|is|are)s"
    " crawled again. Give a request that start() waits for meta={'altsched_every_run':"
    " True}: every run makes it then."
)
START_WAITS = _warning(
    "start() waits, and nothing else is left to do. %(refused)s refused, as accepted"
    " before: if it waits for the page of one, this run does not end. Yield such a request"
    " with dont_filter=True, or with meta={'altsched_every_run': True}."
)
OVERDUE = _warning(
    "Of the requests that every run has to make (meta key altsched_every_run), after three times"
    " DOWNLOAD_TIMEOUT, %(in_flight)d are still in flight and %(to_come)d did not come from"
    " start(). All others are crawled now, without waiting for these any longer."
)
CLOSES = _error("The spider is closed (%(reason)s): %(error)s")
FAILING = _error(
    "%(error)s The crawl continues in memory and tries again; %(changes)d"
    " %(changes|change is|changes are)s not saved yet. After %(timeout)g s of failure"
    " (ALTSCHED_COMMIT_TIMEOUT) the spider is closed."
)
BUSY = _warning(
    "%(error)s Nothing was saved for %(seconds).0f s: %(changes)d"
    " %(changes|change waits|changes wait)s for the store, and so does the crawl once many pages"
    " are done. Find out what keeps the disk, or the store, busy."
)
BUSY_NO_MORE = _info("The frontier is saved again: its store was busy for %(seconds).0f s")
SAVED_AGAIN = _info("The frontier is saved again, after %(seconds).0f s of failing commits")
UNREACHABLE = _warning("%(error)s The crawl continues with the requests at hand, and tries again.")
SERVER = _warning("%(warning)s")

# At the end

_FINISHED = "%(job)s is finished: %(done)d %(done|request)s done, none pending, %(dead)d dead"
_COUNTS = "%(done)d %(done|request)s done, %(pending)d pending, %(dead)d dead. "
_NOT_FINISHED = "%(job)s is not finished: " + _COUNTS
END = {
    Outcome.FINISHED: _info(_FINISHED),
    Outcome.DEAD_LETTERS: _warning(_FINISHED + ". List the dead ones with: %(requeue)s"),
    Outcome.BLOCKED: _error(
        _NOT_FINISHED
        + "Nothing was crawled: the first requests are dead, for example %(examples)s. Fix the"
        " cause, then make them pending again with: %(requeue)s --all  %(resume)s"
    ),
    Outcome.UNFINISHED: _info(_NOT_FINISHED + "%(resume)s"),
}
#: Instead, where some of the dead letters could not be restored.
END_UNRESTORABLE = _error(
    _NOT_FINISHED
    + "%(unrestorable)d of the dead letters could not be restored, for example %(examples)s. Fix"
    " what the reasons name, then make them pending again with: %(requeue)s --all  %(resume)s"
)
#: Instead, by the reason for which the spider was closed.
CLOSED = {
    "store_damaged": _info(
        "%(job)s is not finished, and its store is damaged: "
        + _COUNTS
        + "Repair it with: %(repair)s"
    ),
    "frontier_lost": _info(_NOT_FINISHED + "%(remedy)s"),
}
STAY_DELAYED = _info(
    "Of the requests that are pending, %(count)d %(count|is|are)s delayed, the first one until"
    " %(until)s (UTC)."
)
ENDS_IN_MEMORY = _warning(
    "%(count)d %(count|pending request)s could not be serialized and %(count|ends|end)s with this"
    " process. The pages and start requests that led to them stay pending, and find them again"
    "%(but)s."
)
_START_OVER = (
    " The job cannot be finished. %(instead)s To be sure of every page, start it over with another"
    " %(setting)s."
)
UNACCOUNTED = _warning(
    "Of the requests that %(lower_job)s had accepted, %(count)d %(count|is|are)s neither done,"
    " pending nor dead: %(damage)s" + _START_OVER,
    "altsched/unaccounted",
)
MISSING = _warning("Requests of %(lower_job)s may be missing: %(damage)s" + _START_OVER)
UNRECORDED_LEASES = _warning(
    "Could not record in JOBDIR %(jobdir)s that %(count)d %(count|request was|requests were)s in"
    " flight: one that had killed the process would not have been identified. Check that the disk"
    " has space and can be written to.",
    "altsched/unrecorded_leases",
)
_NOTHING_TO_DO = (
    "This run crawled nothing: no request was pending in JOBDIR %(jobdir)s, and %(refused)s "
)
#: A finished job has refused all start requests, or an unfinished one has.
NOTHING_NEW = _warning(
    _NOTHING_TO_DO + "seen by earlier runs, which finished the job. To crawl it all again, set"
    " another JOBDIR, or yield start requests with dont_filter=True."
)
NOTHING_LEFT = _warning(
    _NOTHING_TO_DO + "accepted by earlier runs, which crawled everything there was. To crawl it all"
    " again, set another JOBDIR."
)
OVER_BUDGET = _warning(
    "%(count)d %(count|request was|requests were)s dropped, as ALTSCHED_SLOT_BUDGET says, most of"
    " them of these download slots: %(most)s"
)
FAILED = _warning(
    "%(count)d %(count|request)s of %(lower_job)s %(count|has|have)s failed, and %(count|is|are)s"
    " not crawled again by %(count|itself|themselves)s. List %(count|it|them)s, and make"
    " %(count|it|them)s pending again, with: %(requeue)s --failed"
)
UNSAVED = Message(
    logging.CRITICAL,
    "The final commit of this crawl failed: %(error)s What was committed before is safe;"
    " the rest (%(changes)d %(changes|change)s) will be crawled again. %(then)s",
)
#: Whether the rest is safe, and where, the error says itself.
UNSAVED_LOST = Message(
    logging.CRITICAL,
    "The final commit of this crawl failed (%(changes)d %(changes|change)s): %(error)s",
)
