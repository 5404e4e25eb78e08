"""Job directories that are deleted, or replaced by another job's, under a running crawl."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from scrapy_altsched.frontier.store.engines import Choice

from ..crawls import Crawl, altsched, assert_complete, listing
from ..processes import Process
from ..sites import Site, random_graph
from ..stores import BY_ENGINE

GRAPH = random_graph(300, 4, 7)


def check(jobdir: Path) -> str:
    done = altsched("check", jobdir)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_until(crawl: Crawl, site: Site, pages: int, rng: random.Random) -> Process:
    """A crawl at a random moment after it has fetched so many pages."""
    process = crawl.start()
    hits = site.hits.total() + pages
    site.wait_for(lambda site: site.hits.total() >= hits)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.random() / 10)
    assert process.poll() is None, crawl.log
    return process


def stop(crawl: Crawl, process: Process) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert "is not finished" in crawl.log


def kill(crawl: Crawl, process: Process) -> None:
    crawl.kill(process)


def swap(jobdir: Path, other: Path) -> None:
    """Move the job away, and another one to its place."""
    jobdir.rename(jobdir.with_name("moved"))
    shutil.copytree(other, jobdir)


def replace_content(jobdir: Path, other: Path) -> None:
    """Delete the job's files, and copy those of another job into the same directory."""
    delete(jobdir, keep=True)
    shutil.copytree(other, jobdir, dirs_exist_ok=True)


def write_over(jobdir: Path, other: Path) -> None:
    """Copy another job's files into the directory, as ``rsync --delete`` does."""
    for path in sorted(other.rglob("*")):
        copy = jobdir / path.relative_to(other)
        if path.is_dir():
            copy.mkdir(exist_ok=True)
        else:
            partial = copy.with_name("." + copy.name)
            shutil.copy2(path, partial)
            partial.replace(copy)
    for path in sorted(jobdir.rglob("*")):
        if path.is_file() and not (other / path.relative_to(jobdir)).exists():
            path.unlink(missing_ok=True)


def delete(jobdir: Path, *, keep: bool = False) -> None:
    """Delete it although files are made in it meanwhile."""
    while jobdir.exists() and (any(jobdir.iterdir()) or not keep):
        with suppress(OSError):
            for path in jobdir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not keep:
                jobdir.rmdir()


Way = Callable[[Path, Path], None]
End = Callable[[Crawl, Process], None]


def replace_under_a_crawl(
    tmp_path: Path, engine: Choice, way: Way, end: End, spider: str, seed: str
) -> Crawl:
    """The crawl whose job is replaced; the job that takes its place is crawled to its end."""
    rng = random.Random(seed)
    (tmp_path / "other").mkdir()
    with Site(GRAPH) as site:
        other = Crawl(tmp_path / "other", spider, f"{site.url}/0", engine=engine)
        end(other, run_until(other, site, rng.randrange(20, 120), rng))
        check(other.jobdir)
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = run_until(crawl, site, rng.randrange(10, 150), rng)
        way(crawl.jobdir, other.jobdir)
        before = listing(crawl.jobdir)
        process.communicate(timeout=60)
        assert "Traceback" not in crawl.log
        assert "(jobdir_lost)" in crawl.log
        assert "continues in memory" not in crawl.log
        assert "is finished" not in crawl.log
        assert listing(crawl.jobdir) == before
        check(crawl.jobdir)
        other.jobdir = crawl.jobdir
        assert other.run() == 0
        assert_complete(other, site, set(GRAPH))
        assert "rolled back" not in other.log
        check(other.jobdir)
    return crawl


@BY_ENGINE
@pytest.mark.parametrize("way", [swap, replace_content, write_over])
def test_a_job_that_takes_the_place_of_a_running_one_is_left_alone(
    tmp_path: Path, way: Way, engine: Choice
) -> None:
    crawl = replace_under_a_crawl(tmp_path, engine, way, stop, "pages", way.__name__)
    if way is swap:
        moved = tmp_path / "moved"
        assert f"What was committed before is safe in {moved}:" in crawl.log
        check(moved)
    else:
        assert "What was committed before is lost with it" in crawl.log
    assert "What was committed before is safe;" not in crawl.log


@pytest.mark.slow
@pytest.mark.parametrize("spider", ["pages", "async"])
@pytest.mark.parametrize("end", [stop, kill])
@pytest.mark.parametrize("way", [swap, replace_content, write_over])
@BY_ENGINE
def test_a_job_that_takes_the_place_of_a_running_one_at_any_moment_is_left_alone(
    tmp_path: Path, way: Way, end: End, spider: str, engine: Choice
) -> None:
    seed = f"{way.__name__} {end.__name__} {spider} {engine}"
    replace_under_a_crawl(tmp_path, engine, way, end, spider, seed)


def restore_backup(tmp_path: Path, engine: Choice, seed: int) -> None:
    """A job runs on after a backup of it was made, which is then put in its place."""
    rng = random.Random(seed)
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        rng.choice([stop, kill])(crawl, run_until(crawl, site, rng.randrange(20, 80), rng))
        backup = tmp_path / "backup"
        shutil.copytree(crawl.jobdir, backup)
        process = run_until(crawl, site, rng.randrange(10, 60), rng)
        rng.choice([swap, replace_content, write_over])(crawl.jobdir, backup)
        process.communicate(timeout=60)
        assert "(jobdir_lost)" in crawl.log
        assert {name: content for name, (_, content) in listing(crawl.jobdir).items()} == {
            name: content for name, (_, content) in listing(backup).items()
        }
        check(crawl.jobdir)
        assert crawl.run() == 0
        assert_complete(crawl, site, set(GRAPH))


@BY_ENGINE
def test_a_backup_that_takes_the_place_of_its_job_is_left_alone(
    tmp_path: Path, engine: Choice
) -> None:
    restore_backup(tmp_path, engine, 1)


@pytest.mark.slow
@BY_ENGINE
@pytest.mark.parametrize("seed", range(10))
def test_a_backup_that_takes_the_place_of_its_job_at_any_moment_is_left_alone(
    tmp_path: Path, engine: Choice, seed: int
) -> None:
    restore_backup(tmp_path, engine, seed)


@pytest.mark.slow
@BY_ENGINE
@pytest.mark.parametrize("seed", range(10))
def test_a_job_deleted_at_any_moment_leaves_nothing_and_starts_over(
    tmp_path: Path, engine: Choice, seed: int
) -> None:
    rng = random.Random(seed)
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        process = run_until(crawl, site, rng.randrange(1, 200), rng)
        delete(crawl.jobdir)
        process.communicate(timeout=60)
        assert "(jobdir_lost)" in crawl.log
        assert "What was committed before is lost with it" in crawl.log
        assert not crawl.jobdir.exists()
        assert crawl.run() == 0
        assert_complete(crawl, site, set(GRAPH))
        check(crawl.jobdir)
