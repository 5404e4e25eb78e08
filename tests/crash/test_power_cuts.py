"""Power cuts, and syncs that fail once: what was announced as durable is there afterwards."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import pytest
from scrapy import Request, Spider
from scrapy.extensions.feedexport import FeedExporter

from scrapy_altsched.errors import StoreDamagedError
from scrapy_altsched.feeds import job_feeds
from scrapy_altsched.frontier.store.engines import Choice, engine_of, salvage
from scrapy_altsched.maintenance.repair import repair

from ..crawls import run_python
from ..engines import StandIn
from ..frontiers import problems_of
from ..power_cuts import ANNOUNCED, Disk, kind_of, load
from ..sites import Site, random_graph
from ..stores import BY_ENGINE

ROOT = Path(__file__).parents[2]
#: Commits of few changes, so that there are many.
OFTEN = {"ALTSCHED_COMMIT_INTERVAL": 0.01, "ALTSCHED_COMMIT_EVERY": 20}
#: What the log says of feeds that may lack rows.
SIGNS = ("Items of pages that are done may be missing", "Check whether its last row is whole")
GRAPH = random_graph(120, 2, 1)


class Pages(Spider):
    """As the tests' project names it."""

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Pages:
        return super().from_crawler(crawler, *args, **{**kwargs, "name": "pages"})


class Recorded:
    """A crawl that was stopped, resumed and ended, and all that it did to its files."""

    def __init__(self, directory: Path, engine: Choice, *, sync: bool, fault: str = "") -> None:
        self.place = directory / "disk"
        self.place.mkdir()
        self.sync = sync
        recording = directory / "recording"
        self.logs = ""
        with Site(GRAPH) as site:
            self.url = site.url
            for more in ({"CLOSESPIDER_ITEMCOUNT": 60}, {}):
                settings = {
                    **OFTEN,
                    "JOBDIR": self.place / "job",
                    "ALTSCHED_STORE": engine,
                    "ANNOUNCE": self.place / ANNOUNCED,
                    "ALTSCHED_SYNC": sync,
                    # Where a sync that failed leaves nothing to be written again.
                    "ALTSCHED_COMMIT_TIMEOUT": 2,
                    **more,
                }
                command = ["tests.power_cuts", self.place, recording, fault]
                command += ["crawl", "pages", "-a", f"url={site.url}/0"]
                command += ["-o", self.place / "items.jsonl"]
                for name, value in settings.items():
                    command += ["-s", f"{name}={value}"]
                run = run_python("-m", *command)
                assert run.returncode == 0, run.stderr
                self.logs += run.stderr
        self.events = list(load(recording))

    def moments(self, rng: random.Random, count: int) -> list[int]:
        """When the power fails: anywhere, right after an announcement, and after the first row."""
        marks = [number for number, event in enumerate(self.events) if event.what == "mark"]
        first = next(
            number
            for number, event in enumerate(self.events)
            if event.what == "write" and kind_of(event.path) == "feed"
        )
        return [
            rng.choice(marks) + 1 + rng.randrange(3)
            if rng.random() < 0.4
            else rng.randrange(len(self.events) + 1)
            for _ in range(count)
        ] + [first + 1] * 5

    def cut(self, moment: int, rng: random.Random) -> None:
        """Leave in the directory what a power cut at *moment* leaves."""
        shutil.rmtree(self.place)
        self.place.mkdir()
        Disk(self.place, self.events[:moment]).write(rng)
        store = self.place / "job" / "frontier"
        if store.exists() and engine_of(store) == "sqlite" and rng.random() < 0.5:
            # What was in shared memory is on the disk by chance.
            (store / "store.sqlite-shm").write_bytes(rng.randbytes(32768))

    def announced(self, moment: int) -> int:
        """The last commit that must not be lost."""
        last = 0
        safe = 0
        for event in self.events[:moment]:
            if event.what == "mark":
                text = event.data.decode().strip()
                if text == "ended":
                    safe = last
                else:
                    last = int(text)
        return last if self.sync else safe


class Resumed:
    """The crawl is resumed, with Scrapy's exporter and our scheduler, to its end."""

    def __init__(self, recorded: Recorded) -> None:
        place = recorded.place
        self.stand_in = StandIn(
            {
                "ADDONS": {"scrapy_altsched.Addon": 500},
                "JOBDIR": str(place / "job"),
                "FEEDS": {str(place / "items.jsonl"): {"format": "jsonlines"}},
            },
            Pages,
        )
        scheduler = self.stand_in.scheduler
        engine: Any = self.stand_in.engine
        engine._slot.scheduler = scheduler
        self.frontier = scheduler._session.frontier
        #: As it was opened; the opening is a commit of its own.
        self.commit = self.frontier.run.commit_number - 1
        self.before = self.frontier.counts()
        (self.exporter,) = (
            item
            for item in self.stand_in.crawler.extensions.middlewares
            if isinstance(item, FeedExporter)
        )
        self.exporter.open_spider(self.stand_in.spider)
        self.url = recorded.url
        self.fetched: set[str] = set()

    def run(self) -> None:
        stand_in = self.stand_in
        scheduler = stand_in.scheduler
        scheduler.enqueue_request(Request(f"{self.url}/0"))
        while (request := stand_in.next()) is not None:
            path = urlsplit(request.url).path
            self.fetched.add(path)
            for link in GRAPH[path].links:
                scheduler.enqueue_request(Request(f"{self.url}{link}"))
            self.exporter.item_scraped({"url": request.url}, stand_in.spider)
            stand_in.engine.end(request)
        assert scheduler.checkpoint()
        assert problems_of(self.frontier) == []
        self.after = self.frontier.counts()
        scheduler.close("finished")
        for slot in self.exporter.slots:
            if slot.itemcount:
                slot.finish_exporting()
                slot.storage.store(slot.file)


def rows_of(path: Path) -> tuple[list[str], int]:
    """Paths of the pages with a row, and how many rows are torn."""
    rows, torn = [], 0
    content = path.read_bytes() if path.exists() else b""
    for line in content.split(b"\n")[:-1]:
        try:
            rows.append(urlsplit(json.loads(line)["url"]).path)
        except ValueError:
            torn += 1
    return rows, torn


def repaired_commit(jobdir: Path) -> int:
    """Repair a job that is refused; the last commit of which nothing is missing in it."""
    with TemporaryDirectory() as links:
        source = salvage(jobdir / "frontier", Path(links), lambda _: True)
        commit = int.from_bytes(source.meta()[b"commit"], "big")
        source.close()
    return 0 if repair(jobdir, "pages", lambda _: True).damage else commit


def resume(recorded: Recorded, moment: int, caplog: pytest.LogCaptureFixture) -> str:
    """Resume what is there to its end; which column of the table it belongs to."""
    caplog.clear()
    announced, last = recorded.announced(moment), recorded.announced(len(recorded.events))
    outcome = "opened"
    try:
        resumed = Resumed(recorded)
    except StoreDamagedError as error:
        if not announced:
            return "damaged"
        if repaired_commit(recorded.place / "job") < announced:
            return "lost"
        print(f"repaired: cut at {moment}: {error}")
        outcome = "repaired"
        resumed = Resumed(recorded)
    if resumed.commit < announced:
        resumed.stand_in.scheduler.close("shutdown")
        return "lost"
    resumed.run()
    assert (resumed.after.accepted, resumed.after.done) == (len(GRAPH), len(GRAPH))
    rows, torn = rows_of(recorded.place / "items.jsonl")
    missing = set(GRAPH) - set(rows)
    assert not missing & resumed.fetched
    if not any(sign in caplog.text for sign in SIGNS):
        return "torn" if missing or torn else outcome
    return "lost" if recorded.sync or announced == last else "warned"


COLUMNS = ("opened", "repaired", "warned", "damaged", "lost", "torn")
LINE = "{:40} {:>6}" + len(COLUMNS) * " {:>8}"


def cut_often(
    recorded: Recorded,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    cuts: int,
) -> Counter[str]:
    """Cut the power at moments chosen by *seed*, and resume what is left."""
    caplog.set_level(logging.INFO, "scrapy_altsched")
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    # The machine was started again.
    monkeypatch.setattr(job_feeds, "boot_id", lambda: "another boot")
    for moment in recorded.moments(rng, cuts):
        try:
            recorded.cut(moment, rng)
            outcome = resume(recorded, moment, caplog)
        except Exception as error:
            raise AssertionError(f"cut at {moment}, seed {seed}") from error
        found[outcome] += 1
        if outcome in ("lost", "torn"):
            print(f"{outcome}: cut at {moment}, seed {seed}\n{caplog.text}")
    return found


def print_table(rows: dict[str, Counter[str]]) -> None:
    print(LINE.format("", "cuts", *COLUMNS))
    for name, found in rows.items():
        print(LINE.format(name, found.total(), *(found[column] for column in COLUMNS)))


def assert_nothing_was_lost(found: Counter[str]) -> None:
    assert found["opened"]
    assert not found["lost"]
    assert not found["torn"]


@pytest.mark.parametrize(
    ("seed", "cuts"), [(1, 20), *(pytest.param(n, 60, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
@pytest.mark.parametrize("sync", [True, False])
@BY_ENGINE
@pytest.mark.timeout(600)
def test_a_power_cut_loses_nothing_that_was_announced(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    engine: Choice,
    sync: bool,
    seed: int,
    cuts: int,
) -> None:
    found = cut_often(Recorded(tmp_path, engine, sync=sync), caplog, monkeypatch, seed, cuts)
    print_table({f"{engine}, ALTSCHED_SYNC={sync}": found})
    assert_nothing_was_lost(found)
    if sync:
        assert not found["warned"]
        assert not found["damaged"]


#: Kinds of files, of which one sync is made to fail in each run once a commit was announced.
FORCED = {
    "rocksdb": (
        [
            *("WAL", "feed", "SST", "MANIFEST", "CURRENT", "OPTIONS", "partial"),
            *("directory frontier", "directory job", "directory disk"),
        ],
        [pytest.mark.rocksdb],
    ),
    "sqlite": (["WAL", "tables", "directory frontier"], []),
}
OFTEN_RUN = ("WAL", "feed", "tables")
SLOW = [pytest.mark.slow]
#: Those that nothing forces to the disk, as an older state of them is good enough.
UNFORCED = ["leases", "altsched.commit", "altsched.lock", "altsched.status"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        pytest.param(engine, kind, marks=[*marks, *([] if kind in OFTEN_RUN else SLOW)])
        for engine, (kinds, marks) in FORCED.items()
        for kind in kinds
    ],
)
def test_what_is_announced_after_a_sync_that_failed_survives_a_power_cut(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    engine: Choice,
    fault: str,
) -> None:
    recorded = Recorded(tmp_path, engine, sync=True, fault=fault)
    failed = sum(event.what == "forget" for event in recorded.events)
    assert failed
    found = cut_often(recorded, caplog, monkeypatch, 1, 20)
    said = "Input/output error" in recorded.logs or "IO error" in recorded.logs
    forced = {kind_of(event.path) for event in recorded.events if event.what == "sync"}
    assert not forced.intersection(UNFORCED)
    print_table({f"{engine}, {fault}: {failed} failed, {'said' if said else 'not said'}": found})
    assert_nothing_was_lost(found)
