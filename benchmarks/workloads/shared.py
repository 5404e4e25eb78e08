"""The workloads stream and unique on a Redis server: seconds until all is stored there."""

from __future__ import annotations

from typing import Any

import redis

from ..contenders import SHARED, Contender
from ..engine import Scrape, start_request
from ..loop import LoopCrawl, run_in_loop
from . import Case, Metric, Outcome, Place, microseconds, stream, unique

METRICS = (
    Metric("cost", "us a request", is_main=True),
    Metric("processor", "us of processor time, all threads"),
    Metric("server", "us of the server's processor time"),
    Metric("trips", "round trips a request", digits=4),
    Metric("longest", "ms, longest call"),
)


def cases(scale: float, _: Any) -> list[Case]:
    """The links of a real site, and 200,000 requests times *scale*."""
    requests = max(unique.IN, int(200_000 * scale))
    return [
        Case("python-docs", {"recording": "python-docs", "scale": scale}, SHARED),
        Case(f"{requests:,}", {"requests": requests}, SHARED, rounds=2),
    ]


def run(
    contender: Contender,
    place: Place,
    recording: str = "",
    scale: float = 1.0,
    requests: int = 0,
) -> Outcome:
    """Do one of both workloads, in an event loop."""
    first, scrape = (
        stream.read(recording, scale)
        if recording
        else ("https://host-0.example/", unique.bursts(requests))
    )
    assert place.redis_url is not None
    server = redis.Redis.from_url(place.redis_url)
    before = _used(server)
    crawl = run_in_loop(contender, place, lambda crawl: _work(crawl, first, scrape))
    trips, processor = (
        after - earlier for after, earlier in zip(_used(server), before, strict=True)
    )
    calls = crawl.accepted + crawl.refused
    figures = {
        "cost": microseconds(crawl.seconds, calls),
        "processor": microseconds(crawl.processor, calls),
        "server": microseconds(processor, calls),
        "trips": trips / calls,
        "longest": crawl.clock.longest * 1e3,
    }
    return Outcome(figures, {"all": f"{calls} calls, {crawl.taken} taken, {crawl.digest:016x}"})


async def _work(crawl: LoopCrawl, first: str, scrape: Scrape) -> None:
    crawl.enqueue([start_request(first)])
    await crawl.run_to_end(scrape)


def _used(server: redis.Redis) -> tuple[float, float]:
    """How often the server has read from clients, and its seconds of processor time."""
    found: Any = server.info()
    return found["total_reads_processed"], found["used_cpu_user"] + found["used_cpu_sys"]
