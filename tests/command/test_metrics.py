"""``scrapy altsched status --openmetrics``, and what the documentation does with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import parser as older
from prometheus_client.openmetrics import parser as newer

from scrapy_altsched.command.metrics import openmetrics
from scrapy_altsched.command.standing import Answer
from scrapy_altsched.frontier.store.holder import Holder
from scrapy_altsched.frontier.store.status import read_status

from ..crawls import PROJECT, PYTHONPATH, Crawl, altsched, run_python
from ..docs.test_docs import code_blocks, first_column
from ..servers import RedisServer
from ..sites import Site, random_graph

GRAPH = random_graph(30, 3, 1)
STOPPED = {"CLOSESPIDER_PAGECOUNT": 5, "CONCURRENT_REQUESTS": 1}
Labels = dict[str, str]


def samples(text: str) -> dict[str, list[tuple[Labels, float]]]:
    """Labels and values by the names of samples, as a strict reader of OpenMetrics has them."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for metric in newer.text_string_to_metric_families(text):
        assert metric.name.startswith("altsched_")
        assert metric.documentation.endswith(".")
        for sample in metric.samples:
            assert (metric.type == "counter") == sample.name.endswith("_total")
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def look(*arguments: object) -> dict[str, list[tuple[Labels, float]]]:
    done = altsched("status", *arguments, "--openmetrics")
    assert done.returncode == 0, done.stderr
    return samples(done.stdout)


def test_a_job(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**STOPPED) == 0
    found = look(crawl.jobdir)
    noted = read_status(crawl.jobdir)
    assert noted is not None
    counts, labels = noted.standing.counts, {"spider": "pages", "jobdir": str(crawl.jobdir)}
    states = {it[0].pop("state"): it[1] for it in found.pop("altsched_state")}
    assert states == {
        **dict.fromkeys(("running", "closing", "finished", "unsaved", "died"), 0),
        "stopped": 1,
    }
    values = {name.removeprefix("altsched_"): value for name, ((_, value),) in found.items()}
    assert all(it[0] == labels for rows in found.values() for it in rows)
    assert values.pop("size_bytes") > 1_000
    assert values == {
        "accepted_requests_total": counts.accepted,
        "done_requests_total": counts.done,
        "pending_requests": counts.pending,
        "in_flight_requests": 0,
        "delayed_requests": 0,
        "failed_requests": 0,
        "dead_requests": 0,
        "seen_pages": counts.seen,
        "duplicate_requests_total": noted.standing.duplicates,
        "held_slots": 0,
        "runs_total": 1,
        "commits_total": noted.commit,
        "start_timestamp_seconds": noted.standing.began,
        "last_commit_timestamp_seconds": noted.standing.at,
    }
    # While it runs there are rates, too.
    alive = replace(noted, state="running", holder=Holder.current().encode().decode())
    standing = replace(noted.standing, found_rate=1.5, ended_rate=3.0)
    (crawl.jobdir / "altsched.status").write_bytes(replace(alive, standing=standing).encode())
    found = look(crawl.jobdir)
    assert found["altsched_found_requests_per_second"] == [(labels, 1.5)]
    assert found["altsched_ended_requests_per_second"] == [(labels, 3.0)]
    (crawl.jobdir / "altsched.status").unlink()
    # Of what no run has told, little is known.
    assert set(look(crawl.jobdir)) == {
        *("altsched_state", "altsched_accepted_requests_total", "altsched_done_requests_total"),
        *("altsched_commits_total", "altsched_size_bytes"),
    }


def test_a_shared_crawl(tmp_path: Path, server: RedisServer) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        crawl.run(ALTSCHED_SHARED=1, REDIS_PORT=server.port, JOBDIR=None)
    on = ("--shared", "pages", "-s", f"REDIS_PORT={server.port}")
    found, told = look(*on), json.loads(altsched("status", *on, "--json").stdout)
    labels = {"spider": "pages", "crawl": "pages"}
    assert ({**labels, "state": "finished"}, 1) in found["altsched_state"]
    assert found["altsched_done_requests_total"] == [(labels, 30)]
    assert found["altsched_seen_pages"] == [(labels, 30)]
    assert found["altsched_workers"] == [(labels, len(told["workers"]))]
    assert found["altsched_size_bytes"] == [(labels, told["bytes"])]


def everything() -> Answer:
    """An answer that has all that can be told, of a job and of a shared crawl."""
    names = ("accepted", "done", "pending", "in_flight", "delayed", "failed", "dead", "seen")
    more = ("duplicates", "run", "commit", "bytes", "began", "found_rate", "ended_rate")
    return {
        "kind": "job",
        "target": 'a\udcffb\n"c\\',
        "spider": "s",
        "state": "running",
        **dict.fromkeys(more, 1),
        "counts": dict.fromkeys(names, 2),
        "held": [{}],
        "workers": [{}, {}],
        "resting": {"slots": 3},
        "committed": 4e9,
    }


def test_each_metric_is_documented() -> None:
    assert set(samples(openmetrics(everything()))) == set(first_column("monitoring.rst", "Metrics"))


def test_any_name_can_be_a_label() -> None:
    found = samples(openmetrics(everything()))
    assert found["altsched_held_slots"] == [({"spider": "s", "jobdir": 'a\\udcffb\n"c\\'}, 1)]


def test_rates_of_long_ago_are_not_told() -> None:
    assert "per_second" not in openmetrics({**everything(), "committed": 1e9})


def test_the_recipe_for_node_exporter(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run() == 0
    (recipe,) = code_blocks("monitoring.rst", "sh")
    to = tmp_path / "textfile"
    to.mkdir()
    recipe = recipe.replace("/var/lib/node_exporter/textfile", str(to))
    command = recipe.replace("crawls/books", str(crawl.jobdir))
    assert command != recipe

    def run(command: str) -> int:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "PATH": path}
        done = subprocess.run(["sh", "-c", command], cwd=PROJECT, env=environment, timeout=120)
        return done.returncode

    assert run(command) == 0
    (written,) = to.iterdir()
    assert written.name == "books.prom"
    text = written.read_text()
    # That is how node exporter reads it.
    values = {
        sample.name: sample.value
        for metric in older.text_string_to_metric_families(text)
        for sample in metric.samples
    }
    assert values["altsched_done_requests_total"] == 30
    assert values["altsched_pending_requests"] == 0
    assert {line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")} == {
        *("counter", "gauge")
    }
    # What cannot be told leaves the old file.
    assert run(recipe) == 1
    assert written.read_text() == text


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with Site(GRAPH) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**STOPPED) == 0
    script = "import sys; sys.modules['prometheus_client'] = None; import scrapy.cmdline as it"
    arguments = ("altsched", "status", str(crawl.jobdir), "--openmetrics")
    done = run_python("-c", f"{script}; it.execute(['scrapy', *sys.argv[1:]])", *arguments)
    assert done.returncode == 1
    assert done.stderr == (
        "scrapy altsched status: --openmetrics needs the package 'prometheus_client', which is not"
        " installed: run pip install scrapy-altsched[metrics]\n"
    )
    assert done.stdout == ""


@pytest.mark.parametrize("more", [("--json",), ("--slots",), ("--slots", "5")])
def test_arguments_that_make_no_sense(more: tuple[str, ...]) -> None:
    done = altsched("status", "job", "--openmetrics", *more)
    assert done.returncode == 2
    assert "--openmetrics goes with neither --json nor --slots" in done.stderr
