"""Who is suspected of having killed the process, and how the others are spared."""

from __future__ import annotations

import random
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path

import pytest

from scrapy_altsched.frontier import Event, Lease, Options, Order, Verdict
from scrapy_altsched.frontier.events import (
    DeadLettered,
    Isolated,
    IsolationEnded,
    LeasesReady,
    OnEvent,
    ignore_events,
)
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.lease_log import Evidence
from scrapy_altsched.frontier.store.records import Level, Suspicion
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.frontier.suspects import judge
from scrapy_altsched.maintenance.opening import open_frontier

from ..clocks import ManualClock
from ..crawls import KILLED, Crawl, assert_complete
from ..frontiers import (
    OWNER,
    DiskKind,
    journal_of,
    lease_from,
    name_of,
    names,
    page,
    suspicions_of,
    take,
    take_all,
    work_off,
)
from ..sites import Page, Site

FREE, SUSPECT, BLAMED = Level.FREE, Level.SUSPECT, Level.BLAMED


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def options(clock: ManualClock) -> Options:
    return Options(order=Order("slots", "fifo"), patience=100.0, clock=clock)


@pytest.fixture
def disk(tmp_path: Path) -> DiskKind:
    """The shared one would open the job once more at the end: here, that frontier is still open."""
    return DiskKind(tmp_path)


# What a death tells


def evidence(
    in_flight: str = "", in_hand: str = "", alone: str = "", nobody: bool = False
) -> Evidence:
    def each(letters: str) -> set[bytes]:
        return {letter.encode() for letter in letters}

    return Evidence(
        each(in_flight + in_hand), each(in_hand), alone.encode() or None, inconclusive=nobody
    )


@pytest.mark.parametrize(
    ("before", "found", "expected"),
    [
        # In hand: suspects. While somebody is, the others age by a quarter.
        ({}, evidence("ab", "cd"), "a=0/1 b=0/1 c=1/0 d=1/0"),
        # Nobody in hand: all in flight age, and are suspects at the third time.
        ({}, evidence("ab"), "a=0/4 b=0/4"),
        ({"a": Suspicion(age=8), "b": Suspicion(age=7)}, evidence("ab"), "a=1/12 b=0/11"),
        ({"a": Suspicion(age=11)}, evidence("a", "b"), "a=1/12 b=1/0"),
        # A suspect in hand: it alone is blamed.
        ({"a": Suspicion(SUSPECT)}, evidence("x", "abc"), "a=2/0 x=0/1"),
        # Several in hand: narrowed, and blamed at the next death.
        (
            {"a": Suspicion(SUSPECT), "b": Suspicion(SUSPECT), "c": Suspicion(SUSPECT)},
            evidence("cx", "ab"),
            "a=1/0* b=1/0* c=1/1 x=0/1",
        ),
        (
            {"a": Suspicion(SUSPECT, narrowed=1), "b": Suspicion(SUSPECT, narrowed=1)},
            evidence("x", "ab"),
            "a=2/0* b=2/0* x=0/1",
        ),
        # A suspect in flight: blamed only if nobody is in hand.
        ({"a": Suspicion(SUSPECT)}, evidence("ax"), "a=2/4 x=0/4"),
        ({"a": Suspicion(SUSPECT)}, evidence("ax", "b"), "a=1/1 b=1/0 x=0/1"),
        # One that was alone: nobody else, whoever is beside it.
        ({"a": Suspicion(BLAMED)}, evidence("xy", "ab", alone="a"), "a=2/0+1,0"),
        ({"a": Suspicion(BLAMED, 1, 4)}, evidence("a", "b", alone="a"), "a=2/0+1,5"),
        # A reboot, or an orderly stop.
        ({"a": Suspicion(SUSPECT)}, evidence("xy", "ab", nobody=True), "a=1/0"),
        ({"a": Suspicion(BLAMED)}, evidence("", "a", alone="a", nobody=True), "a=2/0"),
        ({"a": Suspicion(BLAMED, 2, 3, 4)}, evidence(), "a=2/4+2,3"),
    ],
)
def test_what_a_death_tells(before: dict[str, Suspicion], found: Evidence, expected: str) -> None:
    stored = {name.encode(): suspicion for name, suspicion in before.items()}
    told = []
    for name, suspicion in sorted(judge(stored, found).items()):
        deaths = f"+{suspicion.in_hand},{suspicion.downloading}"
        told.append(
            f"{name.decode()}={suspicion.level:d}/{suspicion.age}{'*' * suspicion.narrowed}"
            + (deaths if suspicion.in_hand or suspicion.downloading else "")
        )
    assert " ".join(told) == expected


def test_what_is_held_against_a_request_is_stored_whole() -> None:
    narrowed = Suspicion(SUSPECT, narrowed=1)
    some = Suspicion(SUSPECT, 0, 1, 12), Suspicion(BLAMED, 2, 19, 3), narrowed
    for suspicion in (Suspicion(), *some):
        assert Suspicion.parse(suspicion.encode()) == suspicion
    assert Suspicion.parse(Suspicion(BLAMED, 1_000).encode()).in_hand == 255
    for row in (b"", b"123", b"\x03\0\0\0\0", b"123456"):
        with pytest.raises(ValueError, match="does not say"):
            Suspicion.parse(row)


def test_what_format_1_held_against_a_request_is_read() -> None:
    assert Suspicion.parse(bytes(4)) == Suspicion(SUSPECT)
    assert Suspicion.parse(bytes((0, 0, 0, 2))) == Suspicion(BLAMED, downloading=2)


# Leasing


def resumed(
    disk: DiskKind,
    options: Options,
    *,
    in_hand: str = "",
    in_flight: str = "",
    others: str = "",
    on_event: OnEvent = ignore_events,
) -> LocalFrontier:
    """A frontier that was opened after a death with these pages leased, and *others* pending."""
    frontier = open_frontier(disk.path, OWNER, options)
    for name in in_hand + in_flight + others:
        frontier.add(page(name))
    frontier.commit()
    for name in in_hand + in_flight:
        lease = take(frontier)
        assert name_of(lease) == name
        if name in in_hand:
            frontier.run.note_response(lease)
    return reopened(disk, options, frontier, on_event)


def reopened(
    disk: DiskKind, options: Options, frontier: LocalFrontier, on_event: OnEvent = ignore_events
) -> LocalFrontier:
    disk.crash(frontier)
    return open_frontier(disk.path, OWNER, options, on_event=on_event)


def blamed(disk: DiskKind, options: Options, others: str = "") -> LocalFrontier:
    """A frontier with a page "!" that died twice in hand, the second time as the suspect."""
    frontier = resumed(disk, options, in_hand="!", others=others)
    lease = take(frontier)
    assert name_of(lease) == "!"
    frontier.run.note_response(lease)
    return reopened(disk, options, frontier)


def die_alone(disk: DiskKind, options: Options, frontier: LocalFrontier) -> LocalFrontier:
    lease = take(frontier)
    assert name_of(lease) == "!"
    assert lease_from(frontier) is None
    frontier.run.note_response(lease)
    return reopened(disk, options, frontier)


def test_what_was_in_flight_is_leased_as_before(disk: DiskKind, options: Options) -> None:
    frontier = resumed(disk, options, in_flight="abc", others="xyz")
    assert suspicions_of(frontier) == (0, 0)
    assert names(take_all(frontier)) == [*"abcxyz"]


def test_suspects_are_leased_one_at_a_time_beside_others(disk: DiskKind, options: Options) -> None:
    frontier = resumed(disk, options, in_hand="abc", others="xyz")
    assert suspicions_of(frontier) == (3, 0)
    leases = list(take_all(frontier))
    assert [name_of(lease) for lease in leases] == [*"axyz"]
    assert frontier.counts().pending == 2
    for lease in leases[1:]:
        frontier.finish(lease)
    assert lease_from(frontier) is None
    frontier.finish(leases[0])
    second = take(frontier)
    assert name_of(second) == "b"
    assert lease_from(frontier) is None
    frontier.release(second)
    assert sorted(work_off(frontier)) == ["b", "c"]
    assert suspicions_of(frontier) == (0, 0)
    assert not frontier._suspects.matters
    assert frontier.counts().pending == 0


def test_a_suspect_that_takes_long_lets_the_next_one_in(
    disk: DiskKind, options: Options, clock: ManualClock
) -> None:
    events: list[Event] = []
    frontier = resumed(disk, options, in_hand="abcd", others="xyz", on_event=events.append)
    first, *_ = take_all(frontier)
    assert name_of(first) == "a"
    clock.advance(0.19)
    assert lease_from(frontier) is None
    assert events == []
    clock.advance(0.01)
    assert events == [LeasesReady()], "or nothing would ask again"
    second = take(frontier)
    assert name_of(second) == "b"
    assert lease_from(frontier) is None
    frontier.finish(first)
    assert lease_from(frontier) is None, "the newest one counts"
    frontier.finish(second)
    third = take(frontier)
    assert name_of(third) == "c"
    assert lease_from(frontier) is None
    clock.advance(0.19)
    assert events == [LeasesReady()], "what was planned for the second one is off"
    clock.advance(0.01)
    assert events == [LeasesReady()] * 2
    assert lease_from(frontier) is not None
    frontier.close()


def test_nothing_asks_for_a_suspect_after_the_end(
    disk: DiskKind, options: Options, clock: ManualClock
) -> None:
    events: list[Event] = []
    frontier = resumed(disk, options, in_hand="ab", on_event=events.append)
    assert names(take_all(frontier)) == ["a"]
    frontier.close()
    clock.advance(10)
    assert events == []


def test_however_many_suspects_there_are_all_are_soon_let_in(
    disk: DiskKind, options: Options, clock: ManualClock
) -> None:
    frontier = open_frontier(disk.path, OWNER, options)
    for number in range(300):
        frontier.add(page(str(number)))
    frontier.commit()
    for lease in list(take_all(frontier)):
        frontier.run.note_response(lease)
    frontier = reopened(disk, options, frontier)
    leased = 0
    for _ in range(30):
        leased += len(list(take_all(frontier)))
        for _ in range(10):
            clock.advance(0.01)
            leased += len(list(take_all(frontier)))
    assert leased == 300


def test_those_in_hand_at_another_death_are_let_in_more_slowly(
    disk: DiskKind, options: Options, clock: ManualClock
) -> None:
    frontier = resumed(disk, options, in_hand="abcd", others="xyz")
    for _ in range(2):
        clock.advance(0.2)
        for lease in list(take_all(frontier)):
            if name_of(lease) in "ab":
                frontier.run.note_response(lease)
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (4, 0)
    first, *_ = take_all(frontier)
    assert name_of(first) == "a"
    clock.advance(0.9)
    assert lease_from(frontier) is None
    clock.advance(0.1)
    second = take(frontier)
    assert name_of(second) == "b"
    # Two that were in hand together twice: each will be alone.
    for lease in (first, second):
        frontier.run.note_response(lease)
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (2, 2)
    done = []
    while frontier.counts().pending:
        done += work_off(frontier)
        clock.advance(1)
    assert sorted(done[:-2]) == [*"cdxyz"]
    assert sorted(done[-2:]) == [*"ab"]


def test_a_suspect_that_is_done_is_none_any_more(disk: DiskKind, options: Options) -> None:
    frontier = resumed(disk, options, in_hand="ab", others="x")
    work_off(frontier)
    frontier.commit()
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (0, 0)
    frontier.close()
    with_rows = Journal(disk.path, OWNER)
    assert dict(with_rows.suspects()) == {}
    with_rows.close()


def test_one_that_is_over_is_not_suspected_though_that_was_not_committed(
    disk: DiskKind, options: Options
) -> None:
    frontier = open_frontier(disk.path, OWNER, options)
    for name in "abc":
        frontier.add(page(name))
    frontier.commit()
    first, second = take(frontier), take(frontier)
    for lease in (first, second):
        frontier.run.note_response(lease)
    frontier.finish(first)
    take(frontier)
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (1, 0)
    assert [*frontier._suspects.suspicions] == [b"b", b"c"]


@pytest.mark.parametrize("commits", [True, False])
def test_one_that_is_held_is_not_suspected(disk: DiskKind, options: Options, commits: bool) -> None:
    """Its page was worked on to the end: it only waits for what it has led to."""
    frontier = open_frontier(disk.path, OWNER, options)
    frontier.add(page("a"))
    frontier.add(page("b"))
    frontier.commit()
    held = take(frontier)
    frontier.run.note_response(held)
    frontier.hold(held)
    other = take(frontier)
    if commits:
        # The log of leases begins again.
        frontier.finish(other)
        frontier.commit()
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (0, 0)
    assert work_off(frontier) == (["a"] if commits else ["a", "b"])


def test_a_suspect_that_is_held_is_none_any_more(disk: DiskKind, options: Options) -> None:
    frontier = resumed(disk, options, in_hand="a", others="b")
    leases = list(take_all(frontier))
    for lease in leases:
        (frontier.hold if name_of(lease) == "a" else frontier.finish)(lease)
    frontier.commit()
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (0, 0)
    assert work_off(frontier) == ["a"]


def test_one_that_is_held_keeps_no_other_from_being_alone(disk: DiskKind, options: Options) -> None:
    frontier = blamed(disk, options, "x")
    held = take(frontier)
    frontier.hold(held)
    alone = take(frontier)
    assert name_of(alone) == "!"
    frontier.add(page("child", stored=False))
    frontier.hold(alone)
    assert name_of(take(frontier)) == "child"


def test_a_log_that_began_anew_knows_who_is_in_hand(disk: DiskKind, options: Options) -> None:
    frontier = open_frontier(disk.path, OWNER, options)
    for name in "abc":
        frontier.add(page(name))
    frontier.run.note_response(take(frontier))
    take(frontier)
    frontier.commit()
    take(frontier)
    frontier = reopened(disk, options, frontier)
    assert frontier._suspects.suspicions[b"a"].level is SUSPECT
    assert suspicions_of(frontier) == (1, 0)


def test_one_that_is_blamed_is_leased_alone_behind_all_others(
    disk: DiskKind, options: Options
) -> None:
    frontier = blamed(disk, options, "xy")
    assert suspicions_of(frontier) == (0, 1)
    leases = list(take_all(frontier))
    assert [name_of(lease) for lease in leases] == ["x", "y"]
    frontier.add(page("later", "another slot", priority=-5))
    leases += take_all(frontier)
    assert frontier.counts().pending == 1
    for lease in leases:
        assert lease_from(frontier) is None
        frontier.finish(lease)
    alone = take(frontier)
    assert name_of(alone) == "!"
    frontier.finish(alone)
    frontier.add(page("z"))
    assert work_off(frontier) == ["z"]


@pytest.mark.parametrize("max_crashes", [1, 3])
def test_one_that_dies_alone_in_hand_is_a_dead_letter(
    disk: DiskKind, options: Options, max_crashes: int
) -> None:
    options = replace(options, max_crashes=max_crashes)
    events: list[Event] = []
    frontier = blamed(disk, options)
    for _ in range(max_crashes):
        assert frontier.counts().dead == 0
        frontier = die_alone(disk, options, frontier)
    frontier._suspects._on_event = events.append
    assert lease_from(frontier) is None
    reason = f"the process died {max_crashes} times while it alone was being processed"
    assert [
        (type(event), event.why.text) for event in events if isinstance(event, DeadLettered)
    ] == [(DeadLettered, reason)]
    assert frontier.counts().dead == 1
    assert frontier.add(page("!")) is Verdict.SEEN
    frontier.close()
    disk.verify()


def test_one_that_dies_alone_while_downloading_has_twenty_lives(
    disk: DiskKind, options: Options
) -> None:
    frontier = resumed(disk, options, in_flight="!")
    for _ in range(3):
        take(frontier)
        frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (0, 1)
    for _ in range(20):
        assert frontier.counts().dead == 0
        take(frontier)
        frontier = reopened(disk, options, frontier)
    assert lease_from(frontier) is None
    assert frontier.counts().dead == 1


def test_an_orderly_stop_blames_nobody(disk: DiskKind, options: Options) -> None:
    frontier = blamed(disk, options, "x")
    x = take(frontier)
    frontier.run.note_response(x)
    frontier.run.note_closing()
    frontier.commit()
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (0, 1)
    frontier.finish(take(frontier))
    alone = take(frontier)
    frontier.run.note_response(alone)
    frontier.run.note_closing()
    frontier = reopened(disk, options, frontier)
    assert frontier._suspects.suspicions == {b"!": Suspicion(BLAMED)}


def test_a_clean_close_with_leases_out_blames_nobody(disk: DiskKind, options: Options) -> None:
    frontier = resumed(disk, options, in_hand="a", others="x")
    for _ in range(4):
        assert [*frontier._suspects.suspicions.items()] == [(b"a", Suspicion(SUSPECT))]
        assert names(take_all(frontier)) == ["a", "x"]
        frontier.close()
        frontier = open_frontier(disk.path, OWNER, options)
    assert work_off(frontier) == ["a", "x"]


def test_another_boot_of_the_machine_blames_nobody(disk: DiskKind, options: Options) -> None:
    frontier = open_frontier(disk.path, OWNER, options)
    frontier.add(page("a"))
    frontier.commit()
    journal_of(frontier).leases._boot = b"an earlier boot"
    frontier.finish(take(frontier))
    frontier.add(page("b"))
    frontier.commit()
    frontier.run.note_response(take(frontier))
    frontier = reopened(disk, options, frontier)
    assert frontier._suspects.suspicions == {}


@pytest.mark.parametrize("hours", [0, -300])
def test_no_clock_is_asked_what_a_death_tells(
    disk: DiskKind, options: Options, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    stopped = time.time() + hours * 3600
    monkeypatch.setattr(time, "time", lambda: stopped)
    frontier = blamed(disk, options)
    frontier = die_alone(disk, options, frontier)
    assert frontier._suspects.suspicions == {b"!": Suspicion(BLAMED, in_hand=1)}


def test_a_finished_job_suspects_nobody(disk: DiskKind, options: Options) -> None:
    frontier = open_frontier(disk.path, OWNER, options)
    frontier.add(page("ended with the process", stored=False))
    frontier.commit()
    frontier.run.note_response(take(frontier))
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (1, 0)
    frontier.close(finished=True)
    frontier = open_frontier(disk.path, OWNER, options)
    assert suspicions_of(frontier) == (0, 0)


def test_all_equal_requests_of_a_page_that_is_blamed_are_leased(
    disk: DiskKind, options: Options
) -> None:
    frontier = open_frontier(disk.path, OWNER, options)
    for unique in (True, False, False):
        frontier.add(page("!", unique=unique))
    frontier.commit()
    frontier.run.note_response(take(frontier))
    frontier = reopened(disk, options, frontier)
    frontier.run.note_response(take(frontier))
    frontier = reopened(disk, options, frontier)
    assert suspicions_of(frontier) == (0, 1)
    assert work_off(frontier) == ["!", "!", "!"]
    assert frontier.counts().pending == 0


def test_one_that_waits_is_not_read_from_the_store_again(disk: DiskKind, options: Options) -> None:
    small = replace(options, order=Order("slots", "lifo"), memory_requests=4)
    frontier = open_frontier(disk.path, OWNER, small)
    frontier.add(page("last", priority=-1))
    frontier.add(page("!"))
    frontier.commit()
    for _ in range(2):
        frontier.run.note_response(take(frontier))
        frontier = reopened(disk, small, frontier)
    held = take(frontier)
    assert name_of(held) == "last"
    frontier.release(held)
    # It is passed again by the head of its queue, which more urgent requests push back.
    for number in range(20):
        frontier.add(page(str(number)))
        frontier.commit()
    assert work_off(frontier) == [*map(str, range(19, -1, -1)), "last", "!"]
    assert frontier.counts().pending == 0


# Alone, but not for ever


def test_what_a_page_that_is_alone_has_led_to_goes_beside_it(
    disk: DiskKind, options: Options
) -> None:
    events: list[Event] = []
    frontier = blamed(disk, options)
    frontier._on_event = frontier._suspects._on_event = events.append
    alone = take(frontier)
    assert isinstance(events[-1], Isolated)
    assert frontier.add(page("!")) is Verdict.SEEN
    assert lease_from(frontier) is None
    frontier.add(page("child"))
    child = take(frontier)
    assert isinstance(events[-1], IsolationEnded)
    assert "led to" in events[-1].why
    # Who is let in beside it changes nothing.
    frontier.run.note_response(child)
    frontier.run.note_response(alone)
    frontier.commit()
    frontier = reopened(disk, options, frontier)
    assert frontier._suspects.suspicions == {b"!": Suspicion(BLAMED, in_hand=1)}


def test_one_that_takes_too_long_is_alone_no_more(
    disk: DiskKind, options: Options, clock: ManualClock
) -> None:
    events: list[Event] = []
    frontier = blamed(disk, options, "x")
    frontier._on_event = frontier._suspects._on_event = events.append
    x = take(frontier)
    frontier.finish(x)
    alone = take(frontier)
    waiting = page("fed before")
    clock.now += 99
    assert lease_from(frontier) is None
    clock.now += 1
    assert lease_from(frontier) is None, "nothing is pending"
    assert [type(event) for event in events] == [Isolated, IsolationEnded]
    frontier.add(waiting)
    assert name_of(take(frontier)) == "fed before"
    frontier.finish(alone)
    frontier.add(page("y"))
    assert name_of(take(frontier)) == "y"


def test_where_the_backlog_never_ends_the_crawl_pauses_for_one_every_ten_minutes(
    disk: DiskKind, options: Options, clock: ManualClock
) -> None:
    frontier = blamed(disk, options, "xyz")
    x = take(frontier)
    clock.now += 599
    y = take(frontier)
    clock.now += 1
    assert lease_from(frontier) is None, "what is in flight is waited for"
    clock.now += 9
    assert lease_from(frontier) is None
    clock.now += 1
    z = take(frontier)
    for lease in (x, y, z):
        frontier.finish(lease)
        frontier.add(page(f"after {name_of(lease)}"))
    assert name_of(take(frontier)) == "after x", "it took too long: ten minutes later"
    clock.now += 600
    assert lease_from(frontier) is None
    frontier.finish(next(iter(frontier._leases.values())))
    alone = take(frontier)
    assert name_of(alone) == "!"
    assert lease_from(frontier) is None
    frontier.finish(alone)
    assert names(take_all(frontier)) == ["after y", "after z"]


# Crawls that die again and again, as long as it takes


@dataclass
class Simulation:
    """A crawl of *pages* pages, *concurrent* at a time, on a frontier with its files.

    Responses come when they come, callbacks run one after the other.  Time is simulated, deaths are
    not: what the next process finds is a copy of the files.
    """

    directory: Path
    seed: int
    pages: int = 400
    concurrent: int = 32
    latency: float = 1.0
    callback: float = 0.01
    #: Those that kill in their callback, and those that kill while they are downloaded.
    killers: frozenset[int] = frozenset()
    downloads: frozenset[int] = frozenset()
    #: Page -> seconds that its download takes; those after which it is in a pipeline.
    slow: dict[int, float] = field(default_factory=dict)
    stored: dict[int, float] = field(default_factory=dict)
    #: How often an operator kills the process, and after how many seconds.
    kills: int = 0
    kill_after: float = 8.0
    #: How many links a killer has yielded when it kills.
    links: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(self.seed)
        self.disk = DiskKind(self.directory)
        self.options = Options(order=Order("slots", "fifo"), clock=self.clock, patience=540.0)
        self.frontier = open_frontier(self.disk.path, OWNER, self.options)
        for number in range(self.pages):
            self.frontier.add(page(str(number)))
        self.frontier.commit()
        self.deaths = 0
        #: When the process that runs now began.
        self.began = self.clock.now
        self.finished_at: dict[int, float] = {}

    def run(self, most_deaths: int = 200) -> None:
        """Crawl, die and resume until all is done or dead."""
        while self._crawl():
            self.deaths += 1
            assert self.deaths <= most_deaths, "it goes on for ever"
            self.disk.crash(self.frontier)
            self.clock.now += 1.0
            self.began = self.clock.now
            self.frontier = open_frontier(self.disk.path, OWNER, self.options)

    def _crawl(self) -> bool:
        """Crawl until the process dies; whether it does."""
        frontier, clock = self.frontier, self.clock
        kill_at = float("inf")
        if self.kills:
            kill_at = clock.now + self.rng.uniform(0.3, 2.0) * self.kill_after
        commit_at = clock.now + 1.0
        free_at = clock.now
        order = 0
        events: list[tuple[float, int, str, Lease]] = []
        while True:
            while len(frontier._leases) < self.concurrent:
                lease = lease_from(frontier)
                if lease is None:
                    break
                number = int(name_of(lease).partition(" ")[0])
                takes = self.slow.get(number, self.latency * self.rng.uniform(0.9, 1.1))
                what = "killed" if number in self.downloads else "response"
                order += 1
                heappush(
                    events,
                    (clock.now + takes * (0.5 if what == "killed" else 1), order, what, lease),
                )
            if not events:
                return False
            at, before, what, lease = heappop(events)
            if clock.next_call_at <= min(at, kill_at, commit_at):
                clock.advance(max(0.0, clock.next_call_at - clock.now))
                heappush(events, (at, before, what, lease))
                continue
            if min(at, kill_at) >= commit_at:
                clock.now = commit_at
                commit_at += 1.0
                frontier.commit()
                heappush(events, (at, before, what, lease))
                continue
            if kill_at < at:
                clock.now = kill_at
                self.kills -= 1
                return True
            clock.now = max(clock.now, at)
            number = int(name_of(lease).partition(" ")[0])
            order += 1
            if what == "killed":
                return True
            if what == "response":
                frontier.run.note_response(lease)
                free_at = max(free_at, at) + self.callback
                heappush(events, (free_at, order, "callback", lease))
            elif what == "callback" and number in self.killers and " " not in name_of(lease):
                for link in range(self.links):
                    frontier.add(page(f"{number} links to {link}"))
                return True
            elif what == "callback" and number in self.stored:
                heappush(events, (at + self.stored[number], order, "stored", lease))
            else:
                frontier.finish(lease)
                self.finished_at[number] = at

    def check(self, *dead: int) -> None:
        """These pages must be dead, and all others done, none lost."""
        frontier = self.frontier
        frontier.commit()
        counts = frontier.counts()
        assert (counts.pending, counts.leased, counts.unaccounted) == (0, 0, 0)
        frontier.close()
        journal = Journal(self.disk.path, OWNER)
        found = {key for key, _, _ in journal.dead()}
        assert len(found) == counts.dead == len(dead)
        assert {int(value[2 : 2 + value[1]]) for _, _, value in journal.dead()} == set(dead)
        journal.close()
        self.disk.verify()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("links", [0, 10])
@pytest.mark.parametrize("latency", [1.0, 0.0])
def test_a_page_that_kills_in_its_callback_is_dead_after_six_deaths(
    tmp_path: Path, seed: int, links: int, latency: float
) -> None:
    killer = frozenset({140})
    crawl = Simulation(tmp_path, seed, killers=killer, links=links, latency=latency)
    crawl.run()
    print(f"seed {seed}: dead after {crawl.deaths} deaths")
    assert crawl.deaths <= 6
    crawl.check(140)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_page_that_kills_in_its_download_is_dead_after_26_deaths(
    tmp_path: Path, seed: int
) -> None:
    crawl = Simulation(tmp_path, seed, downloads=frozenset({140}))
    crawl.run()
    print(f"seed {seed}: dead after {crawl.deaths} deaths")
    # Most often somebody else is in hand when it kills.
    assert crawl.deaths <= 35
    crawl.check(140)


@pytest.mark.long
def test_a_page_that_kills_in_its_download_with_nobody_in_hand(tmp_path: Path) -> None:
    crawl = Simulation(tmp_path, 1, downloads=frozenset({140}), callback=0.0)
    crawl.run()
    assert crawl.deaths <= 26
    crawl.check(140)


def test_a_killer_beside_slow_innocents(tmp_path: Path) -> None:
    slow = dict.fromkeys([*range(20, 39), *range(41, 54)], 30.0)
    crawl = Simulation(tmp_path, 1, killers=frozenset({40}), slow=slow)
    crawl.run()
    assert crawl.deaths <= 6
    crawl.check(40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_an_operators_twenty_kills_make_no_dead_letter(tmp_path: Path, seed: int) -> None:
    crawl = Simulation(tmp_path, seed, pages=3_000, kills=20, slow={500: 60.0})
    crawl.run()
    print(f"seed {seed}: {crawl.deaths} deaths")
    assert crawl.deaths == 20
    crawl.check()


def test_an_operators_kills_spare_the_start_page(tmp_path: Path) -> None:
    crawl = Simulation(tmp_path, 1, pages=1, kills=20, kill_after=2.0, slow={0: 5.0})
    crawl.run()
    assert crawl.deaths == 20
    crawl.check()


def test_a_page_that_is_stored_slowly_may_die_of_an_operator_and_nobody_else_does(
    tmp_path: Path,
) -> None:
    crawl = Simulation(tmp_path, 1, pages=3_000, kills=20, stored={500: 60.0})
    crawl.run()
    assert crawl.frontier.counts().dead <= 1
    crawl.check(*([500] if crawl.frontier.counts().dead else []))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kills", "times"), [(1, 2), (2, 10)])
def test_a_resume_with_all_pages_in_hand_for_seconds_is_not_slow(
    tmp_path: Path, seed: int, kills: int, times: float
) -> None:
    rng = random.Random(seed)
    seconds = {number: rng.uniform(3.0, 6.0) for number in range(32)}

    def crawl(name: str, kills: int) -> float:
        directory = tmp_path / name
        directory.mkdir()
        # All 32 are in hand when it is killed.
        crawl = Simulation(
            directory, seed, 32, latency=0.1, stored=seconds, kills=kills, kill_after=1.4
        )
        crawl.run()
        assert crawl.deaths == kills
        crawl.check()
        return crawl.clock.now - crawl.began

    whole = crawl("whole", 0)
    rest = crawl("killed", kills)
    print(f"seed {seed}: {whole:.1f} s, after {kills} kills {rest:.1f} s")
    assert rest <= times * whole


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_page_that_kills_among_pages_that_take_seconds_is_dead_after_six_deaths(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    seconds = {number: rng.uniform(3.0, 6.0) for number in range(200) if number != 140}
    crawl = Simulation(tmp_path, seed, 200, killers=frozenset({140}), latency=0.1, stored=seconds)
    crawl.run()
    print(f"seed {seed}: dead after {crawl.deaths} deaths")
    assert crawl.deaths <= 6
    crawl.check(140)


@pytest.mark.long
def test_several_killers_of_both_kinds_die_and_nobody_else(tmp_path: Path) -> None:
    killers, downloads = frozenset({50, 150, 250}), frozenset({60, 260})
    crawl = Simulation(tmp_path, 1, killers=killers, downloads=downloads)
    crawl.run()
    print(f"{crawl.deaths} deaths")
    crawl.check(*killers, *downloads)


# Whole crawls


BLAME = "may be the reason"


def test_five_kills_with_nothing_but_the_start_page_in_flight_make_no_dead_letter(
    tmp_path: Path,
) -> None:
    is_over = threading.Event()
    graph = {"/0": Page(["/1"], held=is_over), "/1": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        for number in range(1, 6):
            process = crawl.start()
            site.wait_for(lambda site, number=number: site.hits["/0"] == number)
            crawl.kill(process)
        is_over.set()
        assert crawl.run() == 0
        assert crawl.stat("altsched/dead") == 0
        assert_complete(crawl, site, set(graph))


def test_pages_in_long_callbacks_are_all_in_work_again_after_a_kill(tmp_path: Path) -> None:
    count = 16
    settings = {"CONCURRENT_REQUESTS": count, "CONCURRENT_REQUESTS_PER_DOMAIN": count}
    graph = {f"/{number}": Page() for number in range(count)}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "together", site.url, pages=count, together=count + 1)
        process = crawl.start(**settings)
        assert process.stdout is not None
        for _ in range(count):
            assert process.stdout.readline()
        crawl.kill(process)
        # None is over before all of them are there.
        crawl.arguments["together"] = count
        assert crawl.run(**settings) == 0
        assert crawl.stat("altsched/suspects") == count
        assert_complete(crawl, site, set(graph))


def test_a_kill_after_an_orderly_stop_began_blames_nobody(tmp_path: Path) -> None:
    is_over = threading.Event()
    graph = {"/0": Page(["/slow", "/1"]), "/slow": Page(held=is_over), "/1": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        for number in range(1, 6):
            process = crawl.start()
            site.wait_for(lambda site, number=number: site.hits["/slow"] == number)
            process.send_signal(signal.SIGTERM)
            crawl.wait_for_log(process, "Closing spider (shutdown)")
            crawl.kill(process)
            with View(crawl.jobdir / "frontier") as view:
                assert dict(view.suspects()) == {}
        is_over.set()
        assert crawl.run() == 0
        assert BLAME not in crawl.log
        assert_complete(crawl, site, set(graph))


def test_a_page_that_kills_when_it_has_yielded_its_links_is_found_out(tmp_path: Path) -> None:
    links = [f"/{number}" for number in range(1, 11)]
    graph = {"/0": Page(["/poison"]), "/poison": Page(links)} | {link: Page() for link in links}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "generous", f"{site.url}/0", poison="/poison")
        deaths = 0
        # No commit is due between its links and its end, however slow the machine is.
        while crawl.run(ALTSCHED_COMMIT_INTERVAL=30) == KILLED:
            deaths += 1
        assert deaths <= 6
        assert crawl.stat("altsched/dead") == 1
        # What it led to was not committed when it killed, and comes with it if it is requeued.
        assert crawl.item_paths() == ["/0"]


def test_a_page_that_is_crawled_alone_gets_what_it_waits_for(tmp_path: Path) -> None:
    with Site({"/0": Page(), "/fed": Page()}) as site:
        crawl = Crawl(tmp_path, "patient", site.url, die=1)
        for _ in range(2):
            assert crawl.run() == KILLED
        crawl.arguments["die"] = 0
        assert crawl.run() == 0
        alone = "crawled alone, since the process died more than once while it was one of those"
        assert alone in crawl.log
        assert "it may wait for a request that it has led to" in crawl.log
        assert sorted(crawl.item_paths()) == ["/0", "/fed"]
