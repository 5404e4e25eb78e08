"""Shared crawls as ``scrapy crawl`` runs them: refused, restarted, and under pressure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.frontier.shared.keys import Keys

from ..crawls import Crawl, altsched, run_python
from ..frontier.shared import joining
from ..servers import RedisServer
from ..sites import Page, Site, random_graph

SITE = {"/0": Page(["/1", "/2"]), "/1": Page(["/2"]), "/2": Page()}
#: A server at which nothing listens.
NOWHERE = "redis://127.0.0.1:1/0"
STOCK_ONE = "scrapy.core.scheduler.Scheduler"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(SITE) as site:
        yield site


@pytest.fixture
def crawl(tmp_path: Path, site: Site) -> Crawl:
    return Crawl(tmp_path, "pages", f"{site.url}/0")


def of(server: RedisServer, **more: Any) -> dict[str, Any]:
    """Settings of a worker without a job directory."""
    return {"JOBDIR": None, "ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, **more}


def dump(server: RedisServer) -> dict[bytes, Any]:
    with server.client() as client:
        return joining.dump(client)


def refusal(crawl: Crawl) -> str:
    """What the log says of a crawl that was not opened: one line."""
    [line] = re.findall(r"\[scrapy_altsched\.\S+\] (?:CRITICAL|ERROR|WARNING): .*", crawl.log)
    assert "CRITICAL" in line
    return line


# Bad input


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"REDIS_URL": "http://localhost"}, "REDIS_URL cannot be used: it has to begin with"),
        ({"REDIS_URL": NOWHERE}, "cannot be reached, as nothing listens there: start it, or check"),
        ({"REDIS_PARAMS": '{"sokcet_timeout": 1}'}, "REDIS_PARAMS has 'sokcet_timeout'"),
        ({"ALTSCHED_SHARED_KEY": "{a}"}, "ALTSCHED_SHARED_KEY = '{a}' cannot be used"),
        ({"REDIS_DB": "99"}, "has no such database: set REDIS_DB"),
    ],
)
def test_settings_that_cannot_be_used(
    crawl: Crawl, server: RedisServer, settings: dict[str, str], words: str
) -> None:
    crawl.run(**of(server, **settings))
    assert words in refusal(crawl)
    assert dump(server) == {}


def test_a_password_that_is_refused(crawl: Crawl, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", password="right") as server:
        crawl.run(**of(server, REDIS_PARAMS='{"password": "wr0ng"}'))
        assert "refused the password of user 'default': set it in REDIS_URL" in refusal(crawl)
        assert "wr0ng" not in crawl.log.split("Spider opened")[1]
        assert dump(server) == {}


def test_an_evicting_server(crawl: Crawl, tmp_path: Path) -> None:
    options = {"maxmemory-policy": "allkeys-lru"}
    with RedisServer(tmp_path / "redis", options=options) as server:
        crawl.run(**of(server))
        assert "CONFIG SET maxmemory-policy noeviction" in refusal(crawl)
        assert re.search(r"CRITICAL: (Redis|Valkey) [0-9.]+ at localhost", refusal(crawl))
        assert dump(server) == {}


def test_a_key_of_another_type(crawl: Crawl, server: RedisServer) -> None:
    with server.client() as client:
        client.rpush(Keys("pages").pending, "mine")
    before = dump(server)
    crawl.run(**of(server))
    assert "is another program's: set ALTSCHED_SHARED_KEY to another name" in refusal(crawl)
    assert dump(server) == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"},
            "/fifo/fifo. Give all workers the same SCHEDULER_PRIORITY_QUEUE",
        ),
        (
            {"REQUEST_FINGERPRINTER_CLASS": "crashsite.fingerprinters.Short"},
            "was begun with other fingerprints",
        ),
    ],
)
def test_a_worker_that_differs(
    crawl: Crawl, server: RedisServer, settings: dict[str, str], words: str
) -> None:
    crawl.run(**of(server, CLOSESPIDER_PAGECOUNT=1))
    before = dump(server)
    crawl.run(**of(server, **settings))
    assert words in refusal(crawl)
    assert dump(server) == before


EXECUTE = "from scrapy.cmdline import execute; execute(['scrapy', *sys.argv[1:]])"


def scrapy_without(package: str, *words: object) -> str:
    """What a command of Scrapy's logs where a package is not installed."""
    script = f"import sys; sys.modules[{package!r}] = None\n" + EXECUTE
    return run_python("-c", script, *words).stderr


@pytest.mark.parametrize("package", ["redis", "msgpack"])
def test_a_package_that_is_missing(tmp_path: Path, site: Site, package: str) -> None:
    needs = f"needs the package '{package}', which is not installed: run pip install scrapy-altsch"
    crawl = ("crawl", "pages", "-a", f"url={site.url}/0", "-s")
    assert needs in scrapy_without(package, *crawl, "ALTSCHED_SHARED=1")
    assert needs in scrapy_without(package, "altsched", "drop", "pages")
    # Nothing else needs it.
    log = scrapy_without(package, *crawl, f"JOBDIR={tmp_path / 'job'}")
    assert "is finished: 3 requests done" in log


@pytest.mark.rocksdb
def test_without_rocksdict_only_a_job_in_rocksdb_is_refused(
    tmp_path: Path, server: RedisServer, site: Site, crawl: Crawl
) -> None:
    """It has no release for some Pythons."""
    job = tmp_path / "job"
    crawl.run(ALTSCHED_STORE="rocksdb")

    def scrapy(*words: object) -> str:
        return scrapy_without("rocksdict", *words, "-s", f"REDIS_PORT={server.port}")

    def refusal_of(*words: object) -> str:
        # Scrapy 2.13 has one of Twisted's, too.
        [line] = re.findall(r"\[scrapy_altsched\.\S+\] CRITICAL: .*", scrapy(*words))
        return str(line)

    command = ("crawl", "pages", "-a", f"url={site.url}/0")
    assert "'item_scraped_count': 3" in scrapy(*command)
    shared = (*command, "-s", "ALTSCHED_SHARED=1")
    assert "is finished: 3 requests done" in scrapy(*shared)
    theirs = (*command, "-s", f"SCHEDULER={STOCK_ONE}", "-s", f"JOBDIR={tmp_path / 'theirs'}")
    assert "'item_scraped_count': 3" in scrapy(*theirs)
    before = sorted(job.rglob("*"))
    needs = "needs the package 'rocksdict', which cannot be used on this Python"
    convert = f"run `scrapy altsched convert {job} --store sqlite` with a Python that has it"
    for words in (command, shared):
        line = refusal_of(*words, "-s", f"JOBDIR={job}")
        assert f"The store {job}/frontier, which is one of RocksDB, {needs}" in line
        assert convert in line
    line = refusal_of(*command, "-s", "ALTSCHED_STORE=rocksdb", "-s", f"JOBDIR={tmp_path / 'new'}")
    assert f"ALTSCHED_STORE = 'rocksdb' {needs}" in line
    assert f"`{sys.executable} -m pip install rocksdict`" in line
    assert "or set ALTSCHED_STORE = 'sqlite'" in line
    assert not (tmp_path / "new" / "frontier").exists()
    for name, *options in (
        *(("check",), ("requeue", "--all"), ("refingerprint",)),
        ("convert", "--store", "sqlite"),
    ):
        answer = scrapy("altsched", name, job, *options)
        assert answer.startswith(f"scrapy altsched {name}: The store {job}/frontier, which is")
        assert convert in answer
    assert sorted(job.rglob("*")) == before
    # What is on a server needs none.
    assert scrapy("altsched", "check", "--shared", "pages") == ""
    assert scrapy("altsched", "drop", "pages") == ""
    # Nor does a job in SQLite, which is what a new one is there.
    log = scrapy(*command, "-s", f"JOBDIR={tmp_path / 'new'}")
    assert "is finished: 3 requests done" in log
    assert (tmp_path / "new" / "frontier" / "store.sqlite").is_file()
    assert scrapy("altsched", "check", tmp_path / "new") == ""
    answer = scrapy("altsched", "convert", tmp_path / "new", "--store", "rocksdb")
    assert answer.startswith(f"scrapy altsched convert: A store of RocksDB {needs}")


def test_an_older_sqlite_than_is_needed_is_refused(tmp_path: Path, site: Site) -> None:
    script = "import sqlite3; sqlite3.sqlite_version_info = 3, 21, 0\nimport sys\n" + EXECUTE
    words = ("crawl", "pages", "-a", f"url={site.url}/0", "-s", "ALTSCHED_STORE=sqlite")
    run = run_python("-c", script, *words, "-s", f"JOBDIR={tmp_path / 'job'}")
    assert "and 3.22 is needed). Use a Python that was built with a newer one" in run.stderr
    assert not (tmp_path / "job" / "frontier").exists()


def test_an_engine_that_is_unknown_is_refused(tmp_path: Path, site: Site, crawl: Crawl) -> None:
    crawl.run(ALTSCHED_STORE="mysql")
    assert (
        "ALTSCHED_STORE = 'mysql' cannot be used: it must be one of 'auto', 'rocksdb' and 'sqlite'"
        in refusal(crawl)
    )
    assert not (crawl.jobdir / "frontier").exists()


def test_what_only_a_project_of_scrapy_redis_needs_is_named() -> None:
    done = scrapy_without(
        "scrapy_redis",
        *("altsched", "import", "redis-pages", "--from", NOWHERE, "--trust-pickle"),
        *("-s", "SPIDER_MODULES=crashsite.fed", "-s", "ALTSCHED_SHARED=1"),
    )
    assert done == (
        "scrapy altsched import: This project's spiders or settings need the package scrapy-redis,"
        f" which is not installed: run `{sys.executable} -m pip install scrapy-redis`\n"
    )
    done = scrapy_without(
        "scrapy_redis",
        *("altsched", "import", "pages", "--from", NOWHERE, "--trust-pickle"),
        *("-s", "DUPEFILTER_CLASS=scrapy_redis.dupefilter.RFPDupeFilter", "-s", "JOBDIR=none"),
    )
    assert "remove the setting, or set it to 'scrapy_altsched.DupeFilter'" in done
    assert "Traceback" not in done


# Job directories


@pytest.mark.slow
def test_a_job_directory_of_a_worker_is_not_a_local_crawls(
    crawl: Crawl, server: RedisServer
) -> None:
    crawl.run(**of(server, JOBDIR=crawl.jobdir, CLOSESPIDER_PAGECOUNT=1))
    crawl.run()
    assert "belongs to a worker of the shared crawl 'pages' on the Redis" in refusal(crawl)
    for verb in ("requeue", "refingerprint"):
        done = altsched(verb, crawl.jobdir)
        assert done.returncode == 1
        assert "belongs to a worker of the shared crawl 'pages' on the Redis" in done.stderr
        assert "Traceback" not in done.stderr
    done = altsched("check", crawl.jobdir)
    assert done.returncode == 0
    assert "the shared crawl 'pages' on the Redis server" in done.stdout
    crawl.run(**of(server, JOBDIR=crawl.jobdir))
    assert "The shared crawl 'pages' is finished: 3 requests done" in crawl.log


def test_a_job_directory_of_a_crawl_that_is_gone(crawl: Crawl, server: RedisServer) -> None:
    crawl.run(**of(server, JOBDIR=crawl.jobdir, CLOSESPIDER_PAGECOUNT=1))
    with server.client() as client:
        client.flushall()
    crawl.run(**of(server, JOBDIR=crawl.jobdir))
    assert "took part, is not there any more. Restore the server's data" in refusal(crawl)
    assert dump(server) == {}


def test_what_is_missing_of_a_shared_crawl_was_in_its_keys(
    crawl: Crawl, server: RedisServer
) -> None:
    crawl.run(**of(server, CLOSESPIDER_PAGECOUNT=1))
    with server.client() as client:
        client.hincrby(Keys("pages").meta, "accepted", 2)
    crawl.run(**of(server))
    assert "2 are neither done, pending nor dead: its keys were damaged, or" in crawl.log


# Fingerprints of a project's own


@pytest.mark.parametrize("kind", ["Sized", "Hashed"])
@pytest.mark.parametrize(
    "size", [20, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 10, 32, 64))]
)
def test_fingerprints_of_a_projects_own_are_told_apart(
    tmp_path: Path, server: RedisServer, kind: str, size: int
) -> None:
    graph = random_graph(60, 3, 4)
    settings = {
        "REQUEST_FINGERPRINTER_CLASS": f"crashsite.fingerprinters.{kind}",
        "FINGERPRINT_BYTES": size,
    }
    hits = []
    for name, where in (("local", {}), ("shared", of(server))):
        (tmp_path / name).mkdir()
        with Site(graph) as site:
            crawl = Crawl(tmp_path / name, "pages", f"{site.url}/0")
            crawl.run(**settings, **where)
            assert "is finished" in crawl.log
            assert len(crawl.item_paths()) == site.hits.total()
        hits.append(site.hits)
    assert hits[1] == hits[0]
    assert len(hits[0]) > 40


# The life of a crawl


def test_a_crawl_is_finished_until_it_is_restarted(crawl: Crawl, server: RedisServer) -> None:
    crawl.run(**of(server))
    assert crawl.stat("altsched/outcome") == "finished"
    before = dump(server)
    crawl.run(**of(server))
    assert "had finished before this worker came to it" in crawl.log
    assert crawl.stat("finish_reason") == "finished"
    assert dump(server) == before
    crawl.run(**of(server, ALTSCHED_SHARED_RESTART=1))
    assert crawl.stat("response_received_count") == 3


def test_a_worker_that_comes_back_to_a_finished_crawl_says_how_to_begin_again(
    crawl: Crawl, server: RedisServer
) -> None:
    for _ in range(2):
        crawl.run(**of(server, JOBDIR=crawl.jobdir))
        assert crawl.stat("finish_reason") == "finished"
    assert "had finished before this worker came to it" in crawl.log
    assert "This run crawled nothing" not in crawl.log  # it would name another JOBDIR


def test_a_worker_ends_as_soon_as_the_crawl_is_over(crawl: Crawl, server: RedisServer) -> None:
    # Scrapy's own heartbeat, by which an idle engine looks around, comes after 5 s.
    crawl.run(**of(server))
    assert float(re.findall(r"'elapsed_time_seconds': ([0-9.]+)", crawl.log)[0]) < 4.5


# What is too large


@pytest.mark.parametrize(
    "size", [20_000_000, pytest.param(600_000_000, marks=pytest.mark.slow)], ids=["20 MB", "600 MB"]
)
def test_a_request_that_is_too_large_stays_on_its_worker(
    tmp_path: Path, site: Site, server: RedisServer, size: int
) -> None:
    crawl = Crawl(tmp_path, "large", site.url, size=size)
    crawl.run(**of(server))
    assert crawl.stat("scheduler/unserializable") == 1
    assert "Unable to serialize request" in crawl.log
    assert f"it has {size:,} bytes, and one that goes to the server of a shared" in crawl.log
    assert crawl.stat("scheduler/enqueued/memory") == 1
    # It was crawled, and what came after it, too.
    assert sorted(crawl.item_paths()) == ["/0", "/1", "/2"]
    assert crawl.stat("altsched/outcome") == "finished"


# Back-pressure


@pytest.mark.slow
def test_start_requests_wait_while_the_server_does_not_answer(
    tmp_path: Path, site: Site, server: RedisServer
) -> None:
    crawl = Crawl(tmp_path, "feeder", site.url, count=50_000)
    process = crawl.start(**of(server))

    def held() -> list[int]:
        return [int(number) for number in re.findall(r"held at (\d+)", crawl.log)]

    try:
        crawl.wait_for_log(process, "brought ")
        server.suspend()
        crawl.wait_until(process, lambda: len(held()) >= 10)
        first, *_, last = held()
        assert first == last
        # What was answered before it stood still does not count.
        answered = int(re.findall(r"brought (\d+)", crawl.log)[-1])
        assert last < answered + 11_000
        assert last < 49_000
    finally:
        server.resume()
    # It goes on, and nothing is lost or there twice.
    keys = Keys("feeder")
    with server.client() as client:
        crawl.wait_until(process, lambda: client.hget(keys.meta, "accepted") == b"50000")
        crawl.kill(process)
        leased, done = map(int, client.hmget(keys.meta, ("leased", "done")))
        assert client.zcard(keys.pending) + leased + done == 50_000


# A server that loses its latest changes


def last_batches(server: RedisServer, keys: Keys) -> dict[bytes, bytes]:
    """Token -> number of the last batch, of workers that have sent more than one."""
    with server.client() as client:
        records = client.hgetall(keys.workers)
    return {token: row[:8] for token, row in records.items() if row[7] > 1}


@pytest.mark.slow
def test_start_runs_once_more_after_lost_history_and_never_twice_at_once(
    tmp_path: Path, site: Site
) -> None:
    go = tmp_path / "go"
    crawl = Crawl(tmp_path, "repeated", site.url, go=go)
    options = {"appendfsync": "always"}
    with RedisServer(tmp_path / "redis", appendonly=True, options=options) as server:
        # The copy knows a worker that nobody is any more; nothing ends while it may live.
        process = crawl.start(**of(server, ALTSCHED_LEASE_TIMEOUT=2))
        crawl.wait_for_log(process, "start() begins")
        keys = Keys("repeated")
        with server.client() as client:
            crawl.wait_until(process, lambda: int(client.hget(keys.meta, "done") or 0) > 0)
        copy = server.copy_files()
        for times in (1, 2):
            # It has to lose something.
            before = last_batches(server, keys)

            def has_gone_on(before: dict[bytes, bytes] = before) -> bool:
                return last_batches(server, keys) != before

            crawl.wait_until(process, has_gone_on)
            server.restore(copy)
            crawl.wait_until(process, lambda n=times: crawl.log.count("runs once more") == n)
        go.touch()
        process.communicate(timeout=60)
    assert re.findall(r"start\(\) (begins|ends)", crawl.log) == ["begins", "ends"] * 2
    assert crawl.stat("finish_reason") == "finished"
    assert set(crawl.item_paths()) == {"/0", "/1", "/2"}
    assert "Traceback" not in crawl.log
