"""A whole crawl of the example site by a real Scrapy, over HTTP on loopback."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from ..contenders import Contender
from ..engine import Clock
from . import Case, Metric, Outcome, Place
from .stream import RECORDINGS, ROOT

METRICS = (
    Metric("seconds", "s in all", is_main=True, digits=2),
    Metric("processor", "s of processor time", digits=2),
    Metric("scheduler", "% in the scheduler's calls"),
)
CONTENDERS = ("stock-disk", "altsched-disk")
WATCHED = "python-docs, watched"
PROJECT = ROOT / "example_project"


def cases(scale: float, _: Any) -> list[Case]:
    """The first *scale* of the recorded pages."""
    return [
        Case("python-docs", {"scale": scale}, CONTENDERS),
        Case(WATCHED, {"scale": scale, "is_watched": True}, CONTENDERS[1:]),
    ]


def run(contender: Contender, place: Place, scale: float, is_watched: bool = False) -> Outcome:
    """Crawl the site from its first page to the end, with a feed and a log as by default."""
    recording = _recording(place.directory, scale)
    clock = Clock()
    settings = _settings(contender, place, clock)
    with _site(recording) as url:
        process = CrawlerProcess(settings, install_root_handler=True)
        crawler = process.create_crawler("docs")
        process.crawl(crawler, url=url)
        with _watched(crawler, settings["JOBDIR"]) if is_watched else nullcontext():
            start, start_processor = perf_counter(), time.process_time()
            process.start()
            seconds, processor = perf_counter() - start, time.process_time() - start_processor
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    names = ("downloader/response_status_count/200", "item_scraped_count", "dupefilter/filtered")
    work = ", ".join(f"{name} {stats.get(name, 0)}" for name in (*names, "finish_reason"))
    figures = {
        "seconds": seconds,
        "processor": processor,
        "scheduler": clock.total / seconds * 100,
    }
    return Outcome(figures, {"all": work})


def _recording(directory: Path, scale: float) -> Path:
    with gzip.open(RECORDINGS["python-docs"], "rb") as source:
        lines = source.readlines()
    path = directory / "recording.jsonl.gz"
    with gzip.open(path, "wb", 1) as target:
        target.writelines(lines[: max(1, int(len(lines) * scale))])
    return path


@contextmanager
def _site(recording: Path) -> Iterator[str]:
    """The site, in its own process; the URL of its first page."""
    process = subprocess.Popen(
        [sys.executable, "-m", "example_project.site", "--data", str(recording)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _watched(crawler: Crawler, job: str) -> Iterator[None]:
    """Have ``status --watch``, at a terminal, and ``report --follow`` run from the start on."""
    altsched = [sys.executable, "-m", "scrapy", "altsched"]
    at_terminal = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]
    commands = [
        [*at_terminal, *altsched, "status", job, "--watch"],
        [*altsched, "report", job, "--follow", "-o", str(Path(job).with_name("report.html"))],
    ]
    watching: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        watching.extend(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT)
            for command in commands
        )

    crawler.signals.connect(start, signals.spider_opened)
    try:
        yield
        if any(process.poll() not in (None, 0) for process in watching):
            raise RuntimeError("what watches the crawl has failed")
    finally:
        for process in watching:
            process.terminate()
            process.wait()


def _settings(contender: Contender, place: Place, clock: Clock) -> Settings:
    sys.path.insert(0, str(PROJECT))
    settings = Settings()
    settings.setmodule("example_project.settings", priority="project")
    chosen = {"SCHEDULER": settings["SCHEDULER"], **place.settings(contender)}
    chosen["SCHEDULER"] = _timed(load_object(chosen["SCHEDULER"]), clock)
    settings.setdict(chosen, priority="cmdline")
    settings.set("LOG_FILE", str(place.directory / "log"), priority="cmdline")
    items = place.directory / "items.jsonl"
    settings.set("FEEDS", {str(items): {"format": "jsonlines"}}, priority="cmdline")
    return settings


def _timed(scheduler_class: type, clock: Clock) -> type:
    """A scheduler whose calls are timed; that itself takes less than 1 us a call."""

    class Timed(scheduler_class):  # type: ignore[misc]
        def enqueue_request(self, request: Request) -> bool:
            start = perf_counter()
            accepted: bool = super().enqueue_request(request)
            clock.enqueueing += perf_counter() - start
            return accepted

        def next_request(self) -> Request | None:
            start = perf_counter()
            request: Request | None = super().next_request()
            clock.taking += perf_counter() - start
            return request

    return Timed
