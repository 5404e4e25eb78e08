"""What it costs to pace download slots over all workers: one worker, without Scrapy around it."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any

import redis

from scrapy_altsched.frontier import Entry, Lease, Options
from scrapy_altsched.frontier.options import SharedOptions
from scrapy_altsched.frontier.pace import Start
from scrapy_altsched.frontier.shared.frontier import SharedFrontier
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.opening import Worker, open_shared
from scrapy_altsched.limit import Limit, Limits

from ..contenders import SHARED, Contender
from . import Case, Metric, Outcome, Place, microseconds

METRICS = (
    Metric("server", "us of the server's processor time a request", is_main=True),
    Metric("processor", "us of the worker's"),
    Metric("slot", "bytes a slot that rests", digits=0),
)
_KEY = "pace"
#: Requests that are added, or handed out, between two turns of the event loop.
_PORTION = 100
#: Seconds until a worker without anything to do looks again.
_LOOK_AGAIN = 0.0005
#: Seconds: no slot is asked twice.
_LONG = 86_400.0


def cases(scale: float, _: Any) -> list[Case]:
    """The same requests without limits and with a delay and a cap; and slots that all rest."""
    slots, requests = max(10, int(1_000 * scale)), max(100, int(50_000 * scale))
    resting = max(10, int(100_000 * scale))
    of = SHARED[1:]
    return [
        Case(f"{slots:,} slots, no limits", _of(slots, requests, None), of, rounds=2),
        Case(f"{slots:,} slots, delay and cap", _of(slots, requests, 0.01), of, rounds=2),
        Case(f"{resting:,} slots at rest", _of(resting, resting, _LONG), of, rounds=1),
    ]


def _of(slots: int, requests: int, delay: float | None) -> dict[str, Any]:
    return {"slots": slots, "requests": requests, "delay": delay}


def run(
    contender: Contender,  # noqa: ARG001  (there is one)
    place: Place,
    slots: int,
    requests: int,
    delay: float | None,
) -> Outcome:
    """Add so many requests, then hand out all of them."""
    assert place.redis_url is not None
    server = redis.Redis.from_url(place.redis_url)
    limits = None if delay is None else Limits(Limit(delay, 0.5, 8))
    before, own = _used(server), process_time()
    asyncio.run(_crawl(place.redis_url, limits, slots, requests))
    figures = {
        "server": microseconds(_used(server) - before, requests),
        "processor": microseconds(process_time() - own, requests),
    }
    resting = Keys(_KEY).resting
    count: Any = server.zcard(resting)
    if count:
        size: Any = server.memory_usage(resting, samples=0)
        figures["slot"] = size / count
    return Outcome(figures, {"all": f"{requests} requests"})


async def _crawl(redis_url: str, limits: Limits | None, slots: int, requests: int) -> None:
    loop = asyncio.get_running_loop()
    frontier = open_shared(
        Options(),
        SharedOptions(key=_KEY, limits=limits, redis={"REDIS_URL": redis_url}),
        Worker(
            spider="pace",
            fingerprints=b'{"class": "", "rules": ""}',
            are_sha1=False,
            jobdir=None,
            check=lambda: None,
            wake=loop.call_soon_threadsafe,
            fail=lambda _: None,
            warn=lambda _: None,
        ),
    )
    for number in range(requests):
        name = f"https://host-{number % slots}.example/{number}"
        frontier.add(Entry(name.encode(), f"host-{number % slots}.example", payload=bytes(300)))
        if number % _PORTION == 0:
            await asyncio.sleep(0)
    done = 0
    while done < requests:
        lease = frontier.lease()
        if isinstance(lease, Lease):
            done += _work(frontier, lease)
        if done % _PORTION == 0 or not isinstance(lease, Lease):
            frontier.commit()
            await asyncio.sleep(0 if isinstance(lease, Lease) else _LOOK_AGAIN)
    frontier.close()


def _work(frontier: SharedFrontier, lease: Lease) -> bool:
    """Do what a crawl does with a request; whether it was started in time."""
    pace = frontier.pace
    if pace.is_on and pace.start(lease) is not Start.NOW:
        frontier.release(lease)
        return False
    pace.note_downloaded(lease)
    frontier.finish(lease)
    return True


def _used(server: redis.Redis) -> float:
    """Seconds of processor time that the server has used."""
    found: Any = server.info("cpu")
    seconds: float = found["used_cpu_user"] + found["used_cpu_sys"]
    return seconds
