"""How a job or a shared crawl stands, as ``scrapy altsched status`` tells it to programs.

Of a job that is what its last commit has noted beside the store, which is not opened.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

from ..crawl.rates import Rates
from ..frontier import Counts
from ..frontier.shared.record import NAME_CRAWL, refuse_worker, refuse_worker_of
from ..frontier.store.holder import Holder, find_holder
from ..frontier.store.jobdir import LastCommit, find_store, has_ended
from ..frontier.store.sequence_times import NOTE as TIMES
from ..frontier.store.sequence_times import SequenceTimes, between
from ..frontier.store.status import JobStatus, read_status
from ..frontier.store.view import View
from .crawl import Crawl
from .job import Job

#: Names are those of the JSON object; times are in seconds since the epoch.
Answer: TypeAlias = dict[str, Any]

#: The oldest of more pending requests than these is not looked for: that would take too long.
MOST_WALKED = 2_000_000
#: States of a run that has not ended.
_OPEN = ("running", "closing")
#: After so many seconds rates of the last commit are not told any more.
_STALE = 120.0


def look_at_job(job: Job, slots: int | None = None) -> Answer:
    """How a job stands; JobdirError: it cannot be told.

    :param slots: of how many slots to ask the store, which counts what is in flight, too.
    :raises StoreError: the store cannot be read.
    """
    jobdir = job.jobdir
    answer: Answer = {"target": str(jobdir), "kind": "job", "spider": job.owner}
    status, last = read_status(jobdir), LastCommit.read(jobdir)
    if status is not None and job.store_id not in ("", status.store_id):
        status = None  # it is of a store that was there before
    if last is not None and job.store_id not in ("", last.store_id):
        last = None
    if status is None:
        answer |= _describe_silence(last)
    else:
        refuse_worker_of(status.standing.shared, jobdir, NAME_CRAWL)
        answer |= _describe_run(jobdir, status)
        is_older = last is not None and last.number > status.commit
        answer["changed_since"] = is_older and status.state not in _OPEN
    holder, own = find_holder(jobdir), answer.get("pid")
    if holder is not None and holder.pid != own and holder.lives():
        answer["held_by"] = holder.pid
    answer["bytes"] = _size_of(jobdir)
    if slots is not None:
        with View(find_store(jobdir)) as view:
            refuse_worker(view, jobdir, NAME_CRAWL)
            counts = [(name, count) for _, count, name in view.slots()]
            answer["oldest_pending"] = _find_oldest(job, view, sum(map(_second, counts)))
        found = nlargest(slots, counts, _second)
        answer["slots"] = [{"slot": name, "stored": count} for name, count in found if count]
    return answer


_second = itemgetter(1)


def _find_oldest(job: Job, view: View, pending: int) -> Answer | None:
    """After and before which times the oldest pending request was accepted, as far as is known.

    :return: ``None``: there is none, or it is not looked for, since there are too many.
    """
    if pending > MOST_WALKED or (oldest := job.find_oldest(view)) is None:
        return None
    after, before = SequenceTimes(view.note(TIMES)).between(oldest)
    return {"after": after, "before": before}


def _describe_silence(last: LastCommit | None) -> Answer:
    """What is known of a job of which no run has told how it stands."""
    answer: Answer = {"state": "silent"}
    if last is not None:
        answer |= {"commit": last.number, "counts": {"accepted": last.accepted, "done": last.done}}
    return answer


def _describe_run(jobdir: Path, status: JobStatus) -> Answer:
    standing = status.standing
    holder = Holder.parse(status.holder)
    lives = None if holder is None else holder.lives()
    state = status.state
    if state in _OPEN and lives is False:
        state = "died"
    answer: Answer = {
        "state": state,
        "pid": holder and holder.pid,
        "host": holder and holder.host,
        "lives": lives,
        "run": status.run,
        "began": standing.began,
        "commit": status.commit,
        "committed": standing.at,
        "run_lasted": status.lasted or standing.at,
        "counts": counts_of(standing.counts),
        "paused": standing.paused,
        "duplicates": standing.duplicates,
        **pace_of(standing.counts, standing.found_rate, standing.ended_rate),
        "held": [
            {"slot": name, "until": until} for name, until in standing.held if until > time.time()
        ],
        "slots": [{"slot": name, "pending": count} for name, count in standing.busiest],
    }
    if state == "finished":
        answer["ended"] = has_ended(jobdir, status.store_id, status.run)
    return answer


def look_at_crawl(crawl: Crawl, rates: Rates | None = None, slots: int | None = None) -> Answer:
    """How a shared crawl stands, as its server says; *rates*: of earlier looks, if there are any.

    :param slots: of how many slots to tell.
    :raises SharedError: the server cannot be reached, or has no such crawl.
    """
    known = crawl.crawl.look()
    seen = crawl.crawl.observe()
    counts, state = known.counts, "running" if seen.workers else "stopped"
    if rates is not None:
        rates.note(counts, time.monotonic())
    found, ended = (None, None) if rates is None else (rates.found, rates.ended)
    answer: Answer = {
        "target": crawl.crawl.name,
        "key": crawl.key,
        "kind": "shared crawl",
        "spider": known.spider,
        "state": "finished" if known.finished else state,
        "began": seen.created,
        "paused": seen.paused,
        "counts": counts_of(counts),
        **pace_of(counts, found, ended),
        "bytes": seen.memory,
        "workers": [
            {
                "token": worker.token.hex(),
                "leases": worker.leases,
                "heard": worker.heard,
                "expires": worker.expires,
            }
            for worker in seen.workers
        ],
    }
    if seen.limits is not None:
        delay, jitter, cap = seen.limits
        answer["limits"] = {"delay": delay, "jitter": jitter, "cap": cap, "own": seen.own_limits}
        answer["resting"] = {"slots": seen.resting, "next": seen.next_rest}
    if slots is not None:
        answer |= _look_at_queues(crawl, slots)
    return answer


def _look_at_queues(crawl: Crawl, slots: int) -> Answer:
    """The slots with the most pending requests, and when the oldest of all was accepted."""
    oldest, queues = None, crawl.queues() or []
    if queues:
        times = [(sample.next_sequence, sample.at) for sample in crawl.crawl.history()]
        after, before = between(times, min(queue.oldest for _, queue in queues))
        oldest = {"after": after, "before": before}
    counts = ((name, queue.pending) for name, queue in queues)
    found = nlargest(slots, counts, _second)
    return {
        "oldest_pending": oldest,
        "slots": [{"slot": name, "pending": count} for name, count in found],
    }


def counts_of(counts: Counts) -> dict[str, int | None]:
    """The numbers in all states; ``left``: all that is still to be done.

    ``seen``: the fingerprints of the duplicates filter, if it is known how many there are.
    """
    return {
        "accepted": counts.accepted,
        "done": counts.done,
        "pending": counts.pending,
        "in_flight": counts.leased,
        "delayed": counts.delayed,
        "failed": counts.failed,
        "dead": counts.dead,
        "left": counts.left,
        "seen": counts.seen,
    }


def pace_of(counts: Counts, found: float | None, ended: float | None) -> Answer:
    """Rates in a second, and what they say about the end."""
    answer: Answer = {"found_rate": found, "ended_rate": ended, "grows": None, "seconds_left": None}
    if found is not None and ended is not None and counts.left:
        answer["grows"] = found >= ended and found > 0
        if ended > found:
            answer["seconds_left"] = counts.left / (ended - found)
    return answer


def has_pace(answer: Answer) -> bool:
    """Whether its rates are those of now."""
    is_fresh = time.time() - answer.get("committed", time.time()) < _STALE
    return answer["state"] in _OPEN and is_fresh and answer["found_rate"] is not None


def printable(name: str) -> str:
    """A name, or a path, as text that can be encoded."""
    return name.encode("utf-8", "backslashreplace").decode()


def _size_of(directory: Path) -> int:
    """Bytes of all files in a directory; those that go meanwhile do not count."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                size += Path(folder, name).lstat().st_size
    return size
