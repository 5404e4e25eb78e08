"""A job that goes on under another Scrapy, and another Python where there is one, and back."""

from __future__ import annotations

import configparser
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import scrapy

from scrapy_altsched.frontier.store.engines import Choice

from ..crawls import Crawl
from ..sites import Site, random_graph
from ..stores import BY_ENGINE

ROOT = Path(__file__).parents[2]
OLDEST = "2.13.4"
PAGES = 80


def requirements() -> list[str]:
    """What this package needs, besides Scrapy."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup["options"]["install_requires"].split("\n")
    return [line for line in lines if line and not line.startswith("scrapy ")]


def pythons() -> Iterator[str]:
    """Interpreters of other supported versions, and this one."""
    here = sys.version_info.minor
    neighbours = Path(sys.base_prefix).parent
    for minor in (number for number in (13, 12, 11, 10) if number != here):
        name = f"python3.{minor}"
        for path in (shutil.which(name), *neighbours.glob(f"*/bin/{name}")):
            runs = [str(path), "-c", "import ensurepip, venv"]
            if path and subprocess.run(runs, capture_output=True, check=False).returncode == 0:
                yield str(path)
    yield sys.executable


def another_environment(directory: Path) -> Path:
    """The interpreter of an environment with the oldest Scrapy, or with the newest beside it."""
    wanted = "scrapy" if scrapy.__version__ == OLDEST else f"scrapy=={OLDEST}"
    run = {"check": True, "capture_output": True, "text": True, "timeout": 250}
    subprocess.run([next(pythons()), "-m", "venv", directory], **run)  # type: ignore[call-overload]
    python = directory / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--prefer-binary", wanted]
    subprocess.run([*install, *requirements()], **run)  # type: ignore[call-overload]
    return python


def versions(crawl: Crawl) -> tuple[str, str]:
    """Scrapy's and Python's, of the last run."""
    found = re.search(r"Scrapy (\S+) started", crawl.log)
    python = re.search(r"'?Python'?:? '?(\d+\.\d+)", crawl.log)
    assert found is not None
    assert python is not None
    return found[1], python[1]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return another_environment(tmp_path_factory.mktemp("other"))


@BY_ENGINE
def test_a_job_goes_on_under_another_version_and_back(
    tmp_path: Path, other: Path, engine: Choice
) -> None:
    graph = random_graph(PAGES, 5, 2)
    seen = []
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", engine=engine)
        for python in (other, sys.executable, other, sys.executable):
            crawl.python = python
            kill = {"KILL_AT": 15, "KILL_ON": "item", "CONCURRENT_REQUESTS": 4}
            assert crawl.run(**kill) == -signal.SIGKILL, crawl.log
            seen.append(versions(crawl))
        crawl.python = other
        assert crawl.run() == 0
        assert "Resuming crawl (" in crawl.log
        assert crawl.stat("altsched/dead") == 0
        assert "is finished" in crawl.log
        assert set(site.hits) == set(graph)
        assert set(crawl.item_paths()) == set(graph)
    print(f"versions: {seen}")
    assert seen[0] == seen[2] != seen[1] == seen[3]
    assert seen[0][0] != seen[1][0]
    assert scrapy.__version__ == seen[1][0]
