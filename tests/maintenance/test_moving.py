"""A crawl that is moved is the same crawl, wherever it goes by way of."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import redis

from scrapy_altsched.errors import InputError, SharedError
from scrapy_altsched.frontier import Entry, Options, Order, Verdict
from scrapy_altsched.frontier.content import Part
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.shared.content import CrawlReader
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.seen import BEGINNINGS, FINGERPRINTS, KEY_MAKERS
from scrapy_altsched.maintenance.lines import to_lines
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import repair
from scrapy_altsched.requests.codec import PICKLED, wrap
from scrapy_altsched.requests.identity import NOTE

from ..clocks import ManualClock
from ..frontiers import OWNER, problems_of, take, take_all
from ..moving import (
    content_of,
    crawl_lines_of,
    entry_of,
    fill,
    fill_from_lines,
    fill_server,
    job_at,
    lines_of,
    make_job,
    parts_of,
)
from ..servers import RedisServer
from ..shared import SettledShared
from ..stores import BY_ENGINE, INSTALLED

ORDERS = [Order(), Order("one", "fifo", None), Order("slots", "lifo", "lifo")]


def open_job(path: Path, options: Options | None = None) -> LocalFrontier:
    options = replace(options or Options(), clock=ManualClock())
    frontier = open_frontier(path, OWNER, options)
    assert isinstance(frontier, LocalFrontier)
    return frontier


def rest_of(frontier: LocalFrontier) -> list[str]:
    """What is left to crawl, in order."""
    found = []
    for lease in take_all(frontier):
        found.append(lease.entry.fingerprint.hex())
        frontier.finish(lease)
    return found


@BY_ENGINE
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_an_exported_job_is_imported_as_it_was(
    tmp_path: Path, engine: Choice, order: Order
) -> None:
    make_job(tmp_path / "job", engine, order)
    lines = lines_of(tmp_path / "job")
    states = {json.loads(line).get("state") for line in lines}
    assert states == {None, "pending", "delayed", "failed", "dead"}
    other = INSTALLED[-1] if engine == INSTALLED[0] else INSTALLED[0]
    fill_from_lines(tmp_path / "copy", lines, other)
    assert lines_of(tmp_path / "copy") == lines
    taken = []
    for name in ("job", "copy"):
        frontier = open_job(tmp_path / name, Options(order=order))
        assert problems_of(frontier) == []
        taken.append(rest_of(frontier))
        frontier.close()
    assert taken[0] == taken[1] != []


@BY_ENGINE
def test_a_job_goes_to_a_server_and_back(
    tmp_path: Path, client: redis.Redis, engine: Choice
) -> None:
    make_job(tmp_path / "job", engine)
    lines = lines_of(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        fill_server(client, "crawl", content, Order())
    there = crawl_lines_of(client, "crawl")
    assert parts_of(there) == parts_of(lines)
    fill(tmp_path / "back", CrawlReader(client, "crawl").content(NOTE), engine)
    back = lines_of(tmp_path / "back")
    assert parts_of(back) == parts_of(lines)
    seen = [{line for line in it if '"seen": ' in line[:10]} for it in (lines, back)]
    assert seen[0] <= seen[1]
    frontiers = [open_job(tmp_path / name) for name in ("job", "back")]
    assert problems_of(frontiers[1]) == []
    for frontier in frontiers:
        # Of two start requests that are equal and not filtered, one was made before.
        verdicts = [frontier.add(entry_of(0, from_start=True, unique=False)) for _ in range(2)]
        assert verdicts == [Verdict.STARTED, Verdict.ADDED]
    assert rest_of(frontiers[0]) == rest_of(frontiers[1]) != []
    for frontier in frontiers:
        frontier.close()


def test_what_workers_of_a_server_get_is_what_was_left(tmp_path: Path, client: redis.Redis) -> None:
    make_job(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        fill_server(client, "test", content, Order())
    worker = SettledShared(Options(), client)
    frontier = open_job(tmp_path / "job")
    assert worker.counts() == frontier.counts()
    got = {lease.entry.fingerprint for lease in take_all(worker)}
    assert got == {bytes.fromhex(name) for name in rest_of(frontier)}
    worker.abandon()
    frontier.close()


@BY_ENGINE
def test_requests_that_waited_in_one_queue_for_all_get_download_slots_elsewhere(
    tmp_path: Path, client: redis.Redis, engine: Choice
) -> None:
    make_job(tmp_path / "job", engine, Order("one", "fifo", None))
    lines = lines_of(tmp_path / "job")
    found = [json.loads(line) for line in lines if '"state": ' in line]
    assert {line["slot"] for line in found} == {f"host{number}.test" for number in range(7)}
    with job_at(tmp_path / "job") as content:
        fill_server(client, "straight", content, Order())
    fill_server(client, "crawl", content_of(lines), Order())
    # As an earlier version has exported it.
    empty = [re.sub('"slot": "[^"]*"', '"slot": ""', line) for line in lines]
    fill_server(client, "earlier", content_of(empty), Order())
    for key in ("straight", "crawl", "earlier"):
        assert client.zcard(Keys(key).ready) == 7


# What cannot be moved


def lines_with(lines: list[str], number: int, **changes: object) -> list[str]:
    """These lines, with other values in the one of this number."""
    changed = list(lines)
    changed[number - 1] = json.dumps({**json.loads(lines[number - 1]), **changes}) + "\n"
    return changed


def fill_server_from_lines(client: redis.Redis, lines: list[str]) -> None:
    fill_server(client, "crawl", content_of(lines), Order())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("exported") / "job"
    make_job(path)
    return lines_of(path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: it[:-1], "was cut short: it ends after line {last}, and lacks the last one"),
        (lambda it: it[:9], "was cut short: it ends after line 9,"),
        (lambda it: [*it[:9], it[9][:20]], r"Line 10 of the file cannot be read \(JSONDecodeError"),
        (
            lambda it: [*it[:9], *it[10:]],
            "its last line says that {last} lines come before it",
        ),
        (lambda it: [*it, it[4]], "but others come after it"),
        (lambda it: [], "the file is no exported crawl: its first line does not say so"),
        (lambda it: it[1:], "the file is no exported crawl"),
        (lambda it: lines_with(it, 1, version=2), "exported by a newer version of scrapy_altsched"),
        (lambda it: lines_with(it, 1, seen="beyond"), "Line 1 of .* an unknown kind of keys"),
        (lambda it: lines_with(it, 1, counters={}), r"Line 1 of .* \(KeyError: 'accepted'\)"),
        (
            lambda it: lines_with(it, 4, priority="high"),
            "Line 4 of .* priority is 'high'",
        ),
        (lambda it: lines_with(it, 1, notes={"spider.state": "N."}), "Line 1 of .* a pickle"),
        (lambda it: lines_with(it, 1, notes={"feeds": ""}), "Line 1 of .*'feeds' is no note of an"),
        (lambda it: lines_with(it, 4, state="lost"), "Line 4 of .*KeyError: 'lost'"),
        (lambda it: lines_with(it, 4, sequence=-1), "Line 4 of .* its sequence number is none"),
        (lambda it: lines_with(it, 4, fingerprint="xy"), "Line 4 of the file cannot be read"),
        (lambda it: lines_with(it, 4, request={"$stored": "gA=="}), "it holds a pickle"),
        (lambda it: lines_with(it, 4, request={"url": {"$who": 1}}), "Line 4 of .*KeyError"),
        (lambda it: [*it[:9], "[" * 100_000 + "\n"], "Line 10 of .*RecursionError"),
        (lambda it: [*it[:9], "[]\n"], "Line 10 of .* it is no part of a crawl"),
    ],
)
def test_lines_that_are_not_as_they_were_exported_leave_no_job(
    tmp_path: Path,
    client: redis.Redis,
    exported: list[str],
    damage: Callable[[list[str]], list[str]],
    message: str,
) -> None:
    lines, pattern = damage(exported), message.format(last=len(exported) - 1)
    with pytest.raises(InputError, match=pattern):
        fill_from_lines(tmp_path / "job", lines)
    assert {path.name for path in (tmp_path / "job").glob("*")} <= {"altsched.lock"}
    with pytest.raises(InputError, match=pattern):
        fill_server_from_lines(client, lines)
    assert client.dbsize() == 0


class Unusual:
    """A value that JSON has no word for."""


def test_what_json_cannot_carry_is_named_and_exported_as_it_is_stored_if_that_is_wanted(
    tmp_path: Path,
) -> None:
    frontier = open_frontier(tmp_path / "job", OWNER)
    fields = {"url": "http://a.test/unusual", "meta": {"item": Unusual()}}
    payload = wrap(pickle.dumps(fields, 4), PICKLED)
    frontier.add(Entry(b"1", "a.test", payload=payload))
    frontier.add(Entry(b"2", "a.test", payload=b"\x01 damaged"))
    frontier.close()
    with pytest.raises(InputError) as caught:
        lines_of(tmp_path / "job")
    assert "The pending request " in str(caught.value)
    assert "so nothing was exported. With --pickle" in str(caught.value)
    with job_at(tmp_path / "job") as content:
        lines = list(to_lines(content, as_stored=True))
    with pytest.raises(InputError, match=r"Line 2 of the file .* --trust-pickle"):
        fill_from_lines(tmp_path / "copy", lines)
    fill(tmp_path / "copy", content_of(lines, trusted=True))
    with job_at(tmp_path / "copy") as content:
        assert list(to_lines(content, as_stored=True)) == lines


def test_a_server_that_has_a_crawl_of_that_name_keeps_it(
    tmp_path: Path, client: redis.Redis
) -> None:
    make_job(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        fill_server(client, "crawl", content, Order())
    before = crawl_lines_of(client, "crawl")
    refused = pytest.raises(SharedError, match=r"There is a shared crawl 'crawl' .* already")
    with job_at(tmp_path / "job") as content, refused:
        fill_server(client, "crawl", content, Order())
    assert crawl_lines_of(client, "crawl") == before


def test_a_crawl_that_is_only_half_imported_is_none_to_anyone(
    tmp_path: Path, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_altsched.frontier.shared.content._WRITTEN_AT_ONCE", 10)
    make_job(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        parts = iter(content.parts)

        def halfway() -> Iterator[Part]:
            yield from islice(parts, 70)
            assert client.zcard(Keys("crawl").pending)
            with pytest.raises(SharedError, match=r"'crawl' .* is being imported, or an import"):
                crawl_lines_of(client, "crawl")
            raise KeyboardInterrupt

        assert content.total is not None
        with pytest.raises(KeyboardInterrupt):
            fill_server(client, "crawl", content.with_parts(halfway()), Order())
    assert client.dbsize() == 0


def test_a_crawl_that_workers_change_while_it_is_read_is_not_exported(
    tmp_path: Path, client: redis.Redis
) -> None:
    make_job(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        fill_server(client, "test", content, Order())
    worker = SettledShared(Options(), client)
    content = CrawlReader(client, "test").content(NOTE)
    lines = to_lines(content, as_stored=False)
    next(lines)
    worker.finish(take(worker))
    with pytest.raises(SharedError, match="Workers have changed the shared crawl 'test'"):
        list(lines)
    worker.abandon()


def test_what_a_stopped_worker_has_in_flight_is_pending_in_the_copy(
    tmp_path: Path, server: RedisServer, client: redis.Redis
) -> None:
    make_job(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        fill_server(client, "test", content, Order())
    before = crawl_lines_of(client, "test")
    worker = SettledShared(Options(), server.client())
    leased = take(worker)
    worker.abandon()
    lines = crawl_lines_of(client, "test")
    assert parts_of(lines) == parts_of(before)
    assert any(leased.entry.fingerprint.hex() in line for line in lines)


def test_a_crawl_that_is_deleted_while_it_is_imported_does_not_come_back(
    tmp_path: Path, client: redis.Redis
) -> None:
    make_job(tmp_path / "job")
    with job_at(tmp_path / "job") as content:
        parts = list(content.parts)

        def deleted() -> Iterator[Part]:
            yield from parts
            CrawlReader(client, "crawl").drop()

        with pytest.raises(SharedError, match="was deleted while it was being imported"):
            fill_server(client, "crawl", content.with_parts(deleted()), Order())
    assert client.exists(Keys("crawl").meta) == 0


@pytest.mark.parametrize("form", ["fingerprints", "beginnings"])
def test_what_is_kept_of_fingerprints_moves_with_a_crawl(
    tmp_path: Path, client: redis.Redis, exported: list[str], form: str
) -> None:
    known = [entry_of(number) for number in range(65) if number % 5 or number == 60]
    make = KEY_MAKERS[BEGINNINGS if form == "beginnings" else FINGERPRINTS]
    keys = [make(entry.fingerprint) for entry in known]
    others = [line for line in exported[1:-1] if not line.startswith('{"seen"')]
    lines = [*lines_with(exported[:1], 1, seen=form), *others]
    lines += [json.dumps({"seen": key.hex()}) + "\n" for key in sorted(keys)]
    lines.append(json.dumps({"lines": len(lines)}) + "\n")
    fill_from_lines(tmp_path / "job", lines)
    assert sorted(lines_of(tmp_path / "job")) == sorted(lines)
    fill_server_from_lines(client, lines)
    fill(tmp_path / "back", CrawlReader(client, "crawl").content(NOTE))
    for name in ("job", "back"):
        before = lines_of(tmp_path / name)
        repair(tmp_path / name, OWNER, lambda _: True)
        assert lines_of(tmp_path / name)[1:] == before[1:]
        frontier = open_job(tmp_path / name)
        assert problems_of(frontier) == []
        assert {frontier.add(entry) for entry in known} == {Verdict.SEEN}
        assert frontier.add(entry_of(66)) is Verdict.ADDED
        frontier.close()
