"""Exporting crawls, and importing them, as a user types it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings

from scrapy_altsched.command.job import Job
from scrapy_altsched.command.project import Project
from scrapy_altsched.frontier import Entry, Order
from scrapy_altsched.frontier.entry import DeadLetter, PageFailure, Reason
from scrapy_altsched.frontier.shared.content import fill_crawl
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.states import FAILED, encode_failed_key
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.requests.codec import PICKLED, wrap
from scrapy_altsched.requests.identity import NOTE
from scrapy_altsched.stock.files import SeenFile

from ..crawls import PROJECT, PYTHONPATH, STOCK, Crawl, altsched, listing
from ..frontiers import OWNER, take
from ..moving import FINGERPRINTS, entry_of, fill_server, job_at, make_job
from ..servers import RedisServer
from ..sites import Gates, Site, random_graph, wait_for_pages
from ..stores import BY_ENGINE

PAGES = 60


def run(*arguments: object, code: int = 0, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a subcommand that is to end with this exit code."""
    options = [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    done = altsched(*arguments, *options)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done


def stop_halfway(crawl: Crawl, site: Site, **settings: Any) -> set[str]:
    """Have a crawl begin, and end cleanly before it is finished; the pages that are done."""
    process = crawl.start(CONCURRENT_REQUESTS=2, **settings)
    wait_for_pages(site, PAGES // 3, process)
    process.terminate()
    process.communicate(timeout=60)
    done = set(crawl.item_paths())
    assert 0 < len(done) < PAGES, crawl.log
    return done


@pytest.mark.slow
@BY_ENGINE
def test_a_crawl_is_moved_from_place_to_place_and_completed(
    tmp_path: Path, server: RedisServer, engine: Choice
) -> None:
    graph, url = random_graph(PAGES, 2, seed=3), f"redis://localhost:{server.port}/0"
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        before = stop_halfway(crawl, site)
        hits = dict(site.hits)
        file = tmp_path / "crawl.jsonl.gz"
        run("export", crawl.jobdir, "-o", file)
        copy = tmp_path / "copy"
        done = run("import", "pages", "--from", file, JOBDIR=copy)
        assert f"Imported into the job in {copy}: " in done.stdout
        run("import", "pages", "--from", copy, ALTSCHED_SHARED=1, REDIS_PORT=server.port)
        back = tmp_path / "back"
        run("import", "pages", "--from", url, "--key", "pages", JOBDIR=back)
        lines = list(map(json.loads, gzip.decompress(file.read_bytes()).splitlines()))
        exported = run("export", back).stdout.splitlines()
        for text in exported[1:-1]:
            line = json.loads(text)
            assert line in lines or "seen" in line or "claim" in line
        crawl.jobdir = back
        crawl.run()
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert set(crawl.item_paths()) == graph.keys()
        assert len(crawl.item_paths()) == PAGES
        again = {path for path in before if site.hits[path] > hits[path]}
        assert again == set()


@pytest.mark.slow
def test_workers_complete_a_crawl_that_came_from_a_job_directory(
    tmp_path: Path, server: RedisServer
) -> None:
    graph, shared = (
        random_graph(PAGES, 2, seed=4),
        {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port},
    )
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        before = stop_halfway(crawl, site)
        hits = dict(site.hits)
        run("import", "pages", "--from", crawl.jobdir, **shared)
        crawl.run(**{**shared, "JOBDIR": None})
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert set(crawl.item_paths()) == graph.keys()
        assert len(crawl.item_paths()) == PAGES
        assert {path for path in before if site.hits[path] > hits[path]} == set()


@pytest.mark.slow
def test_a_crawl_that_workers_began_goes_on_in_a_job_directory(
    tmp_path: Path, server: RedisServer
) -> None:
    graph = random_graph(PAGES, 2, seed=8)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        shared = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port, "JOBDIR": None}
        before = stop_halfway(crawl, site, **shared)
        hits = dict(site.hits)
        file = tmp_path / "crawl.jsonl"
        run("export", "--shared", "pages", "-o", file, REDIS_PORT=server.port)
        run("import", "pages", "--from", file, JOBDIR=crawl.jobdir)
        run("check", crawl.jobdir)
        crawl.run()
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert set(crawl.item_paths()) == graph.keys()
        assert {path for path in before if site.hits[path] > hits[path]} == set()


@pytest.mark.slow
def test_scrapys_own_scheduler_completes_an_exported_job(tmp_path: Path) -> None:
    graph = random_graph(PAGES, 2, seed=5)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        stop_halfway(crawl, site)
        job = listing(crawl.jobdir)
        stock = tmp_path / "stock"
        done = run("export", crawl.jobdir, "--to-stock", stock)
        assert listing(crawl.jobdir) == job
        assert "are pending for Scrapy's own scheduler" in done.stdout
        assert "that are done are fetched again if they are found again" in done.stdout
        crawl.jobdir = stock
        crawl.run(**STOCK)
        assert "Resuming crawl (" in crawl.log
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert set(crawl.item_paths()) == graph.keys()


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["job", "shared"])
def test_a_crawl_of_scrapys_own_scheduler_is_imported_elsewhere(
    tmp_path: Path, server: RedisServer, shared: bool
) -> None:
    graph = random_graph(PAGES, 2, seed=6)
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        before = stop_halfway(crawl, site, **STOCK)
        hits, stock = dict(site.hits), listing(crawl.jobdir)
        target: dict[str, Any] = {"JOBDIR": tmp_path / "ours"}
        if shared:
            target = {"JOBDIR": None, "ALTSCHED_SHARED": 1, "REDIS_PORT": server.port}
        given = {name: value for name, value in target.items() if value is not None}
        done = run("import", "pages", "--from", crawl.jobdir, **given)
        assert " pending in the " in done.stdout
        assert listing(crawl.jobdir) == stock
        crawl.run(**target)
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert set(crawl.item_paths()) == graph.keys()
        assert {path for path in before if site.hits[path] > hits[path]} <= {"/0"}


@pytest.mark.slow
@BY_ENGINE
def test_a_crawl_that_is_running_is_exported_as_its_last_commit_left_it(
    tmp_path: Path, engine: Choice
) -> None:
    gates = Gates(random_graph(PAGES, 2, seed=7), PAGES // 3)
    with Site(gates) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = crawl.start()
        wait_for_pages(site, PAGES // 3 + 1, process)
        done = run("export", crawl.jobdir, "-o", tmp_path / "crawl.jsonl")
        assert "A crawl is running in" in done.stderr
        gates.open()
        process.communicate(timeout=60)
        assert crawl.stat("finish_reason") == "finished", crawl.log
        crawl.items.unlink()
        crawl.jobdir = tmp_path / "copy"
        run("import", "pages", "--from", tmp_path / "crawl.jsonl", JOBDIR=crawl.jobdir)
        run("check", crawl.jobdir)
        crawl.run()
        assert crawl.stat("finish_reason") == "finished", crawl.log
        assert PAGES * 2 // 3 <= len(crawl.item_paths()) <= PAGES


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of the spider "pages"; nothing changes it."""
    path = tmp_path_factory.mktemp("exported") / "job"
    make_job(path, owner="pages")
    return path


def test_what_stock_cannot_have_is_told_with_numbers(tmp_path: Path, job: Path) -> None:
    done = run("export", job, "--to-stock", tmp_path / "stock")
    warning = (
        "WARNING: 10 pages that are done are fetched again if they are found again: of their"
        " fingerprints the crawl has kept no more than digests, and Scrapy's own filter needs them"
        " whole."
    )
    assert done.stdout.splitlines() == [
        "49 requests are pending for Scrapy's own scheduler.",
        warning,
        "5 delayed requests do not wait there until they are due.",
        "3 failed requests left out: not crawled again there.",
        "3 dead letters left out: not crawled again there.",
    ]
    before = listing(tmp_path / "stock")
    done = run("export", job, "--to-stock", tmp_path / "stock", code=1)
    assert "stock is not empty: name a directory that is not there yet" in done.stderr
    assert listing(tmp_path / "stock") == before
    run("export", job, "--to-stock", tmp_path / "other", "-o", "file", code=2)


def test_no_file_is_replaced_that_is_no_export(tmp_path: Path, job: Path) -> None:
    other, export, link = tmp_path / "other", tmp_path / "export.jsonl.gz", tmp_path / "link.gz"
    other.write_text("precious")
    for path in other, job / "altsched.json":
        before = path.read_bytes()
        done = run("export", job, "-o", path, code=2)
        assert f"{path} is there already, and is no exported crawl" in done.stderr
        assert path.read_bytes() == before
    run("export", job, "-o", export)
    link.symlink_to(export)
    run("export", job, "-o", export)
    run("export", job, "-o", link)
    assert link.is_symlink()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(pipe.read_bytes)
        run("export", job, "-o", pipe)
        assert reading.result().endswith(b"\n")
    assert pipe.is_fifo()


@pytest.mark.slow
def test_stock_gets_whole_fingerprints_of_a_job_that_has_them(tmp_path: Path, job: Path) -> None:
    head, *lines, _ = run("export", job).stdout.splitlines()
    known = {entry_of(number).fingerprint for number in range(65)}
    lines = [line for line in lines if not line.startswith('{"seen"')]
    lines = [json.dumps({**json.loads(head), "seen": "fingerprints"}), *lines]
    lines += [json.dumps({"seen": fingerprint.hex()}) for fingerprint in sorted(known)]
    lines.append(json.dumps({"lines": len(lines)}))
    (tmp_path / "old").write_text("\n".join(lines))
    run("import", "pages", "--from", tmp_path / "old", JOBDIR=tmp_path / "job")
    done = run("export", tmp_path / "job", "--to-stock", tmp_path / "stock")
    assert "fetched again" not in done.stdout
    assert set(SeenFile(tmp_path / "stock" / "requests.seen")) == known


@pytest.mark.slow
def test_a_source_that_is_none_is_named_and_leaves_no_job(
    tmp_path: Path, server: RedisServer, job: Path
) -> None:
    file, target = tmp_path / "crawl.jsonl.gz", tmp_path / "target"
    run("export", job, "-o", file)
    (tmp_path / "cut.gz").write_bytes(file.read_bytes()[:-20])
    (tmp_path / "text").write_text("a,b\n")
    (tmp_path / "empty").mkdir()
    nowhere = f"redis://localhost:{server.port}/0"
    for source, more, message in [
        (tmp_path / "cut.gz", [], "cut.gz cannot be read to its end"),
        (tmp_path / "text", [], "text is no exported crawl: its first line does not say so"),
        (tmp_path / "empty", [], "empty holds no job of scrapy_altsched"),
        (tmp_path / "none", [], "none cannot be read (No such file or directory): --from takes"),
        (nowhere, ["--key", "pages"], "There is no shared crawl 'pages' on the Redis server"),
        ("redis://localhost:1", ["--key", "pages"], "localhost:1, database 0 cannot be reached"),
    ]:
        done = run("import", "pages", "--from", source, *more, code=1, JOBDIR=target)
        assert message in done.stderr
        assert not (target / "frontier").exists()
        assert not (target / "altsched.json").exists()
    done = run("import", "again", "--from", file, code=1, JOBDIR=target)
    assert f"{file} is a crawl of spider 'pages', not of 'again'" in done.stderr
    run("import", "pages", "--from", file, "--key", "pages", code=2, JOBDIR=target)
    run("import", "pages", "--from", file, "--without-seen", code=2, JOBDIR=target)
    run("import", "pages", "--from", file, JOBDIR=target)
    done = run("import", "pages", "--from", file, code=1, JOBDIR=target)
    assert f"JOBDIR {target} holds a job (frontier, altsched.json)" in done.stderr
    done = run("import", "pages", "--from", target, code=1, JOBDIR=target)
    assert f"{target} is both the source and the target." in done.stderr


@pytest.mark.slow
def test_a_crawl_whose_fingerprints_are_others_is_not_imported_for_workers(
    server: RedisServer, client: redis.Redis, job: Path
) -> None:
    other = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_altsched.ScrapyRedisFingerprinter"}
    shared = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port}
    done = run("import", "pages", "--from", job, code=1, **shared, **other)
    assert "The fingerprints of that crawl were made with" in done.stderr
    assert client.dbsize() == 0
    done = run("import", "pages", "--from", job, **shared)
    assert "spider.state is left out: shared crawls do not keep it." in done.stderr


def test_a_job_that_is_paused_stays_so_in_another_directory_and_not_on_a_server(
    tmp_path: Path, server: RedisServer, job: Path
) -> None:
    shutil.copytree(job, tmp_path / "job")
    run("pause", tmp_path / "job")
    run("defer", tmp_path / "job", "slow.example", "--for", "1h")
    since = json.loads(run("status", tmp_path / "job", "--json").stdout)["paused"]
    run("import", "pages", "--from", tmp_path / "job", JOBDIR=tmp_path / "copy")
    assert json.loads(run("status", tmp_path / "copy", "--json").stdout)["paused"] == since
    shared = {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port}
    done = run("import", "pages", "--from", tmp_path / "job", **shared)
    pause = "scrapy altsched pause --shared pages"
    assert "It was paused, and is not any more. To pause it again before" in done.stderr
    assert "Download slots that were left alone for a while are asked again." in done.stderr
    assert pause in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["job", "shared"])
def test_an_import_that_is_killed_leaves_nothing_that_a_crawl_would_go_on_with(
    tmp_path: Path, server: RedisServer, client: redis.Redis, job: Path, shared: bool
) -> None:
    lines = run("export", job).stdout.splitlines(keepends=True)
    target = {"JOBDIR": tmp_path / "target"} | ({"ALTSCHED_SHARED": 1} if shared else {})
    options = [f"{name}={value}" for name, value in (target | {"REDIS_PORT": server.port}).items()]
    arguments = [part for option in options for part in ("-s", option)]
    with subprocess.Popen(
        [sys.executable, "-m", "scrapy", "altsched", "import", "pages", "--from", "-", *arguments],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.writelines(lines[:-1])
        process.stdin.flush()
        partial = tmp_path / "target" / "frontier.partial"
        while not (client.dbsize() if shared else partial.exists()):
            assert process.poll() is None
        process.kill()
    if shared:
        done = run("check", "--shared", "pages", code=1, REDIS_PORT=server.port)
        assert "is being imported, or an import of it was cut short" in done.stderr
        run("drop", "pages", REDIS_PORT=server.port)
        assert client.dbsize() == 0
    else:
        assert not (tmp_path / "target" / "frontier").exists()
    (tmp_path / "whole").write_text("".join(lines))
    run("import", "pages", "--from", tmp_path / "whole", REDIS_PORT=server.port, **target)


def test_a_pipe_that_is_closed_is_no_traceback(job: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "scrapy", "altsched", "export", str(job)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 1
    assert "Standard output cannot be written (Broken pipe)" in errors
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


def test_a_disk_that_is_full_is_told_of(job: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "scrapy", "altsched", "export", str(job)],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "Standard output cannot be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@BY_ENGINE
def test_a_disk_that_is_full_gets_no_job(tmp_path: Path, job: Path, engine: Choice) -> None:
    file, target = tmp_path / "crawl.jsonl", tmp_path / "target"
    run("export", job, "-o", file)
    # Files may not grow beyond a few kilobytes, as where a disk is full.
    command = f"ulimit -f 8; exec {sys.executable} -m scrapy altsched import pages --from {file}"
    done = subprocess.run(
        ["sh", "-c", f"{command} -s JOBDIR={target} -s ALTSCHED_STORE={engine}"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"disk|space|large", done.stderr)
    assert not (target / "frontier").exists()
    run("import", "pages", "--from", file, JOBDIR=target, ALTSCHED_STORE=engine)


@pytest.mark.slow
def test_what_a_server_says_is_neither_imported_nor_unpickled_unless_it_is_trusted(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    url, target = f"redis://localhost:{server.port}/0", tmp_path / "target"
    frontier = open_frontier(tmp_path / "job", "pages")
    fields = {"url": "http://a.test/1", "_class": "this.Request"}
    frontier.add(Entry(b"1", "a.test", payload=wrap(pickle.dumps(fields, 4), PICKLED)))
    frontier.commit({NOTE: FINGERPRINTS})
    frontier.close()
    with job_at(tmp_path / "job", "pages") as content:
        fill_server(client, "pages", content, Order())
    arguments = ("import", "pages", "--from", url, "--key", "pages")
    done = run(*arguments, code=1, JOBDIR=target)
    assert "The pending request http://a.test/1 cannot be taken to this machine" in done.stderr
    refusal = "its class, this.Request, is to be imported from what a server says"
    assert refusal in done.stderr
    assert not (target / "frontier").exists()
    stock = ("export", "--shared", "pages", "--to-stock", tmp_path / "stock")
    done = run(*stock, REDIS_PORT=server.port)
    assert f"1 request cannot be restored and left out. The first: http://a.test/1: {refusal}" in (
        done.stdout
    )
    assert "The Zen of Python" not in done.stdout
    run(*arguments, "--trust-pickle", JOBDIR=target)


class Trap:
    """What makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def test_no_pickle_of_a_server_is_loaded_unless_it_is_trusted(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    url, made, file = f"redis://localhost:{server.port}/0", tmp_path / "made", tmp_path / "file"
    frontier = open_frontier(tmp_path / "job", "pages")
    for number in range(3):
        fields = {"url": f"http://a.test/{number}", "meta": {"it": Trap(made)}}
        payload = wrap(pickle.dumps(fields, 4), PICKLED)
        frontier.add(Entry(b"%d" % number, "a.test", payload=payload))
    lease = take(frontier)
    lease.failure = PageFailure(Reason.STATUS, "", 503, 3)
    frontier.finish(lease)
    frontier.dead_letter(take(frontier), DeadLetter("why"))
    frontier.commit({NOTE: FINGERPRINTS})
    frontier.close()
    with job_at(tmp_path / "job", "pages") as content:
        fill_crawl(client, "pages", content, Order(), NOTE, are_sha1=True)
    export, refusal = ("export", "--shared", "pages"), "it holds a pickle, which can execute code"
    assert refusal in run(*export, code=1, REDIS_PORT=server.port).stderr
    done = run(*export, "--to-stock", tmp_path / "stock", REDIS_PORT=server.port)
    assert f"3 requests cannot be restored and left out. The first: 30: {refusal}" in done.stdout
    run(*export, "--pickle", "-o", file, REDIS_PORT=server.port)
    target, other = {"JOBDIR": tmp_path / "copy"}, {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port}
    for source in ([url, "--key", "pages"], [file]):
        for place in (target, {**other, "ALTSCHED_SHARED_KEY": "other"}):
            done = run("import", "pages", "--from", *source, code=1, **place)
            assert refusal in done.stderr
    assert not made.exists()
    run("import", "pages", "--from", file, "--trust-pickle", **target)
    assert made.exists()
    assert run("export", tmp_path / "copy").stdout.count('"slot": "a.test"') == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("SCHEDULER_DISK_QUEUE", "nowhere"), ("SCHEDULER_PRIORITY_QUEUE", "builtins.int")],
)
def test_queues_that_stock_cannot_have_are_named(
    tmp_path: Path, job: Path, name: str, value: str
) -> None:
    done = run("export", job, "--to-stock", tmp_path / "stock", code=1, **{name: value})
    assert f"{name} = {value!r}" in done.stderr
    assert "damaged" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_only_what_cannot_be_read_is_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "job"
    make_job(path)

    def fail() -> None:
        with Job(Project(Settings()), path).content() as content:
            next(content.parts)
            raise ValueError("of the target")

    with pytest.raises(ValueError, match=r"^of the target$"):
        fail()
    journal = Journal(path, OWNER)
    batch = Batch(journal.counters())
    batch.stored[FAILED].append((encode_failed_key(1, bytes(17)), b"\1"))
    journal.write(batch)
    journal.close()
    done = run("export", path, code=1)
    assert f"The store {path}/frontier is damaged" in done.stderr
