"""What a crawl says about its job: level, text and stat of each message.

Texts may use the values that :class:`.reports.Reports` knows by itself: ``job``, ``jobdir``,
``key``, ``setting``, ``whom``, ``who``, ``check``, ``repair``, ``requeue``, ``resume``; and where
there is a ``count``, ``requests``, ``requests_were`` and ``are``.
"""

from __future__ import annotations

from logging import ERROR, INFO, WARNING
from typing import NamedTuple

from ..frontier.events import (
    AlreadyFinished,
    DeadLettered,
    FrontierLost,
    Isolated,
    IsolationEnded,
    LeaseLost,
    MemoryFull,
    ServerRolledBack,
    Stalled,
)
from .outcome import Outcome


class Message(NamedTuple):
    """A log line.

    :ivar text: empty: nothing is logged.
    :ivar stat: increased by one, if any.
    """

    level: int
    text: str
    stat: str | None = None


#: Kind of an event of the frontier -> what is said of it; its fields are values of the text.
EVENTS = {
    DeadLettered: Message(
        WARNING, "The request %(name)s is now a dead letter and is not crawled: %(why)s."
    ),
    Isolated: Message(
        INFO,
        "The request %(name)s is crawled alone, since the process died %(when)s. All others"
        " wait until it is done.",
    ),
    IsolationEnded: Message(WARNING, "The request %(name)s is no longer crawled alone: %(why)s."),
    LeaseLost: Message(INFO, "", "altsched/shared/leases_lost"),
    ServerRolledBack: Message(
        WARNING,
        "The server of the shared crawl %(key)r has lost its latest changes, as after a"
        " restart%(copied)s. Pages in flight go back, and are crawled again; start() runs once"
        " more.",
    ),
    FrontierLost: Message(
        ERROR,
        "%(job)s is no longer on the server, or is another one: the spider is closed"
        " (frontier_lost). %(remedy)s",
    ),
    MemoryFull: Message(
        WARNING,
        "The server of the shared crawl has no memory for new requests: %(waiting)d %(changes)s"
        " and those that follow wait here, and are sent again every few seconds; what is stored"
        " is crawled meanwhile. Raise the server's maxmemory (redis-cli CONFIG SET maxmemory"
        " ...), or delete what is not needed, such as a shared crawl: scrapy altsched drop KEY",
    ),
    Stalled: Message(
        ERROR,
        "This worker has made no progress for %(seconds).0f s: %(why)s. Look at the crawl"
        " with: %(check)s",
        "altsched/shared/stalled",
    ),
    AlreadyFinished: Message(
        INFO,
        "%(job)s had finished before this worker came to it. To crawl everything again, run:"
        " scrapy altsched restart %(quoted_key)s",
    ),
}
#: After :class:`Stalled`, when it goes on.
GOES_ON = Message(INFO, "This worker makes progress again, after %(seconds).0f s")

# At the opening

LOST_IN_MEMORY = Message(
    WARNING,
    "%(count)d %(requests)s that could not be serialized ended with an earlier run of"
    " this job. The pages and start requests that led to them are crawled again, to"
    " find them.",
)
WAS_FINISHED = Message(
    INFO,
    "The job in %(jobdir)s had finished. This run crawls its start requests again, unless"
    " they are filtered as duplicates, and whatever is new. To crawl everything"
    " again, delete that directory or set another JOBDIR.",
)
DIED_FINISHED = Message(
    WARNING,
    "The last run finished the job in %(jobdir)s, but its process died before it exited."
    " This run only completes it: nothing is crawled again, and feeds are appended to, not"
    " overwritten. To crawl the start requests again, run the same command once more after"
    " this.",
)
SUSPICION = Message(
    INFO,
    "Earlier runs of this job died, and %(count)d %(requests)s may be the reason: %(how)s.",
)
FOREIGN_FILTER = Message(
    WARNING,
    "DUPEFILTER_CLASS is %(name)s: what it has seen and what this scheduler has stored are"
    " not saved atomically, so after a crash requests may be missing or crawled twice."
    " %(remedy)s",
)

# While it is open

#: In Scrapy's words.
UNSERIALIZABLE = (
    "Unable to serialize request: %(request)s - reason: %(reason)s - no more"
    " unserializable requests will be logged (stats being collected)"
)
#: The first one of a run.
UNRESTORABLE = Message(
    WARNING,
    "The request for %(url)s cannot be restored and becomes a dead letter: %(error)s."
    " Further ones are only counted, and the total is logged when the crawl ends.",
)
HOPELESS = Message(
    ERROR,
    "The spider is closed (%(reason)s): none of the first %(count)d requests could be"
    " restored. The others stay pending.",
)
SKIPPED_STARTS = Message(
    INFO,
    "%(count)d start %(requests_were)s skipped: accepted by %(whom)s (setting"
    " ALTSCHED_SKIP_STARTED). A request that every run has to make, such as a login, needs"
    " meta={'altsched_every_run': True}.",
)
SKIPPED_AGAIN = Message(
    WARNING,
    "start() waits, and nothing else is left to do. It may wait for a page that was skipped"
    " because %(who)s had accepted its request: the last %(last)s skipped %(are)s"
    " crawled again. Give a request that start() waits for meta={'altsched_every_run':"
    " True}: every run makes it then.",
)
START_WAITS = Message(
    WARNING,
    "start() waits, and nothing else is left to do. %(refused)s refused, as accepted"
    " before: if it waits for the page of one, this run does not end. Yield such a request"
    " with dont_filter=True, or with meta={'altsched_every_run': True}.",
)
OVERDUE = Message(
    WARNING,
    "Of the requests that every run has to make (meta key altsched_every_run),"
    " after three times DOWNLOAD_TIMEOUT, %(in_flight)d are still in flight and"
    " %(to_come)d did not come from start(). All others are crawled now, without waiting"
    " for these any longer.",
)
UNREACHABLE = Message(
    WARNING, "%(error)s The crawl continues with the requests at hand, and tries again."
)
SERVER = Message(WARNING, "%(warning)s")

# At the end

_FINISHED = "%(job)s is finished: %(done)d %(requests)s done, none pending, %(dead)d dead"
_NOT_FINISHED = (
    "%(job)s is not finished: %(done)d %(requests)s done, %(pending)d pending, %(dead)d dead. "
)
END = {
    Outcome.FINISHED: Message(INFO, _FINISHED),
    Outcome.DEAD_LETTERS: Message(WARNING, _FINISHED + ". List the dead ones with: %(requeue)s"),
    Outcome.BLOCKED: Message(
        ERROR,
        _NOT_FINISHED
        + "Nothing was crawled: the first requests are dead, for example %(examples)s. Fix the"
        " cause, then make them pending again with: %(requeue)s --all  %(resume)s",
    ),
    Outcome.UNFINISHED: Message(INFO, _NOT_FINISHED + "%(resume)s"),
}
#: Instead, where some of the dead letters could not be restored.
END_UNRESTORABLE = Message(
    ERROR,
    _NOT_FINISHED
    + "%(unrestorable)d of the dead letters could not be restored, for example %(examples)s. Fix"
    " what the reasons name, then make them pending again with: %(requeue)s --all  %(resume)s",
)
#: Texts instead, where the store is damaged, and where a shared crawl is gone.
END_DAMAGED = (
    "%(job)s is not finished, and its store is damaged: %(done)d %(requests)s done,"
    " %(pending)d pending, %(dead)d dead. Repair it with: %(repair)s"
)
END_LOST = _NOT_FINISHED + "%(remedy)s"
ENDS_IN_MEMORY = Message(
    WARNING,
    "%(count)d %(pending)s could not be serialized and %(end)s with this process. The"
    " pages and start requests that led to them stay pending, and find them again"
    "%(but)s.",
)
_START_OVER = (
    " The job cannot be finished. %(remedy)s To be sure of every page, start it over with another"
    " %(setting)s."
)
UNACCOUNTED = Message(
    WARNING,
    "Of the requests that %(lower_job)s had accepted, %(count)d %(are)s neither done,"
    " pending nor dead: %(damage)s" + _START_OVER,
)
MISSING = Message(WARNING, "Requests of %(lower_job)s may be missing: %(damage)s" + _START_OVER)
UNRECORDED_LEASES = Message(
    WARNING,
    "Could not record in JOBDIR %(jobdir)s that %(count)d %(requests_were)s in flight: one that"
    " had killed the process would not have been identified. Check that the disk has space"
    " and can be written to.",
)
NOTHING_TO_DO = (
    "This run crawled nothing: no request was pending in JOBDIR %(jobdir)s, and %(refused)s "
)
#: A finished job has refused all start requests, or an unfinished one has.
NOTHING_NEW = Message(
    WARNING,
    NOTHING_TO_DO + "seen by earlier runs, which finished the job. To crawl it all again, set"
    " another JOBDIR, or yield start requests with dont_filter=True.",
)
NOTHING_LEFT = Message(
    WARNING,
    NOTHING_TO_DO + "accepted by earlier runs, which crawled everything there was. To crawl it all"
    " again, set another JOBDIR.",
)
GIVEN_UP = Message(
    WARNING,
    "%(count)d %(pages)s given up by this %(part)s, and not crawled again: %(why)s. The log"
    " names each of them. To crawl them again, start over with another %(setting)s.",
)
UNSAVED = (
    "The end of this crawl could not be saved: %(error)s What was committed before is safe;"
    " the rest (%(changes)d %(noun)s) will be crawled again. %(then)s"
)
#: Whether the rest is safe, and where, the error says itself.
UNSAVED_LOST = "The end of this crawl could not be saved (%(changes)d %(noun)s): %(error)s"
