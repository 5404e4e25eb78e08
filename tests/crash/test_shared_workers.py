"""Workers of a shared crawl that come, stop, wait and go, and networks that fail."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest

from ..proxy import Proxy
from ..servers import RedisServer
from ..sites import Gates, Page, Site, random_graph
from ..workers import Crawled, Workers, crawling

#: Seconds after which nothing can have gone back by timeout in a test.
FOREVER = 600


def linked(count: int, held: threading.Event | None = None) -> dict[str, Page]:
    """A page that leads to all others, which are *held* back."""
    paths = [f"/{number}" for number in range(1, count)]
    return {"/0": Page(paths), **{path: Page(held=held) for path in paths}}


def assert_complete(workers: Workers, site: Site, server: RedisServer, graph: object) -> None:
    """Every page was fetched and has its item in one of the feeds; none is dead."""
    paths = set(graph)  # type: ignore[call-overload]
    assert set(site.hits) == paths
    assert set(workers.item_paths()) == paths
    Crawled(server.client(), workers[0].spider).assert_finished(len(paths))


@pytest.mark.smoke
def test_three_workers_fetch_each_page_once_and_end(tmp_path: Path, server: RedisServer) -> None:
    graph = random_graph(150, 4, 1)
    with crawling(graph, tmp_path, server, has_jobdir=False) as (site, workers):
        workers.launch().wait()
        assert_complete(workers, site, server, graph)
        assert set(site.hits.values()) == {1}
        assert len(workers.item_paths()) == len(graph)


def test_equal_start_requests_of_three_workers_are_accepted_once(
    tmp_path: Path, server: RedisServer
) -> None:
    graph = {f"/{number}": Page() for number in range(40)}
    with (
        Site(graph) as site,
        Workers(tmp_path, "starts", site.url, server.port, arguments={"count": 40}) as workers,
    ):
        workers.launch().wait()
        assert_complete(workers, site, server, graph)
        assert set(site.hits.values()) == {1}


def test_a_worker_that_is_stopped_cleanly_gives_back_its_leases_at_once(
    tmp_path: Path, server: RedisServer
) -> None:
    held = threading.Event()
    graph = linked(40, held)
    with crawling(
        graph,
        tmp_path,
        server,
        2,
        ALTSCHED_LEASE_TIMEOUT=FOREVER,
        ALTSCHED_SHARED_PREFETCH=100,
        CONCURRENT_REQUESTS=1,
    ) as (site, workers):
        workers[0].launch()
        site.wait_for(lambda site: site.hits.total() == 2)
        workers[1].launch().wait_until_open()
        workers[0].process.send_signal(signal.SIGINT)
        workers[0].wait_for("Closing spider (shutdown)")
        held.set()
        workers.wait()
        assert_complete(workers, site, server, graph)
        assert set(site.hits.values()) == {1}
        assert len(workers[1].item_paths()) > 30


@pytest.mark.smoke
def test_a_killed_worker_that_comes_back_with_its_jobdir_has_its_leases_at_once(
    tmp_path: Path, server: RedisServer
) -> None:
    held = threading.Event()
    graph = linked(40, held)
    with crawling(graph, tmp_path, server, 1, ALTSCHED_LEASE_TIMEOUT=FOREVER) as (site, workers):
        worker = workers[0].launch()
        crawled = Crawled(server.client(), "pages")
        worker.wait_until(worker.process, lambda: crawled.count("done") == 1)
        site.wait_for(lambda site: site.hits.total() == 9)
        worker.die()
        held.set()
        workers[0].launch()
        workers.wait()
        assert_complete(workers, site, server, graph)
        assert site.hits.total() == len(graph) + 8


@pytest.mark.parametrize(
    "is_finished", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["finished", "open"]
)
def test_a_worker_that_is_suspended_past_its_lease_changes_nothing_and_counts_it(
    tmp_path: Path, server: RedisServer, is_finished: bool
) -> None:
    graph, held, last = linked(20), threading.Event(), threading.Event()
    if not is_finished:
        graph["/last"] = Page(held=last)
        graph["/19"].links = ["/last"]

    def answer(path: str, before: int) -> Page:
        """Hold back the first answer to one page only."""
        return Page(held=held) if path == "/18" and not before else graph[path]

    with crawling(answer, tmp_path, server, 2, ALTSCHED_LEASE_TIMEOUT=2) as (site, workers):
        suspended, other = workers
        suspended.launch()
        site.wait_for(lambda site: site.hits["/18"])
        suspended.process.send_signal(signal.SIGSTOP)
        other.launch()
        site.wait_for(lambda site: site.hits["/18"] == 2)
        if is_finished:
            assert other.wait() == 0
        held.set()
        suspended.process.send_signal(signal.SIGCONT)
        suspended.wait_until(suspended.process, lambda: "/18" in suspended.item_paths())
        last.set()
        workers.wait()
        assert suspended.stat("altsched/shared/leases_lost") >= 1
        assert_complete(workers, site, server, graph)


def test_a_late_worker_ends_at_once_and_says_so(tmp_path: Path, server: RedisServer) -> None:
    graph = linked(10)
    with crawling(graph, tmp_path, server, 2) as (site, workers):
        workers[0].launch().wait()
        workers[1].launch().wait()
        assert "had finished before this worker came to it" in workers[1].log
        assert "scrapy altsched restart --shared pages" in workers[1].log
        assert site.hits.total() == len(graph)
        assert not workers[1].item_paths()
        workers.wait()
        Crawled(server.client(), "pages").assert_finished(len(graph))


def test_workers_that_are_to_wait_keep_the_crawl_open(tmp_path: Path, server: RedisServer) -> None:
    graph = {**linked(10), "/fed": Page(["/more"]), "/more": Page()}
    with crawling(graph, tmp_path, server, 2, ALTSCHED_SHARED_IDLE="wait") as (site, workers):
        workers[0].launch()
        site.wait_for(lambda site: site.hits.total() == 10)
        # A crawl that had ended would take nothing from a worker that comes late.
        workers[1].arguments["url"] = f"{site.url}/fed"
        workers[1].launch()
        site.wait_for(lambda site: site.hits.total() == 12)
        for worker in workers:
            worker.process.send_signal(signal.SIGINT)
        workers.wait()
        assert Crawled(server.client(), "pages").meta("state") == "open"


@pytest.mark.slow
def test_a_network_that_fails_loses_and_repeats_nothing(
    tmp_path: Path, server: RedisServer
) -> None:
    graph = random_graph(120, 4, 2)
    gates = Gates(graph, 20, 40, 60, 80, 100)
    with (
        Proxy(server.port) as proxy,
        Site(gates) as site,
        Workers(
            tmp_path, "pages", f"{site.url}/0", proxy.port, 3, ALTSCHED_LEASE_TIMEOUT=FOREVER
        ) as workers,
    ):
        workers.launch()

        def open_next(pages: int) -> None:
            gates.open()
            site.wait_for(lambda site: len(site.hits) >= pages)

        for worker in workers:
            worker.wait_until_open()
        site.wait_for(lambda site: len(site.hits) >= 21)
        proxy.cut()
        open_next(41)
        proxy.drop_reply()
        open_next(61)
        crawled = Crawled(server.client(), "pages")
        proxy.stall_at_change(lambda: crawled.count("done"))
        gates.open()
        # What the server has applied, it has answered, too: that answer is lost.
        first = workers[0]
        first.wait_until(first.process, lambda: proxy.stalls_replies)
        proxy.cut()
        proxy.flow()
        site.wait_for(lambda site: len(site.hits) >= 81)
        proxy.refuse()
        gates.open()
        for worker in workers:
            worker.wait_for("does not answer")
        proxy.accept()
        site.wait_for(lambda site: len(site.hits) >= 101)
        proxy.cut()
        gates.open()
        workers.wait()
        assert proxy.dropped
        assert all(worker.stat("altsched/shared/leases_lost") is None for worker in workers)
        assert_complete(workers, site, server, graph)
        assert set(site.hits.values()) == {1}


def test_a_server_that_becomes_a_replica_is_said_to_be_one(tmp_path: Path) -> None:
    held = threading.Event()
    graph = linked(20, held)
    with (
        RedisServer(tmp_path / "redis") as server,
        server.client() as client,
        Site(graph) as site,
        Workers(tmp_path, "pages", f"{site.url}/0", server.port, 1) as workers,
    ):
        worker = workers[0].launch()
        site.wait_for(lambda site: site.hits.total() > 1)
        client.replicaof("127.0.0.1", "1")
        held.set()
        worker.wait_for("nothing can be changed there. Set REDIS_URL or REDIS_HOST to its master.")
        client.replicaof("no", "one")
        workers.wait()
        assert_complete(workers, site, server, graph)
        assert "does not answer" not in worker.log


def test_a_copy_of_a_jobdir_that_another_worker_uses_is_suspected(
    tmp_path: Path, server: RedisServer
) -> None:
    held = threading.Event()
    graph = linked(20, held)
    with crawling(graph, tmp_path, server, 2, ALTSCHED_LEASE_TIMEOUT=1) as (site, workers):
        first, copied = workers
        first.launch()
        site.wait_for(lambda site: site.hits.total() > 1)
        shutil.copytree(first.jobdir, copied.jobdir)
        assert copied.launch().wait() == 1  # since the first one's feed is in it
        held.set()
        assert first.wait() == 0
        assert "or another worker was started with a copy of this one's JOBDIR" in first.log
        assert_complete(workers, site, server, graph)


@pytest.mark.slow
def test_a_server_that_is_full_for_a_while_loses_nothing(
    tmp_path: Path, server: RedisServer
) -> None:
    graph = random_graph(150, 4, 3)
    gates = Gates(graph, 50)
    with (
        server.client() as client,
        Site(gates) as site,
        Workers(tmp_path, "pages", f"{site.url}/0", server.port, 3) as workers,
    ):
        workers.launch()
        site.wait_for(lambda site: len(site.hits) >= 51)
        client.config_set("maxmemory", 1)
        crawled = Crawled(client, "pages")
        try:
            accepted = crawled.count("accepted")
            gates.open()
            # It drains: what is pending is fetched, and nothing is accepted.
            site.wait_for(lambda site: len(site.hits) >= accepted)
            assert crawled.count("accepted") == accepted
        finally:
            client.config_set("maxmemory", 0)
        workers.wait()
        assert_complete(workers, site, server, graph)
        assert set(site.hits.values()) == {1}
