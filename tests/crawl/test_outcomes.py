"""How a job with dead letters ends, what is said of it, and how it is brought to its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scrapy import Request, Spider
from scrapy.http import Response

from scrapy_altsched.crawl.outcome import Outcome, judge
from scrapy_altsched.crawl.traffic import HOPELESS
from scrapy_altsched.frontier import Counts, Entry
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import accept_loss

from ..crawls import KILLED, Crawl, altsched, run_scrapy
from ..engines import OURS, StandIn
from ..sites import Page, Site

SPIDER = """
import scrapy

class Shop(scrapy.Spider):
    name = "shop"
    custom_settings = {"ADDONS": {"scrapy_altsched.Addon": 500}, "LOG_LEVEL": "INFO"}

    async def start(self):
        yield scrapy.Request(self.url)

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a", callback=self.parse_product)

    def parse_product(self, response):
        yield {"url": response.url}
"""


class Runs:
    """Runs of a spider's file whose text changes between them."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.file = directory / "shop.py"
        self.file.write_text(SPIDER)
        self.jobdir = directory / "job"
        self.items = directory / "items.jsonl"
        self.url = url
        self.log = ""

    def rename(self, old: str, new: str) -> None:
        self.file.write_text(self.file.read_text().replace(old, new))

    def run(self, *arguments: str, code: int = 0) -> None:
        options = ("-O", "items.jsonl", "-a", f"url={self.url}", "-s", "JOBDIR=job", *arguments)
        run = run_scrapy("runspider", "shop.py", *options, cwd=self.directory)
        assert run.returncode == code, run.stderr
        self.log = run.stderr

    def lines(self, level: str) -> list[str]:
        return [line for line in self.log.splitlines() if f" {level}: " in line]

    def stat(self, name: str) -> str | None:
        found = re.search(rf"'{name}': (.+?)[,}}]", self.log)
        return None if found is None else found[1]

    def requeue(self) -> str:
        return altsched("requeue", self.jobdir, "--all").stdout


def linked_from_one(products: int) -> dict[str, Page]:
    paths = [f"/{number}" for number in range(products)]
    return {"/": Page(paths), **{path: Page() for path in paths}}


def stopped_after_one_page(directory: Path, site: Site) -> Runs:
    shop = Runs(directory, f"{site.url}/")
    shop.run("-s", "CLOSESPIDER_PAGECOUNT=1", "-s", "CONCURRENT_REQUESTS=1")
    return shop


def test_a_renamed_callback_leaves_the_job_unfinished_until_its_requests_are_requeued(
    tmp_path: Path,
) -> None:
    with Site(linked_from_one(40)) as site:
        shop = Runs(tmp_path, f"{site.url}/")
        shop.run("-s", "CLOSESPIDER_PAGECOUNT=8", "-s", "CONCURRENT_REQUESTS=4")
        assert "is not finished" in shop.log
        before = shop.items.read_text()
        done = site.hits.total()
        shop.rename("parse_product", "parse_item")
        for _ in range(2):
            shop.run()
            # One line at the first one, one line at the end.
            assert len(shop.lines("WARNING")) <= 2
            [error] = shop.lines("ERROR")
            assert f"is not finished: {done} requests done, 0 pending" in error
            assert f"{41 - done} of the dead letters could not be restored" in error
            assert error.count(f"{site.url}/") == 3 + 1  # examples, and the command
            assert "parse_product" in error
            assert "scrapy altsched requeue" in error
            assert "Closing spider (finished)" in shop.log
            assert shop.stat("altsched/outcome") == "'blocked'"
            assert shop.stat("altsched/unrestorable") == str(41 - done)
            assert shop.items.read_text() == before
            check = altsched("check", shop.jobdir)
            assert check.returncode == 1
            assert "good" not in check.stdout
            assert f"requeue {shop.jobdir} --all" in check.stdout
        assert site.hits.total() == done
        shop.rename("parse_item", "parse_product")
        shop.requeue()
        shop.run()
        assert shop.lines("ERROR") == []
        assert "is finished: 41 requests done, none pending, 0 dead" in shop.log
        assert shop.stat("altsched/outcome") == "'finished'"
        assert set(site.hits.values()) == {1}
        assert len(shop.items.read_text().splitlines()) == 41
        assert altsched("check", shop.jobdir).returncode == 0


def test_a_crawl_none_of_whose_requests_can_be_restored_stops_before_its_queue_is_empty(
    tmp_path: Path,
) -> None:
    with Site(linked_from_one(3 * HOPELESS)) as site:
        shop = stopped_after_one_page(tmp_path, site)
        left = 3 * HOPELESS + 1 - site.hits.total()
        shop.rename("parse_product", "parse_item")
        shop.run()
        assert "Spider closed (restore_failed)" in shop.log
        assert f"none of the first {HOPELESS} requests could be restored" in shop.log
        assert f"{left - HOPELESS} pending, {HOPELESS} dead" in shop.lines("ERROR")[-1]
        assert f"{HOPELESS} of the dead letters could not be restored" in shop.lines("ERROR")[-1]
        shop.rename("parse_item", "parse_product")
        assert f"{HOPELESS} request" in shop.requeue()
        shop.run()
        assert f"is finished: {3 * HOPELESS + 1} requests done, none pending, 0 dead" in shop.log
        assert set(site.hits.values()) == {1}
        assert len(shop.items.read_text().splitlines()) == 3 * HOPELESS + 1


ENDLESS_START = """
    async def start(self):
        import asyncio
        self.crawler.signals.connect(self.linger, scrapy.signals.spider_closed)
        yield scrapy.Request(self.url)
        for number in range(1000):
            await asyncio.sleep(0.01)
            yield scrapy.Request(f"{self.url}{number}/")

    async def linger(self):
        import asyncio
        await asyncio.sleep(0.5)
"""


def test_a_crawl_none_of_whose_requests_can_be_restored_stops_while_its_start_goes_on(
    tmp_path: Path,
) -> None:
    with Site(linked_from_one(3 * HOPELESS)) as site:
        shop = stopped_after_one_page(tmp_path, site)
        shop.rename("parse_product", "parse_item")
        shop.rename("\n    def parse(self", f"{ENDLESS_START}\n    def parse(self")
        shop.run()
        assert "Spider closed (restore_failed)" in shop.log
        assert "Traceback" not in shop.log
        assert "AssertionError" not in shop.log


@pytest.mark.parametrize("restorable", [0, 1])
def test_a_crawl_goes_on_as_long_as_anything_was_restored(tmp_path: Path, restorable: int) -> None:
    class Before(Spider):
        def parse_gone(self, response: Response) -> None:
            pass

    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    before = StandIn(settings, Before)
    for number in range(restorable):
        before.scheduler.enqueue_request(Request(f"http://site.test/{number}", priority=1))
    for number in range(HOPELESS + 20):
        callback = before.spider.parse_gone  # type: ignore[attr-defined]
        before.scheduler.enqueue_request(
            Request(f"http://site.test/gone/{number}", callback=callback)
        )
    before.scheduler.close("shutdown")
    after = StandIn(settings)
    assert len(list(iter(after.next, None))) == restorable
    assert after.next() is None
    counts = after.scheduler._session.frontier.counts()
    if restorable:
        assert (counts.pending, counts.dead, after.engine.closed_with) == (0, HOPELESS + 20, None)
    else:
        assert (counts.pending, counts.dead) == (20, HOPELESS)
        assert after.engine.closed_with == "restore_failed"
    after.scheduler.close("shutdown")


def test_what_could_not_be_restored_can_be_given_up(tmp_path: Path) -> None:
    settings = {**OURS, "JOBDIR": str(tmp_path / "job")}
    first = StandIn(settings)
    first.scheduler.enqueue_request(Request("http://site.test/done"))
    first.scheduler.close("shutdown")
    frontier = open_frontier(tmp_path / "job", "spider")
    frontier.add(Entry(b"damaged", "site.test", payload=b"not a request"))
    frontier.close()
    for _ in range(2):
        run = StandIn(settings)
        for request in iter(run.next, None):
            run.engine.end(request)
        run.scheduler.close("finished")
        assert run.stat("altsched/outcome") == "blocked"
    assert accept_loss(tmp_path / "job", "spider") == 1
    last = StandIn(settings)
    assert last.next() is None
    last.scheduler.close("finished")
    assert last.stat("altsched/outcome") == "finished_with_dead_letters"
    assert last.stat("altsched/unrestorable") is None


def test_a_dead_start_page_with_nothing_done_is_no_finished_job(tmp_path: Path) -> None:
    with Site({"/0": Page(["/1"]), "/1": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", poison="/0")
        feed = ("-O", str(crawl.items))
        while crawl.run(feed, ALTSCHED_MAX_CRASHES=1) == KILLED:
            pass
        for _ in range(2):
            errors = [line for line in crawl.log.splitlines() if " ERROR: " in line]
            assert len(errors) == 1
            assert "is not finished: 0 requests done, 0 pending, 1 dead" in errors[0]
            assert (
                f"Nothing was crawled: the first requests are dead, for example {site.url}/0: "
                in (errors[0])
            )
            assert f"scrapy altsched requeue {crawl.jobdir} --all" in errors[0]
            assert "This run crawled nothing" not in crawl.log
            assert crawl.stat("altsched/outcome") == "blocked"
            check = altsched("check", crawl.jobdir)
            assert check.returncode == 1
            assert "Nothing was crawled" in check.stdout
            hits = site.hits.copy()
            assert crawl.run(feed) == 0
            assert site.hits == hits
        assert altsched("requeue", crawl.jobdir, "--all").returncode == 0
        crawl.arguments["poison"] = "none"
        assert crawl.run(feed) == 0
        assert "is finished: 2 requests done, none pending, 0 dead" in crawl.log
        assert crawl.item_paths() == ["/0", "/1"]


def test_a_dead_page_among_others_leaves_the_job_finished_with_a_warning(tmp_path: Path) -> None:
    with Site({"/0": Page(["/1"]), "/1": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", poison="/1")
        while crawl.run(ALTSCHED_MAX_CRASHES=1) == KILLED:
            pass
        assert re.search(
            r" WARNING: .* is finished: 1 requests? done, none pending, 1 dead\. .*requeue",
            crawl.log,
        )
        assert crawl.stat("altsched/outcome") == "finished_with_dead_letters"
        assert altsched("check", crawl.jobdir).returncode == 0


@pytest.mark.parametrize(
    ("counts", "unrestorable", "complete", "outcome"),
    [
        (Counts(done=3), 0, True, Outcome.FINISHED),
        (Counts(), 0, True, Outcome.FINISHED),
        (Counts(done=3), 0, False, Outcome.UNFINISHED),
        (Counts(done=3, pending=1), 0, True, Outcome.UNFINISHED),
        (Counts(done=3, leased=1), 0, True, Outcome.UNFINISHED),
        (Counts(done=3, dead=1), 0, True, Outcome.DEAD_LETTERS),
        (Counts(done=3, dead=2), 1, True, Outcome.BLOCKED),
        (Counts(dead=2), 0, True, Outcome.BLOCKED),
        (Counts(dead=2), 0, False, Outcome.UNFINISHED),
        (Counts(dead=2, pending=1), 2, True, Outcome.UNFINISHED),
    ],
)
def test_the_table_of_outcomes(
    counts: Counts, unrestorable: int, complete: bool, outcome: Outcome
) -> None:
    assert judge(counts, unrestorable, complete=complete) is outcome
    assert outcome.is_finished == (outcome.value.startswith("finished"))
