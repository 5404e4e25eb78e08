"""What is said to be crawled next is what is crawled next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from scrapy import Request, Spider

from scrapy_altsched.frontier import Entry, Options, Order
from scrapy_altsched.frontier.queue.order import encode_int, size_of_int
from scrapy_altsched.frontier.shared.keys import Keys, slot_id_of
from scrapy_altsched.requests.codec import encode_request
from scrapy_altsched.requests.portable import PortableCodec

from ..crawls import altsched, run_python
from ..frontiers import OWNER, DiskKind, lease_from, name_of, names, take, take_all
from ..servers import RedisServer
from ..shared import SettledShared

SPIDER = Spider(OWNER)
ORDERS = [Order(), Order("slots", "fifo"), Order("one", "lifo")]


def request_of(number: int) -> Request:
    host = f"host{number % 3}.example"
    return Request(f"http://{host}/{number}", priority=number % 4, meta={"depth": number % 5})


def entry(number: int, payload: bytes, **more: Any) -> Entry:
    request = request_of(number)
    slot = f"host{number % 3}.example"
    return Entry(request.url.encode(), slot, request.priority, payload=payload, **more)


def fill(frontier: Any, encode: Any, count: int = 60) -> None:
    for number in range(count):
        frontier.add(entry(number, encode(request_of(number)), start=number % 7 == 0))


def encode(request: Request) -> bytes:
    return encode_request(request, SPIDER)


def peek(*arguments: object) -> list[dict[str, Any]]:
    done = altsched("peek", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def urls(*arguments: object) -> list[str]:
    return [request["url"] for request in peek(*arguments)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_job_goes_on_in_the_order_that_is_shown(disk: DiskKind, order: Order) -> None:
    options = Options(order=order)
    frontier = disk.open(options)
    fill(frontier, encode)
    frontier.close()
    shown, first = urls(disk.path, "-n", "100"), peek(disk.path, "-n", "1")
    of_slot = urls(disk.path, "-n", "100", "--slot", "host1.example")
    frontier = disk.open(options)
    assert shown == names(take_all(frontier))
    assert len(shown) == 60
    number = int(shown[0].rpartition("/")[2])
    expected = {
        "url": shown[0],
        "priority": number % 4,
        "slot": f"host{number % 3}.example",
        "depth": number % 5,
        "found_on": None,
        "fingerprint": shown[0].encode().hex(),
        "rests": False,
        "rests_until": None,
    }
    assert first == [expected]
    assert of_slot == [url for url in shown if "//host1." in url]
    assert len(of_slot) == 20


def test_what_a_running_crawl_has_in_flight_is_left_out(disk: DiskKind) -> None:
    frontier = disk.open()
    fill(frontier, encode, 9)
    frontier.commit()
    everything = urls(disk.path)
    taken = {name_of(take(frontier)) for _ in range(4)}
    assert set(urls(disk.path)) == set(everything) - taken
    assert len(everything) == 9
    # Once its process has died they are to be crawled again.
    disk.crash(frontier)
    module = "scrapy_altsched.frontier.store.holder"
    script = f"from {module} import Holder; print(Holder.current().encode().decode())"
    dead = run_python("-c", script)
    assert dead.returncode == 0, dead.stderr
    (disk.path / "altsched.lock").write_text(dead.stdout)
    assert urls(disk.path) == everything


def test_requests_are_shown_in_a_table(disk: DiskKind) -> None:
    frontier = disk.open()
    frontier.add(entry(8, encode(request_of(8))))
    frontier.add(Entry(b"odd", "host.example", payload=b"damaged"))
    frontier.close()
    table = altsched("peek", disk.path).stdout
    assert [line.split() for line in table.splitlines()] == [
        ["URL", "priority", "download", "slot", "depth"],
        ["(cannot", "be", "read:", b"odd".hex() + ")", "0"],
        ["http://host2.example/8", "0", "host2.example", "3"],
    ]


def test_with_nothing_pending_it_says_so(disk: DiskKind) -> None:
    disk.open().close()
    assert altsched("peek", disk.path).stdout == "Nothing is pending.\n"
    of_slot = altsched("peek", disk.path, "--slot", "a b").stdout
    every = f"scrapy altsched peek {disk.path}"
    assert of_slot == f"Nothing is pending in download slot 'a b'; of all slots: {every}\n"
    assert peek(disk.path) == []


@pytest.fixture(params=ORDERS, ids=str)
def shared(
    request: pytest.FixtureRequest, server: RedisServer, client: redis.Redis
) -> Iterator[SettledShared]:
    """A worker of the shared crawl "test"."""
    frontier = SettledShared(Options(order=request.param), client)
    about = {"spider": OWNER, "order": str(request.param), "fingerprints": ""}
    client.hset(Keys("test").meta, "about", json.dumps(about))
    yield frontier
    frontier.close()


def test_a_shared_crawl_goes_on_in_the_order_that_is_shown(
    shared: SettledShared, server: RedisServer
) -> None:
    place = "--shared", "test", "-s", f"REDIS_PORT={server.port}", "-n", "100"
    assert peek(*place) == []
    fill(shared, PortableCodec(SPIDER).encode)
    before = server.client().dbsize(), server.client().hgetall(Keys("test").meta)
    shown = peek(*place)
    of_slot = urls(*place, "--slot", "host1.example")
    assert before == (server.client().dbsize(), server.client().hgetall(Keys("test").meta))
    found = [name_of(lease) for _ in range(60) if (lease := lease_from(shared)) is not None]
    assert [request["url"] for request in shown] == found
    assert of_slot == [url for url in found if "//host1." in url]
    assert len(of_slot) == 20
    number = int(found[0].rpartition("/")[2])
    assert (shown[0]["priority"], shown[0]["depth"]) == (number % 4, number % 5)
    assert peek(*place) == []


def test_slots_of_a_shared_crawl_that_rest_come_last(
    server: RedisServer, client: redis.Redis
) -> None:
    frontier = SettledShared(Options(), client)
    about = {"spider": OWNER, "order": "slots/lifo/fifo", "fingerprints": ""}
    keys = Keys("test")
    client.hset(keys.meta, "about", json.dumps(about))
    fill(frontier, PortableCodec(SPIDER).encode, 6)
    for slot, until in (("host0.example", "+inf"), ("host1.example", 1_700_000_000_000)):
        client.zrem(keys.ready, slot_id_of(slot))
        client.zadd(keys.resting, {slot_id_of(slot): until})
    place = "--shared", "test", "-s", f"REDIS_PORT={server.port}"
    shown = peek(*place)
    assert [request["slot"] for request in shown] == [
        f"host{number}.example" for number in (2, 2, 1, 1, 0, 0)
    ]
    at = "2023-11-14T22:13:20+00:00"
    assert [(it["rests"], it["rests_until"]) for it in shown[::2]] == [
        (False, None),
        (True, at),
        (True, None),
    ]
    table = altsched("peek", *place).stdout
    assert table.count("2023-11-14 22:13:20") == 2
    assert table.count("a download is over") == 2
    (one,) = peek(*place, "--slot", "host1.example", "-n", "1")
    assert one["rests_until"] == at
    frontier.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a JOBDIR, or a crawl with --shared KEY"),
        (["{job}", "-n", "0"], "--number must be 1 or more"),
        (["{job}", "--shared", "x"], "not both"),
        (["{job}", "-n", "x"], "invalid int value: 'x'"),
    ],
)
def test_arguments_that_make_no_sense(
    one_disk: DiskKind, arguments: list[str], message: str
) -> None:
    one_disk.open().close()
    done = altsched("peek", *(word.format(job=one_disk.path) for word in arguments))
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_no_job_is_said_to_be_none(one_disk: DiskKind) -> None:
    one_disk.path.mkdir()
    done = altsched("peek", one_disk.path)
    assert done.returncode == 1
    assert "holds no job of scrapy_altsched" in done.stderr
    one_disk.path.rmdir()


@pytest.mark.parametrize(
    "number",
    [0, 1, -1, 255, 256, -256, -257, 1 << 1007, 1 << 1008, -1 << 1008, 1 << 5000, -1 << 5000],
)
def test_an_encoded_int_says_how_long_it_is(number: int) -> None:
    assert size_of_int(encode_int(number) + b"\xff\0more") == len(encode_int(number))
