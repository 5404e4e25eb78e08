"""Slots with a delay beside others: how many requests they get, and what is left for those."""

from __future__ import annotations

import json
import random
import time
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from scrapy import signals

from scrapy_altsched.frontier import Entry, Lease, Options, Order, Waiting
from scrapy_altsched.frontier.contract import PacedGate
from scrapy_altsched.maintenance.opening import open_frontier

from ..clocks import ManualClock
from ..crawls import BY_SLOT, Crawl
from ..sites import Page, Site

SECONDS = 900.0
SLOW, FAST = 40, 12
DELAY, DOWNLOAD, CONCURRENT, PER_SLOT = 30.0, 0.2, 16, 8


class Downloader(PacedGate):
    """Scrapy's downloader by a virtual clock: its slots, their delays, which are drawn anew."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        self._clock, self._random = clock, random.Random(seed)
        self.in_slot: dict[str, list[Lease]] = {}
        self.transferring: dict[str, int] = {}
        self._may_start: dict[str, float] = {}
        #: When a slot may start one again, or a download is over.
        self.events: list[tuple[float, int, str, Lease | None]] = []
        self._count = 0
        self.total = 0

    def active(self, slot: str, /) -> int:
        return len(self.in_slot.get(slot, ())) + self.transferring.get(slot, 0)

    def waiting(self, slot: str, /) -> int:
        return len(self.in_slot.get(slot, ()))

    def delay(self, slot: str, /) -> float:
        return DELAY if slot.startswith("slow") else 0.0

    def fetch(self, slot: str, lease: Lease) -> None:
        self.total += 1
        self.in_slot.setdefault(slot, []).append(lease)
        self.process(slot)

    def process(self, slot: str) -> None:
        queue = self.in_slot.get(slot, [])
        while queue and self.transferring.get(slot, 0) < PER_SLOT:
            start = self._may_start.get(slot, 0.0)
            if start > self._clock.now:
                self._plan(start, slot, None)
                return
            self.transferring[slot] = self.transferring.get(slot, 0) + 1
            self._plan(self._clock.now + DOWNLOAD, slot, queue.pop(0))
            jittered = self.delay(slot) * self._random.uniform(0.5, 1.5)
            self._may_start[slot] = self._clock.now + jittered

    def _plan(self, when: float, slot: str, lease: Lease | None) -> None:
        self._count += 1
        heappush(self.events, (when, self._count, slot, lease))

    def end(self) -> tuple[str, Lease | None]:
        """Go on to what happens next."""
        when, _, slot, lease = heappop(self.events)
        self._clock.advance(max(0.0, when - self._clock.now))
        if lease is not None:
            self.transferring[slot] -= 1
            self.total -= 1
        self.process(slot)
        return slot, lease


def simulate(*, polite: bool, seed: int = 7) -> tuple[int, float, int]:
    """Pages of the fast hosts; the longest time without one of them; pages of the slow hosts."""
    random.seed(seed)  # the frontier draws by how much it waits longer
    clock = ManualClock()
    options = Options(clock=clock, order=Order("slots", "fifo"), polite=polite)
    frontier = open_frontier(None, "spider", options)
    hosts = [f"slow{number}" for number in range(SLOW)]
    hosts += [f"fast{number}" for number in range(FAST)]
    for host in hosts:
        for number in range(100):
            frontier.add(Entry(f"{host} {number}".encode(), host, payload=b"p"))
    downloader, begin, pages, last, gap, slow = (
        Downloader(clock, seed),
        clock.now,
        0,
        clock.now,
        0.0,
        0,
    )
    number = 100
    while clock.now - begin < SECONDS:
        while downloader.total < CONCURRENT:
            lease = frontier.lease(downloader)
            if not isinstance(lease, Lease):
                break
            downloader.fetch(lease.entry.slot, lease)
        if not downloader.events or downloader.events[0][0] > clock.next_call_at:
            clock.advance(clock.next_call_at - clock.now)
            continue
        slot, done = downloader.end()
        if done is None:
            continue
        frontier.finish(done)
        if slot.startswith("slow"):
            slow += 1
            continue
        pages, gap, last = pages + 1, max(gap, clock.now - last), clock.now
        number += 1
        frontier.add(Entry(f"{slot} {number}".encode(), slot, payload=b"p"))
    frontier.close()
    return pages, gap, slow


def test_slow_hosts_do_not_keep_others_waiting() -> None:
    stock_pages, stock_gap, _ = simulate(polite=False)
    runs = [simulate(polite=True, seed=seed) for seed in range(5)]
    pages, gaps, slow = zip(*runs, strict=True)
    print(runs)
    assert min(pages) > 50 * stock_pages
    assert median(gaps) < stock_gap / 10
    # The slow ones are asked at their pace all the same.
    assert min(slow) > 0.85 * SLOW * SECONDS / DELAY


def test_slots_without_a_delay_get_what_they_get_of_stock() -> None:
    class Free(Downloader):
        def delay(self, _: str, /) -> float:
            return 0.0

    found = []
    for polite in (False, True):
        clock = ManualClock()
        frontier = open_frontier(None, "spider", Options(clock=clock, polite=polite))
        for number in range(20):
            frontier.add(Entry(b"%d" % number, f"host{number % 3}", payload=b"p"))
        gate = Free(clock, 7)
        leases = [frontier.lease(gate) for _ in range(20)]
        found.append([it.entry.fingerprint for it in leases if isinstance(it, Lease)])
        frontier.close()
    assert found[0] == found[1]
    assert len(found[0]) == 20


def test_what_still_waits_in_the_downloader_puts_the_next_one_off() -> None:
    clock = ManualClock()
    frontier = open_frontier(None, "spider", Options(clock=clock, polite=True))
    for number in range(3):
        frontier.add(Entry(b"%d" % number, "slow", payload=b"p"))
    gate = Downloader(clock, 7)
    assert isinstance(frontier.lease(gate), Lease)
    assert frontier.lease(gate) is Waiting.PARKED
    clock.advance(DELAY * 1.25)
    lease = frontier.lease(gate)
    assert isinstance(lease, Lease)
    gate.in_slot["slow"] = [lease]
    clock.advance(DELAY * 1.25)
    assert frontier.lease(gate) is Waiting.PARKED
    gate.in_slot["slow"] = []
    clock.advance(DELAY)
    assert isinstance(frontier.lease(gate), Lease)
    frontier.close()


@pytest.mark.long
@pytest.mark.parametrize("policy", ["stock", "polite"])
def test_the_real_downloader_has_room_for_others(tmp_path: Path, policy: str) -> None:
    slow = [f"/slow{slot}/{page}" for slot in range(6) for page in range(3)]
    fast = [f"/fast/{page}" for page in range(40)]
    with Site({path: Page() for path in ("/", *slow, *fast)}) as site:
        crawl = Crawl(tmp_path, "polite", site.url)
        assert crawl.run(ALTSCHED_POLICY=policy, **BY_SLOT) == 0
        assert set(site.hits) == {"/", *slow, *fast}
    order = [json.loads(line)["slot"] for line in crawl.items.read_text().splitlines()]
    last_fast = len(order) - 1 - order[::-1].index("fast")
    slow_before = sum(slot != "fast" for slot in order[:last_fast])
    # At most one page of each, and some of the second ones where the machine is slow.
    assert slow_before <= 12 if policy == "polite" else slow_before > 12


@pytest.mark.parametrize("policy", ["stock", "polite"])
def test_what_robots_txt_asks_for(tmp_path: Path, policy: str) -> None:
    times: list[float] = []
    pages = [f"/{number}" for number in range(4)]

    def answer(path: str, _: int) -> Page:
        if path == "/robots.txt":
            return Page(text="User-agent: *\nCrawl-delay: 1\n")
        times.append(time.monotonic())
        return Page(pages if path == "/" else [])

    with Site(answer) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/")
        assert crawl.run(ALTSCHED_POLICY=policy, ROBOTSTXT_OBEY=True, **BY_SLOT) == 0
    assert len(times) == 5
    # Scrapy draws from half of a delay on; and tells of this one since 2.18.
    gaps = [later - earlier for earlier, later in pairwise(times[1:])]
    is_told = hasattr(signals, "robots_parsed")
    assert (min(gaps) >= 0.45) == (policy == "polite" and is_told)
