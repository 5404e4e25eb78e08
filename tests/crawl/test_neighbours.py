"""Scrapy's other parts, with our classes and with Scrapy's own: the same crawl must come of it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ..crawls import (
    ONE_BY_ONE,
    PYTHONPATH,
    QUICK,
    STOCK,
    Crawl,
    listing,
    run_python,
    run_scrapy,
)
from ..sites import Page, Site, _Handler, random_graph

FIFO = {
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
}
#: Stats that differ between two equal crawls, and those that only one of the two has.
_OWN_STATS = re.compile(
    r"altsched/|feedexport/|log_count/|memusage/|elapsed_|start_time|finish_time"
    r"|\w+_per_minute|downloader/\w+_bytes"
)


@dataclass
class File(Page):
    """A page of any content; ``SITE`` in it is the site's URL, ``OTHER`` one of another host."""

    content: bytes = b""
    kind: str = "text/plain"


class Library(Site):
    """A site of files."""

    def __enter__(self) -> Library:
        super().__enter__()
        self._server.RequestHandlerClass = _FileHandler
        return self


class _FileHandler(_Handler):
    def do_GET(self) -> None:  # noqa: N802  (http.server's name)
        site: Library = self.server.site  # type: ignore[attr-defined]
        page = site.answer(self.path)
        content = page.content if isinstance(page, File) else b""
        for name, url in (
            (b"SITE", site.url),
            (b"OTHER", site.url.replace("127.0.0.1", "localhost")),
        ):
            content = content.replace(name, url.encode())
        if self.path.endswith(".gz"):
            content = gzip.compress(content)
        self.send_response(page.status)
        self.send_header("Content-Type", getattr(page, "kind", "text/plain"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def html(*links: str) -> File:
    body = "".join(f'<a href="{link}">x</a>' for link in links)
    return File(content=f"<html><body>{body}</body></html>".encode(), kind="text/html")


@dataclass
class Outcome:
    """What came of a crawl, in one run or more."""

    crawl: Crawl
    hits: Counter[str]
    order: list[str]
    items: list[str] = field(default_factory=list)
    stats: list[dict[str, str]] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)


def stats_of(log: str) -> dict[str, str]:
    """The stats at the end of a crawl, but for those that may differ between equal ones."""
    _, dumped, dump = log.partition("Dumping Scrapy stats:")
    assert dumped, "the crawl did not come to its end"
    found = dict(re.findall(r"^[ {]'(.+?)': (.+?)[,}]$", dump, re.MULTILINE))
    # A resumed job's first request, which Scrapy's own filter drops, is skipped by ours.
    if skipped := int(found.get("altsched/start/skipped", 0)):
        found["dupefilter/filtered"] = str(int(found.get("dupefilter/filtered", 0)) + skipped)
    return {name: value for name, value in found.items() if not _OWN_STATS.match(name)}


def run_with(
    classes: dict[str, Any],
    directory: Path,
    spider: str,
    site: Site,
    *,
    start: str = "/0",
    runs: tuple[dict[str, Any], ...] = ({},),
    arguments: dict[str, Any] | None = None,
    **settings: Any,
) -> Outcome:
    """Crawl *site*, in one run after the other.

    :param classes: settings that choose scheduler and filter; none: ours.
    :param start: the path that the spider starts with.
    :param runs: for each run the settings that it alone has.
    :param settings: ``DIRECTORY`` in them stands for one that each job has for itself.
    """
    directory.mkdir()
    with site:
        crawl = Crawl(directory, spider, site.url + start, **(arguments or {}))
        outcome = Outcome(crawl, site.hits, site.order)
        for run in runs:
            given = {**settings, **run, **classes}
            for name, value in given.items():
                given[name] = str(value).replace("DIRECTORY", str(directory))
            assert crawl.run(**given) == 0
            # Else this could well be a comparison of Scrapy's own classes with themselves.
            assert (crawl.stat("altsched/done") is None) is bool(classes)
            outcome.stats.append(stats_of(crawl.log))
            outcome.logs.append(crawl.log)
    # Files are stored under a hash of their URL, in which the port is.
    items = re.sub("[0-9a-f]{40}", "HASH", crawl.items.read_text().replace(site.url, ""))
    outcome.items = sorted(items.splitlines())
    return outcome


def pair(
    directory: Path,
    spider: str,
    pages: Any,
    kind: type[Site] = Site,
    *,
    stock: dict[str, Any] = STOCK,
    in_order: bool = False,
    **arguments: Any,
) -> tuple[Outcome, Outcome]:
    """Crawl with our classes and with Scrapy's own, with equal outcomes.

    :param stock: settings that choose Scrapy's own classes.
    :param in_order: fetch page by page, and compare the order as well.
    :param arguments: those of :func:`run_with`.
    """
    if in_order:
        arguments.update(ONE_BY_ONE)
    ours = run_with({}, directory / "ours", spider, kind(pages), **arguments)
    theirs = run_with(stock, directory / "stock", spider, kind(pages), **arguments)
    assert ours.hits == theirs.hits
    assert ours.items == theirs.items
    assert ours.stats == theirs.stats
    if in_order:
        assert ours.order == theirs.order
    return ours, theirs


def both(*arguments: Any, **settings: Any) -> Outcome:
    """What :func:`pair` comes to with our classes."""
    return pair(*arguments, **settings)[0]


def once(*paths: str) -> Counter[str]:
    return Counter(paths)


# Spiders


def test_a_crawl_spider_follows_its_rules(tmp_path: Path) -> None:
    pages = {
        "/0": Page(["/list/1", "/page/1", "/elsewhere"]),
        "/list/1": Page(["/list/2", "/page/1", "/page/2"]),
        "/list/2": Page(["/list/1", "/page/3"]),
        "/page/1": Page(["/page/4", "/elsewhere"]),
        "/page/2": Page(),
        "/page/3": Page(),
        "/page/4": Page(["/page/1"]),
        "/elsewhere": Page(),
    }
    outcome = both(tmp_path, "rules", pages, in_order=True)
    assert outcome.hits == once(*set(pages) - {"/elsewhere"})
    assert len(outcome.items) == 4
    assert "kind" in outcome.items[0]


def test_a_crawl_spiders_requests_are_resumed(tmp_path: Path) -> None:
    pages = {
        "/0": Page([f"/list/{number}" for number in range(10)]),
        **{f"/list/{number}": Page([f"/page/{number}"]) for number in range(10)},
        **{f"/page/{number}": Page() for number in range(10)},
    }
    runs = ({"CLOSESPIDER_PAGECOUNT": 8}, {})
    outcome = both(tmp_path, "rules", pages, runs=runs, in_order=True)
    assert outcome.hits == once(*pages)
    assert len(outcome.items) == 10


def test_a_sitemap_spider_reads_maps_of_every_kind(tmp_path: Path) -> None:
    def sitemap(outer: str, inner: str, *paths: str) -> bytes:
        entries = "".join(f"<{inner}><loc>SITE{path}</loc></{inner}>" for path in paths)
        schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
        return f'<?xml version="1.0"?><{outer} xmlns="{schema}">{entries}</{outer}>'.encode()

    index = sitemap("sitemapindex", "sitemap", "/maps/1.xml", "/maps/2.xml.gz", "/other.xml")
    files = {
        "/robots.txt": File(content=b"Sitemap: SITE/sitemap.xml\n"),
        "/sitemap.xml": File(content=index, kind="application/xml"),
        "/maps/1.xml": File(content=sitemap("urlset", "url", "/page/1", "/page/2", "/offer/1")),
        "/maps/2.xml.gz": File(
            content=sitemap("urlset", "url", "/page/2", "/page/3", "/ignored"),
            kind="application/x-gzip",
        ),
        "/page/1": html(),
        "/page/2": html(),
        "/page/3": html(),
        "/offer/1": html(),
    }
    outcome = both(tmp_path, "map", files, Library, start="/robots.txt", in_order=True)
    assert outcome.hits == once(*files)
    assert len(outcome.items) == 4


def test_an_idle_spider_can_be_given_more(tmp_path: Path) -> None:
    pages = {f"/{number}": Page() for number in range(6)}
    outcome = both(tmp_path, "refilled", pages, start="", in_order=True)
    assert outcome.order == [f"/{number}" for number in range(6)]


# Middlewares


def test_redirects_and_retries_come_in_their_turn(tmp_path: Path) -> None:
    def pages(path: str, before: int) -> Page:
        if path.startswith("/far"):
            return Page(status=302, location=f"/far/{len(path)}")
        answers = {
            "/0": Page(["/moved", "/flaky", "/far", "/broken", "/plain", "/self", "/target"]),
            "/moved": Page(status=301, location="/target"),
            "/self": Page(status=307, location="/self"),
            "/flaky": Page(["/behind"]) if before == 2 else Page(status=503),
            "/broken": Page(status=503),
        }
        return answers.get(path, Page())

    outcome = both(
        tmp_path,
        "pages",
        pages,
        in_order=True,
        RETRY_ENABLED=True,
        RETRY_TIMES=2,
        REDIRECT_MAX_TIMES=2,
    )
    assert outcome.hits == {
        **once("/0", "/moved", "/target", "/plain", "/behind", "/self"),
        **once("/far", "/far/4", "/far/6"),
        "/flaky": 3,
        "/broken": 3,
    }


def test_robots_txt_is_obeyed(tmp_path: Path) -> None:
    files = {
        "/robots.txt": File(content=b"User-agent: *\nDisallow: /private\n"),
        "/0": html("/1", "/private/1", "/private/2"),
        "/1": html("/private/3", "/0"),
        "/private/1": html("/2"),
    }
    outcome = both(tmp_path, "pages", files, Library, ROBOTSTXT_OBEY=True)
    assert outcome.hits == once("/robots.txt", "/0", "/1")
    assert outcome.stats[0]["robotstxt/forbidden"] == "3"


def test_other_hosts_are_left_out(tmp_path: Path) -> None:
    # Both names lead to one server: pages of the other host would be hit.
    files = {
        "/0": html("/1", "OTHER/a"),
        "/1": html("OTHER/b", "SITE/2"),
        "/2": html(),
        "/a": html(),
        "/b": html(),
    }
    outcome = both(tmp_path, "athome", files, Library)
    assert outcome.hits == once("/0", "/1", "/2")


def test_depth_is_limited(tmp_path: Path) -> None:
    chain = {f"/{number}": Page([f"/{number + 1}", "/0"]) for number in range(6)}
    outcome = both(tmp_path, "pages", chain, DEPTH_LIMIT=3)
    assert outcome.hits == once("/0", "/1", "/2", "/3")
    assert outcome.stats[0]["request_depth_max"] == "3"


@pytest.mark.parametrize("priority", [1, -1])
def test_depth_counts_in_the_order(tmp_path: Path, priority: int) -> None:
    graph = random_graph(40, 1, 11)
    outcome = both(tmp_path, "pages", graph, in_order=True, DEPTH_PRIORITY=priority, **FIFO)
    depths = depths_of(graph)
    walk = [depths[path] for path in outcome.order]
    assert (walk == sorted(walk)) is (priority == 1)


def depths_of(graph: dict[str, Page]) -> dict[str, int]:
    depths = {"/0": 0}
    queue = ["/0"]
    for path in queue:
        for link in graph[path].links:
            if link not in depths:
                depths[link] = depths[path] + 1
                queue.append(link)
    return depths


def test_cached_pages_are_not_fetched_again(tmp_path: Path) -> None:
    pages = {f"/{number}": Page() for number in range(5)}
    outcome = both(
        tmp_path,
        "starts",
        pages,
        start="",
        arguments={"count": 5},
        runs=({}, {}),
        HTTPCACHE_ENABLED=True,
        HTTPCACHE_DIR="DIRECTORY/cache",
    )
    assert outcome.hits == once(*pages)
    assert outcome.stats[1]["httpcache/hit"] == "5"
    assert len(outcome.items) == 10


# Extensions and pipelines


@pytest.mark.parametrize("what", ["ITEMCOUNT", "PAGECOUNT"])
def test_a_crawl_that_closes_at_a_count_goes_on_after_it(tmp_path: Path, what: str) -> None:
    graph = random_graph(30, 3, 12)
    runs = ({f"CLOSESPIDER_{what}": 7}, {})
    outcome = both(tmp_path, "pages", graph, runs=runs, in_order=True)
    assert outcome.hits == once(*graph)
    reasons = [stats["finish_reason"] for stats in outcome.stats]
    assert reasons == [f"'closespider_{what.lower()}'", "'finished'"]


def test_autothrottle_adjusts_the_delay(tmp_path: Path) -> None:
    graph = random_graph(20, 2, 13)
    outcome = both(
        tmp_path,
        "pages",
        graph,
        AUTOTHROTTLE_ENABLED=True,
        AUTOTHROTTLE_START_DELAY=0.05,
        AUTOTHROTTLE_DEBUG=True,
    )
    assert outcome.hits == once(*graph)
    assert outcome.logs[0].count("slot: 127.0.0.1 | conc:") == len(graph)


def test_the_files_of_an_item_are_stored(tmp_path: Path) -> None:
    content = {f"/{number}.bin": bytes([number]) * 9_000 for number in range(4)}
    files = {
        "/0": html("/1", "/0.bin", "/1.bin"),
        "/1": html("/0", "/1.bin", "/2.bin", "/3.bin", "/missing.bin"),
        **{path: File(content=data) for path, data in content.items()},
    }
    outcome = both(
        tmp_path,
        "files",
        files,
        Library,
        ITEM_PIPELINES='{"scrapy.pipelines.files.FilesPipeline": 1}',
        FILES_STORE="DIRECTORY/files",
    )
    assert outcome.hits == once(*files, "/missing.bin")
    for name in ("ours", "stock"):
        stored = [path.read_bytes() for path in (tmp_path / name / "files").glob("full/*")]
        assert sorted(stored) == sorted(content.values())
    files_of = [len(json.loads(item)["files"]) for item in outcome.items]
    assert sorted(files_of) == [2, 3]


def test_a_paused_crawl_is_committed_and_goes_on(tmp_path: Path) -> None:
    pages = {"/0": Page(["/1", "/2"]), "/1": Page(), "/2": Page(), "/late": Page()}
    outcome = both(
        tmp_path,
        "paused",
        pages,
        arguments={"after": 1},
        REPORT="committed",
        # What the first page leads to comes within the first interval, and is not committed then.
        ALTSCHED_COMMIT_INTERVAL=0.4,
    )
    assert outcome.hits == once(*pages)
    lines = outcome.crawl.output.splitlines()
    assert "committed" in lines[lines.index("paused") : lines.index("unpaused")]


# Several spiders in one process

SEVERAL = {"pages": 14, "async": 15, "athome": 16}


class Several:
    """Crawls of several spiders in one process: each has a site and a JOBDIR of its own."""

    def __init__(self, directory: Path, classes: dict[str, Any]) -> None:
        directory.mkdir()
        self.directory = directory
        self.classes = classes
        self.graphs = {spider: random_graph(30, 3, seed) for spider, seed in SEVERAL.items()}
        self.sites = {spider: Site(graph) for spider, graph in self.graphs.items()}

    def __enter__(self) -> Several:
        for site in self.sites.values():
            site.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for site in self.sites.values():
            site.__exit__()

    def run(self, code: int = 0, **settings: Any) -> None:
        jobs = [
            {
                "spider": spider,
                "arguments": {"url": f"{site.url}/0"},
                "settings": {
                    **QUICK,
                    "JOBDIR": str(self.directory / spider),
                    "FEEDS": {str(self.items(spider)): {"format": "jsonlines"}},
                    **settings,
                    **self.classes,
                },
            }
            for spider, site in self.sites.items()
        ]
        done = run_python("-m", "crashsite.several", json.dumps(jobs))
        assert done.returncode == code, done.stderr

    def items(self, spider: str) -> Path:
        return self.directory / f"{spider}.jsonl"

    @property
    def is_ours(self) -> bool:
        return all((self.directory / spider / "frontier").exists() for spider in self.sites)

    def assert_complete(self) -> None:
        for spider, graph in self.graphs.items():
            assert set(self.sites[spider].hits) == set(graph)
            urls = [json.loads(line)["url"] for line in self.items(spider).open()]
            assert {re.sub("http://[^/]+", "", url) for url in urls} == set(graph)


def test_several_spiders_in_one_process_stop_and_go_on(tmp_path: Path) -> None:
    hits = []
    for name, classes in (("ours", {}), ("stock", STOCK)):
        with Several(tmp_path / name, classes) as several:
            several.run(CLOSESPIDER_PAGECOUNT=8)
            several.run()
            assert several.is_ours is (not classes)
            several.assert_complete()
            hits.append([site.hits for site in several.sites.values()])
    assert hits[0] == hits[1] == [once(*graph) for graph in several.graphs.values()]


def test_several_spiders_in_one_process_are_killed_and_go_on(tmp_path: Path) -> None:
    with Several(tmp_path / "ours", {}) as several:
        several.run(-signal.SIGKILL, KILL_AT=12, KILL_ON="item")
        several.run()
        several.assert_complete()


# Other commands


def output_of(command: str, url: str, *arguments: str, **environment: str) -> str:
    """What a command of Scrapy's prints."""
    done = run_scrapy(command, *arguments, *([url] if url else []), **environment)
    assert done.returncode == 0, done.stderr
    assert " CRITICAL: " not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def project_with(directory: Path, jobdir: Path | None, classes: dict[str, Any]) -> dict[str, str]:
    """Environment variables for the test project with these settings, in its settings module."""
    lines = ["from crashsite.settings import *"]
    lines += [f"{name} = {value}" for name, value in classes.items()]
    if jobdir is not None:
        lines.append(f"JOBDIR = {str(jobdir)!r}")
    directory.mkdir(exist_ok=True)
    (directory / "own_settings.py").write_text("\n".join([*lines, ""]))
    path = os.pathsep.join([str(directory), PYTHONPATH])
    return {"SCRAPY_SETTINGS_MODULE": "own_settings", "PYTHONPATH": path}


@pytest.mark.parametrize("has_jobdir", [False, True])
def test_scrapy_parse_prints_what_a_page_leads_to(tmp_path: Path, has_jobdir: bool) -> None:
    pages = {"/0": Page(["/1", "/2"]), "/1": Page(["/0"]), "/2": Page(["/3"])}
    outcomes = []
    for name, classes in (("ours", {}), ("stock", STOCK)):
        jobdir = tmp_path / name / "job" if has_jobdir else None
        project = project_with(tmp_path / name, jobdir, classes)
        with Site(pages) as site:
            options = (
                "--spider=pages",
                "--depth=2",
                "--nocolour",
                # One after the other, as what is printed is in the order of their coming.
                "--set=CONCURRENT_REQUESTS=1",
            )
            printed = output_of("parse", f"{site.url}/0", *options, **project)
            outcomes.append((printed.replace(site.url, ""), site.hits.copy()))
            if not classes:
                # Scrapy's own has put the page into JOBDIR's seen ones by now; ours never does.
                again = output_of("parse", f"{site.url}/0", *options, **project)
                assert again.replace(site.url, "") == outcomes[0][0]
    assert outcomes[0] == outcomes[1]
    printed, hits = outcomes[0]
    assert "'url': '/2'" in printed
    assert "<GET /3>" in printed
    assert hits == once("/0", "/1", "/2")


def test_scrapy_shell_fetches_again_and_again(tmp_path: Path) -> None:
    code = "(response.css('a').getall(), fetch(response.url), fetch(response.urljoin('/1')))"
    outcomes = []
    for name, classes in (("ours", {}), ("stock", STOCK)):
        project = project_with(tmp_path / name, None, classes)
        with Site({"/0": Page(["/1"]), "/1": Page(["/0"])}) as site:
            outcomes.append((output_of("shell", f"{site.url}/0", "-c", code, **project), site.hits))
    assert outcomes[0] == outcomes[1]
    printed, hits = outcomes[0]
    assert '<a href="/1">x</a>' in printed
    assert hits == {"/0": 2, "/1": 1}


def test_a_look_at_a_page_leaves_an_unfinished_job_alone(tmp_path: Path) -> None:
    graph = random_graph(20, 2, 17)
    project = project_with(tmp_path, tmp_path / "job", {})
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        # Killed: what it says of its state is then in the store alone, not in Scrapy's own file.
        assert crawl.run(KILL_AT=8, KILL_ON="item", ALTSCHED_COMMIT_EVERY=1) == -signal.SIGKILL
        before = listing(crawl.jobdir)
        url = f"{site.url}/0"
        for command, page, options, expected in (
            ("fetch", url, (), "<html>"),
            ("parse", url, ("--spider", "pages", "--nocolour"), f"'url': '{url}'"),
            # Another spider's than the job's.
            ("parse", url, ("--spider", "async", "--nocolour"), f"'url': '{url}'"),
            ("shell", url, ("-c", "response.status"), "200"),
            ("check", "", ("pages",), ""),
        ):
            assert expected in output_of(command, page, *options, **project)
            assert listing(crawl.jobdir) == before, command
        assert crawl.run() == 0
        assert set(site.hits) == set(graph)
        assert set(crawl.item_paths()) == set(graph)
    state = pickle.loads((crawl.jobdir / "spider.state").read_bytes())
    assert state["pages"] >= len(graph)


def test_a_look_at_a_page_does_not_take_a_jobdir_for_another_spider(tmp_path: Path) -> None:
    project = project_with(tmp_path, tmp_path / "job", {})
    with Site({"/0": Page()}) as site:
        output_of("fetch", f"{site.url}/0", **project)
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
        assert crawl.item_paths() == ["/0"]
