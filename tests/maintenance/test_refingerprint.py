"""Other fingerprints for stored requests: as if they had always had them, or not at all."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_altsched import DupeFilter
from scrapy_altsched.errors import CodecError
from scrapy_altsched.frontier import Counts, Entry, Options, Order, Verdict
from scrapy_altsched.frontier.entry import DeadLetter
from scrapy_altsched.frontier.events import Event, LeaseUnrecorded
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.states import DEAD, DELAYED, FAILED
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.refingerprint import Refingerprinted, refingerprint

from ..crawls import altsched, write_project
from ..engines import OURS, StandIn
from ..frontiers import (
    OWNER,
    DiskKind,
    journal_of,
    lease_from,
    name_of,
    page,
    problems_of,
    suspicions_of,
    take,
    take_all,
    work_off,
)

CHUNK = 5
pytestmark = pytest.mark.usefixtures("small_chunks")
ROOT = Path(__file__).parents[2]


Make = Callable[[bytes], bytes]


def renamed(names: dict[str, str]) -> Make:
    """Fingerprints that are other ones for some of the pages of :func:`page`."""

    def make(payload: bytes) -> bytes:
        name = payload.decode().removeprefix("payload of ")
        return names.get(name, name).encode()

    return make


def change(disk: DiskKind, names: dict[str, str] | Make) -> Refingerprinted:
    """Do it, as the command does."""
    journal = Journal(disk.path, OWNER)
    make = renamed(names) if isinstance(names, dict) else names
    try:
        return refingerprint(journal, make, {"fingerprints": b"new"})
    finally:
        journal.close()


def add(frontier: LocalFrontier, *entries: Entry | str) -> None:
    for entry in entries:
        frontier.add(page(entry) if isinstance(entry, str) else entry)


def seen(frontier: LocalFrontier, *names: str) -> list[bool]:
    """Whether fingerprints are among the seen ones; they are not changed by being asked for."""
    return [journal_of(frontier).has_seen(name.encode()) for name in names]


def test_pending_requests_have_the_new_fingerprints_and_their_old_places(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, "d", page("a", "x", 5), page("b", "y"), page("c", "x"))
    frontier.close()
    outcome = change(disk, {"a": "A", "b": "B"})
    assert outcome == Refingerprinted(pending=4, changed=2)
    frontier = disk.open()
    assert problems_of(frontier) == []
    assert seen(frontier, "a", "A", "b", "B", "c", "d") == [False, True, False, True, True, True]
    assert frontier.run.note("fingerprints") == b"new"
    assert frontier.add(page("A")) is Verdict.SEEN
    assert work_off(frontier) == ["d", "A", "B", "c"]
    assert frontier.counts() == Counts(accepted=4, done=4, seen=4)
    frontier.close()


def test_a_log_of_leases_that_cannot_be_begun_anew_is_no_reason_to_fail(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, "a")
    frontier.close()
    for name in ("altsched.leases.0", "altsched.leases.1"):
        (disk.path / name).unlink(missing_ok=True)
        (disk.path / name).mkdir()
    assert change(disk, {"a": "A"}) == Refingerprinted(pending=1, changed=1)
    events: list[Event] = []
    frontier = open_frontier(disk.path, OWNER, on_event=events.append)
    assert work_off(frontier) == ["A"]
    assert events.count(LeaseUnrecorded()) == 1
    frontier.close()


def test_if_nothing_changes_nothing_is_written_anew(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, *"abc")
    frontier.close()
    before = frontier.run.commit_number
    assert change(disk, {}) == Refingerprinted(pending=3)
    frontier = disk.open()
    assert frontier.run.commit_number == before + 2, "the note, and the opening"
    assert frontier.run.note("fingerprints") == b"new"
    assert work_off(frontier) == ["c", "b", "a"]
    frontier.close()


@pytest.mark.parametrize(
    ("order", "entries", "kept"),
    [
        ("slots/lifo/fifo", [page("a"), page("b"), page("c")], "c"),
        ("slots/fifo/fifo", [page("a"), page("b"), page("c")], "a"),
        ("slots/fifo/fifo", [page("a"), page("b", priority=1), page("c")], "b"),
        ("slots/lifo/fifo", [page("a", "z"), page("b", "y"), page("c", "x")], "c"),
        ("slots/fifo/fifo", [page("a", "z"), page("b", "y"), page("c", "x")], "a"),
        ("slots/fifo/fifo", [page("a", "z", start=True), page("b", "y"), page("c", "x")], "b"),
        ("one/lifo/none", [page("a", "z"), page("b", "y", 7), page("c", "x", -1)], "b"),
    ],
)
def test_of_pages_that_become_one_the_next_in_order_stays(
    disk: DiskKind, order: str, entries: list[Entry], kept: str
) -> None:
    options = Options(order=Order.parse(order))
    frontier = disk.open(options)
    add(frontier, *entries)
    frontier.close()
    assert change(disk, dict.fromkeys("abc", "same")) == Refingerprinted(
        pending=3, changed=3, merged=2
    )
    frontier = disk.open(options)
    assert problems_of(frontier) == []
    assert frontier.counts() == Counts(accepted=3, pending=1, done=2, seen=1)
    lease = take(frontier)
    assert name_of(lease) == "same"
    assert lease.entry.payload == f"payload of {kept}".encode()
    assert seen(frontier, *"abc", "same") == [False, False, False, True]
    frontier.finish(lease)
    frontier.close()


@pytest.mark.parametrize("first", "ab")
def test_a_page_that_becomes_an_unchanged_one_is_merged_with_it(disk: DiskKind, first: str) -> None:
    frontier = disk.open()
    # Last in, first out.
    add(frontier, *("ba" if first == "a" else "ab"))
    frontier.close()
    assert change(disk, {"b": "a"}) == Refingerprinted(pending=2, changed=1, merged=1)
    frontier = disk.open()
    assert seen(frontier, "a", "b") == [True, False]
    (lease,) = take_all(frontier)
    assert (name_of(lease), lease.entry.payload) == ("a", f"payload of {first}".encode())
    frontier.release(lease)
    frontier.close()


def test_a_page_that_becomes_one_that_is_done_is_taken_out(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, "done")
    frontier.finish(take(frontier))
    frontier.mark_seen(b"marked")
    add(frontier, *"abc")
    frontier.close()
    outcome = change(disk, {"a": "done", "b": "marked"})
    assert outcome == Refingerprinted(pending=3, changed=2, crawled=2, done=1)
    frontier = disk.open()
    assert seen(frontier, "a", "b", "c", "done") == [False, False, True, True]
    assert frontier.counts() == Counts(accepted=4, pending=1, done=3, seen=3)
    assert work_off(frontier) == ["c"]
    frontier.close()


def test_a_page_that_takes_the_old_fingerprint_of_another_is_not_taken_for_it(
    disk: DiskKind,
) -> None:
    frontier = disk.open()
    add(frontier, *"abc")
    frontier.close()
    assert change(disk, {"a": "b", "b": "c", "c": "a"}) == Refingerprinted(pending=3, changed=3)
    frontier = disk.open()
    assert problems_of(frontier) == []
    assert seen(frontier, *"abc") == [True, True, True]
    assert work_off(frontier) == ["a", "c", "b"]
    frontier.close()


def test_requests_that_are_not_filtered_all_stay(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, "done")
    frontier.finish(take(frontier))
    add(frontier, *(page("a", unique=False) for _ in range(2)), page("b"))
    frontier.close()
    outcome = change(disk, {"a": "done", "b": "B"})
    assert outcome == Refingerprinted(pending=3, changed=3, done=1)
    frontier = disk.open()
    assert seen(frontier, "a", "B", "done") == [False, True, True]
    assert work_off(frontier) == ["B", "done", "done"]
    frontier.close()


def test_dead_requests_have_the_new_fingerprints_too(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, *"ab")
    frontier.dead_letter(take(frontier), DeadLetter("it is broken"))
    frontier.close()
    assert change(disk, {"a": "b", "b": "B"}) == Refingerprinted(
        pending=1, unqueued={DELAYED: 0, DEAD: 1, FAILED: 0}, changed=2
    )
    frontier = disk.open()
    assert problems_of(frontier) == []
    ((_, why, value),) = journal_of(frontier).dead()
    assert why == DeadLetter("it is broken")
    assert value.endswith(b"\x01Bpayload of b")
    assert seen(frontier, "a", "b", "B") == [False, True, True]
    assert work_off(frontier) == ["b"]
    frontier.close()


def test_what_cannot_be_decoded_keeps_its_fingerprint(disk: DiskKind) -> None:
    def make(payload: bytes) -> bytes:
        if payload.endswith(b"b"):
            raise CodecError("its callback is gone")
        return b"new" + payload[-1:]

    frontier = disk.open()
    add(frontier, *"abc")
    frontier.close()
    assert change(disk, make) == Refingerprinted(pending=3, changed=2, unreadable=1)
    frontier = disk.open()
    assert work_off(frontier) == ["newc", "b", "newa"]
    frontier.close()


def test_suspects_stay_suspects(disk: DiskKind) -> None:
    frontier = disk.open()
    add(frontier, *"abcd")
    frontier.commit()
    leased = [take(frontier) for _ in range(2)]
    assert [name_of(lease) for lease in leased] == ["d", "c"]
    for lease in leased:
        frontier.run.note_response(lease)
    disk.crash(frontier)
    # One of them dies again.
    frontier = disk.open()
    lease = take(frontier)
    assert name_of(lease) == "d"
    frontier.run.note_response(lease)
    disk.crash(frontier)
    change(disk, {"c": "C", "d": "D", "a": "A"})
    frontier = disk.open()
    first = take(frontier)
    assert name_of(first) == "C"
    assert suspicions_of(frontier) == (1, 1)
    others = [take(frontier), take(frontier)]
    assert [name_of(lease) for lease in others] == ["b", "A"]
    for lease in (first, *others):
        assert lease_from(frontier) is None, "one that is blamed is leased alone"
        frontier.finish(lease)
    last = take(frontier)
    assert name_of(last) == "D"
    frontier.finish(last)
    frontier.close()


def test_start_requests_that_are_pending_are_known_to_the_next_run(disk: DiskKind) -> None:
    def start(name: str, **values: Any) -> Entry:
        return page(name, from_start=True, unique=False, **values)

    frontier = disk.open()
    add(frontier, *(start(name) for name in ("a", "b", "b", "c", "done")))
    frontier.finish(take(frontier))
    frontier.close()
    names = {"a": "b", "b": "B", "done": "DONE"}
    change(disk, names)
    frontier = disk.open()
    answers = [frontier.add(start(names.get(name, name))) for name in ("a", "b", "b", "c", "d")]
    assert answers == [Verdict.STARTED] * 4 + [Verdict.ADDED]
    # Of one that is done, nothing could be made.
    assert frontier.add(start("DONE")) is Verdict.ADDED
    frontier.close()


@pytest.mark.parametrize("same", ["a", "new"])
def test_claims_of_start_requests_that_become_one_add_up(disk: DiskKind, same: str) -> None:
    frontier = disk.open()
    add(frontier, *(page(name, from_start=True, unique=False) for name in "abb"))
    frontier.close()
    change(disk, dict.fromkeys("ab", same))
    frontier = disk.open()
    for expected in [Verdict.STARTED] * 3 + [Verdict.ADDED]:
        assert frontier.add(page(same, from_start=True, unique=False)) is expected
    frontier.close()


def test_all_of_it_can_be_done_again_and_undone(disk: DiskKind) -> None:
    names = [f"{number:02}" for number in range(3 * CHUNK + 1)]
    frontier = disk.open()
    add(frontier, *(page(name, f"slot {int(name) % 3}", int(name) % 2) for name in names))
    frontier.close()
    there = {name: f"new {name}" for name in names}
    for _ in range(2):
        assert change(disk, there).changed in (len(names), 0)
        there = {name: f"new {name}" for name in names}
    assert change(disk, {}).changed == len(names)
    frontier = disk.open()
    assert sorted(work_off(frontier)) == names
    frontier.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_jobs_are_as_a_model_says(disk: DiskKind, seed: int) -> None:
    rng = random.Random(seed)
    names = [f"{number:02}" for number in range(30)]
    frontier = disk.open()
    add(
        frontier,
        *(
            page(
                name,
                rng.choice("xyz"),
                rng.randrange(3),
                start=rng.random() < 0.2,
                unique=rng.random() < 0.8,
            )
            for name in names
        ),
    )
    leases = [take(frontier) for _ in range(10)]
    for lease in leases[:8]:
        frontier.finish(lease)
    done = {name_of(lease) for lease in leases[:8]}
    seen_done = {name_of(lease) for lease in leases[:8] if lease.entry.unique}
    frontier.dead_letter(leases[8], DeadLetter("so"))
    frontier.release(leases[9])
    frontier.close()
    # Onto each other, onto pages that are done, and onto new ones.
    targets = [*names, "A", "B", "C"]
    there = {name: rng.choice(targets) for name in names if rng.random() < 0.7}
    frontier = disk.open()
    before = [(lease.entry, lease.key) for lease in take_all(frontier)]
    frontier.close()
    old_unique = {entry.fingerprint for entry, _ in before if entry.unique}
    if leases[8].entry.unique:
        old_unique.add(leases[8].entry.fingerprint)
    expected: dict[str, bytes] = {}
    kept = 0
    for entry, _ in sorted(before, key=lambda item: item[1][8:]):
        name = entry.fingerprint.decode()
        new = there.get(name, name)
        if not entry.unique:
            kept += 1
            continue
        is_done = new in seen_done and new.encode() not in old_unique and new != name
        if not is_done and new not in expected:
            assert entry.payload is not None
            expected[new] = entry.payload
            kept += 1
    outcome = change(disk, there)
    others = {DELAYED: 0, DEAD: 1, FAILED: 0}
    assert (outcome.pending, outcome.unqueued, outcome.done) == (len(before), others, len(done))
    assert outcome.merged + outcome.crawled == len(before) - kept
    frontier = disk.open()
    assert problems_of(frontier) == []
    assert frontier.counts().pending == kept
    assert frontier.counts().unaccounted == 0
    found = [lease.entry for lease in take_all(frontier)]
    unique = {entry.fingerprint.decode(): entry.payload for entry in found if entry.unique}
    assert unique == expected
    assert all(seen(frontier, *unique, *seen_done))
    frontier.close()


# A death in the middle

KILLED = """
import os, signal, sys
from pathlib import Path
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.maintenance import refingerprint, rewriter

rewriter.CHUNK = int(sys.argv[3])
left = int(sys.argv[2])

def follow(title, rows, total):
    global left
    for row in rows:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row

def make(payload):
    return b"new " + payload.removeprefix(b"payload of ")

refingerprint.follow = follow
journal = Journal(Path(sys.argv[1]), sys.argv[4])
refingerprint.refingerprint(journal, make, {"fingerprints": b"new"})
if left == 0:  # all is written, and nothing closed
    os.kill(os.getpid(), signal.SIGKILL)
journal.close()
"""


@pytest.mark.parametrize("moment", ["reading", "writing", "at the last", "after all"])
def test_a_kill_in_the_middle_leaves_all_as_it_was(disk: DiskKind, moment: str) -> None:
    names = [f"{number:02}" for number in range(3 * CHUNK + 2)]
    # Once in the first walk over all, else in the second, when chunks of it are written.
    steps = {
        "reading": CHUNK,
        "writing": len(names) + 2 * CHUNK + 1,
        "at the last": 2 * len(names) - 1,
        "after all": 2 * len(names),
    }[moment]
    frontier = disk.open()
    add(frontier, *(page(name, f"slot {int(name) % 3}") for name in names))
    frontier.close()
    before = frontier.run.commit_number
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(disk.path), str(steps), str(CHUNK), OWNER],
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == -signal.SIGKILL
    is_changed = moment == "after all"
    frontier = disk.open()
    # What was written before the death is there, and counts for nothing.
    written = {"reading": 0, "writing": 2, "at the last": 3, "after all": 4}[moment]
    assert frontier.run.commit_number == before + written + 1
    assert problems_of(frontier) == []
    many = len(names)
    assert frontier.counts() == Counts(accepted=many, pending=many, seen=many)
    assert frontier.run.note("fingerprints") == (b"new" if is_changed else None)
    assert sum(1 for _ in journal_of(frontier).pending()) == len(names)
    expected = [f"new {name}" for name in names] if is_changed else names
    assert all(seen(frontier, *expected))
    frontier.close()
    outcome = change(disk, {name: f"new {name}" for name in names})
    assert outcome == Refingerprinted(pending=len(names), changed=0 if is_changed else len(names))
    frontier = disk.open()
    assert sorted(work_off(frontier)) == [f"new {name}" for name in names]
    frontier.close()


# The command

SETTINGS = """
SPIDER_MODULES = ["spiders"]
ADDONS = {"scrapy_altsched.Addon": 500}
"""
SPIDERS = """
from scrapy import Spider

class Shop(Spider):
    name = "spider"
    url_rules = [{"include": "shop.example", "ignore_params": "sid"}]

    def __init__(self, needed, **arguments):
        super().__init__(**arguments)
"""
RULES = [{"include": "shop.example", "ignore_params": "sid"}]


class Callbacks(Spider):
    def gone(self, response: Any) -> None:
        pass


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, **{"settings.py": SETTINGS, "spiders.py": SPIDERS})


def make_job(project: Path) -> None:
    """A job without rules: two pages pending under three URLs, one done, one not to be restored."""
    crawl = StandIn({**OURS, "JOBDIR": str(project / "job")}, Callbacks)
    crawl.scheduler.enqueue_request(Request("http://shop.example/done?sid=1"))
    request = crawl.next()
    assert request is not None
    crawl.engine.end(request)
    for url in ("http://shop.example/1?sid=1", "http://shop.example/1?sid=2"):
        crawl.scheduler.enqueue_request(Request(url))
    crawl.scheduler.enqueue_request(Request("http://shop.example/2?sid=1"))
    crawl.scheduler.enqueue_request(
        Request("http://shop.example/3?sid=1", callback=crawl.spider.gone)  # type: ignore[attr-defined]
    )
    crawl.scheduler.close("shutdown")


def resume(project: Path, caplog: pytest.LogCaptureFixture) -> tuple[list[str], int]:
    """URLs that a resumed crawl with the rules gets, and how many it has filtered."""
    caplog.clear()
    values = {"JOBDIR": str(project / "job"), "ALTSCHED_URL_RULES": RULES}
    crawl = StandIn({**OURS, **values}, Callbacks)
    for path in "12":
        crawl.scheduler.enqueue_request(Request(f"http://shop.example/{path}?sid=3"))
    urls = []
    while (request := crawl.next()) is not None:
        urls.append(request.url)
        crawl.engine.end(request)
    crawl.scheduler.close("finished")
    return sorted(urls), crawl.stat("dupefilter/filtered")


def test_the_command_makes_a_job_go_on_with_other_rules(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_job(project)
    run = altsched("refingerprint", "job", "-a", "needed=x", cwd=project)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        "3 requests have another fingerprint now, of 4 pending, 0 delayed, 0 dead and 0 failed.",
        "1 request was removed: the same page as another that is still to be crawled.",
        "1 request cannot be restored, and keeps its fingerprint.",
        (
            "1 request was done before: only the fingerprints are stored, and stay. A page that has"
            " another fingerprint now is crawled again if it is found again."
        ),
    ]
    urls, filtered = resume(project, caplog)
    assert urls == [
        "http://shop.example/1?sid=2",
        "http://shop.example/2?sid=1",
        "http://shop.example/3?sid=1",
    ]
    assert filtered == 2
    assert "other URL rules" not in caplog.text


def test_without_the_command_pages_come_twice_and_a_warning_says_why(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_job(project)
    urls, filtered = resume(project, caplog)
    assert len(urls) == 6
    assert not filtered
    assert "other URL rules" in caplog.text


def test_the_fingerprints_are_those_of_the_filter_in_use(project: Path) -> None:
    make_job(project)
    # Another package's filter has its own seen set; no rule is applied to what is in the store.
    name = "scrapy.dupefilters.RFPDupeFilter"
    run = altsched(
        "refingerprint", "job", "-a", "needed=x", "-s", f"DUPEFILTER_CLASS={name}", cwd=project
    )
    assert run.returncode == 0
    assert "0 requests have another fingerprint now" in run.stdout
    journal = Journal(DiskKind(project).path, OWNER)
    assert journal.has_seen(scrapy_fingerprint(Request("http://shop.example/1?sid=1")))
    journal.close()


def test_a_job_that_a_crawl_holds_is_left_alone(project: Path) -> None:
    make_job(project)
    dupefilter = DupeFilter(str(project / "job"))
    crawl = StandIn({**OURS, "JOBDIR": str(project / "job")})
    run = altsched("refingerprint", "job", "-a", "needed=x", cwd=project)
    assert run.returncode == 1
    assert "is in use by a running crawl" in run.stderr
    assert "Traceback" not in run.stderr
    crawl.scheduler.close("shutdown")
    dupefilter.close("finished")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 1, "nothing holds no job of scrapy_altsched"),
        ([], 2, "the following arguments are required: JOBDIR"),
        (["job", "-a", "needed"], 2, "-a takes NAME=VALUE, not 'needed'"),
        (["job"], 2, "the spider 'spider' cannot be created (TypeError: Shop.__init__()"),
        (["job", "-a", "needed=x", "-s", "ALTSCHED_URL_RULES=no.toml"], 1, "no.toml"),
    ],
)
def test_a_wrong_call_is_refused_in_one_sentence(
    project: Path, arguments: list[str], code: int, message: str
) -> None:
    make_job(project)
    run = altsched("refingerprint", *arguments, cwd=project)
    assert run.returncode == code
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_ids_of_slots_are_not_used_twice(disk: DiskKind) -> None:
    prefixes: set[bytes] = set()
    for round_ in itertools.count():
        frontier = disk.open()
        add(frontier, page(f"{round_}", "x"))
        frontier.commit()
        prefixes |= {key[:8] for key, _ in journal_of(frontier).pending()}
        frontier.close()
        if round_ == 3:
            break
        change(disk, lambda payload, number=round_: b"%d %b" % (number, payload))  # type: ignore[misc]
    assert len(prefixes) == 4
