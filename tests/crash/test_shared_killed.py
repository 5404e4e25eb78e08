"""Shared crawls whose workers and servers are killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from example_project.example_project.site import Site as ExampleSite
from example_project.example_project.site import load_graph

from ..servers import RedisServer
from ..workers import (
    Crawled,
    Refetches,
    Workers,
    example_workers,
    kill_rounds,
    small_graph,
    wait_for_pages,
)


def assert_complete(workers: Workers, site: ExampleSite, server: RedisServer) -> None:
    """Every page was fetched, has its item in one of the feeds, and is done; none is dead."""
    assert set(site.hits) == site.reachable
    assert set(workers.item_paths()) == site.reachable
    Crawled(server.client(), "docs").assert_finished(len(site.reachable))


@pytest.mark.slow
def test_three_workers_fetch_each_page_of_the_example_site_once(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        ExampleSite(load_graph()) as site,
        example_workers(tmp_path, site, server.port, has_jobdir=False) as workers,
    ):
        workers.launch().wait()
        assert_complete(workers, site, server)
        assert set(site.hits.values()) == {1}
        assert len(workers.item_paths()) == len(site.reachable)
        assert all(worker.item_paths() for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("has_jobdir", [True, False], ids=["jobdir", "no jobdir"])
@pytest.mark.parametrize("seed", range(2))
def test_each_worker_killed_five_times(tmp_path: Path, seed: int, has_jobdir: bool) -> None:
    rng = random.Random(f"{seed} {has_jobdir}")
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        ExampleSite(small_graph(300, seed), latency=0.05) as site,
        example_workers(
            tmp_path, site, server.port, has_jobdir=has_jobdir, ALTSCHED_LEASE_TIMEOUT=10
        ) as workers,
    ):
        refetches = Refetches(Crawled(server.client(), "docs"), site)
        workers.launch()
        kills = kill_rounds(workers, site, 5, rng, refetches.note_fault)
        workers.wait()
        assert kills >= 12
        assert_complete(workers, site, server)
        refetches.assert_no_others(site.reachable)
        print(f"{kills} kills, {site.hits.total() - len(site.reachable)} fetched again")


@pytest.mark.slow
def test_a_server_killed_five_times_loses_nothing_that_it_has_logged(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        ExampleSite(small_graph(300, 1), latency=0.05) as site,
        example_workers(tmp_path, site, server.port, ALTSCHED_LEASE_TIMEOUT=60) as workers,
    ):
        workers.launch()
        for number in range(1, 6):
            wait_for_pages(site, number * 50, workers)
            assert workers.is_any_running
            server.kill()
            server.start()
        workers.wait()
        assert_complete(workers, site, server)
        assert set(site.hits.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kills_worker", [False, True], ids=["server", "server and worker"])
def test_a_server_restarted_five_times_with_an_older_log(
    tmp_path: Path, kills_worker: bool
) -> None:
    rng = random.Random(kills_worker)
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        ExampleSite(small_graph(300, 2), latency=0.05) as site,
        example_workers(tmp_path, site, server.port, ALTSCHED_LEASE_TIMEOUT=5) as workers,
    ):
        workers.launch()
        for number in range(1, 6):
            wait_for_pages(site, number * 50 - 20, workers)
            copy = server.copy_files(f"copy-{number}")
            wait_for_pages(site, number * 50, workers)
            assert workers.is_any_running
            victim = rng.choice(workers.all)
            if kills_worker:
                victim.die()
            server.restore(copy)
            if kills_worker:
                victim.launch()
                victim.wait_until_open()
        workers.wait()
        assert "has lost its latest changes" in "".join(worker.logs for worker in workers)
        assert_complete(workers, site, server)
        again = site.hits.total() - len(site.reachable)
        print(f"{again} fetched again")


@pytest.mark.parametrize("has_jobdir", [True, False], ids=["jobdir", "no jobdir"])
def test_workers_of_a_server_restarted_empty_do_as_they_say(
    tmp_path: Path, has_jobdir: bool
) -> None:
    """They end with an exit code for which ``restart: on-failure`` starts them again."""
    with (
        RedisServer(tmp_path / "redis", appendonly=True) as server,
        ExampleSite(small_graph(300, 3), latency=0.25) as site,
        example_workers(tmp_path, site, server.port, has_jobdir=has_jobdir) as workers,
    ):
        workers.launch()
        for worker in workers:
            worker.wait_until_open()
        wait_for_pages(site, 30, workers)
        copy = server.copy_files()
        server.wipe()
        again = "Restore the server's data, then start the workers again with the same commands"
        for worker in workers:
            assert worker.wait() == 4
            assert worker.stat("finish_reason") == "frontier_lost"
            assert worker.log.count(again) == 2
            assert "Resume it" not in worker.log
            assert ("delete the workers' JOBDIRs" in worker.log) is has_jobdir
            assert ("they begin a new crawl" in worker.log) is not has_jobdir
        assert not server.client().keys()
        if has_jobdir:
            for worker in workers:
                assert worker.launch().wait() == 1
                assert "not there any more. Restore the server's data" in worker.log
            assert not server.client().keys()
            server.restore(copy)
        workers.launch()
        assert [worker.wait() for worker in workers] == [0, 0, 0]
        assert_complete(workers, site, server)
