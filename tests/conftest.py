"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from scrapy.utils.reactor import install_reactor, is_reactor_installed

from .disks import Disk, small_disk_at
from .frontiers import DiskKind
from .reach import starts_process
from .servers import RedisServer
from .stores import INSTALLED

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

# Crawlers in this process want it; the crawls proper run in processes of their own.  Which one it
# is for both, tox.ini says.
if (reactor := os.environ.get("REACTOR", ASYNCIO)) != "none" and not is_reactor_installed():
    install_reactor(reactor)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``long`` what starts a process of its own, but for the crawls marked ``smoke``."""
    missing = pytest.mark.skip(reason="it is about RocksDB, and rocksdict is not installed")
    for item in items:
        if item.get_closest_marker("rocksdb") and "rocksdb" not in INSTALLED:
            item.add_marker(missing)
        if isinstance(item, pytest.Function) and not item.get_closest_marker("smoke"):
            name = item.function.__name__
            if item.get_closest_marker("slow") or starts_process(item.module.__name__, name):
                item.add_marker("long")
        if item.get_closest_marker("long") and "sqlite" in _parameters(item):
            # What takes a process is tried with one engine where all is as old as is supported:
            # that one whose own versions differ there.
            item.add_marker("slow")


def _parameters(item: pytest.Item) -> list[object]:
    callspec = getattr(item, "callspec", None)
    return [] if callspec is None else list(callspec.params.values())


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests that leave it running and its configuration alone."""
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly=True) as server:
        yield server


@pytest.fixture
def server(running_server: RedisServer) -> RedisServer:
    """The same, with no data in it."""
    with running_server.client() as client:
        client.flushall()
        client.script_flush()
    return running_server


@pytest.fixture
def one_disk(tmp_path: Path) -> Iterator[DiskKind]:
    """The same as :func:`disk`, of one engine: for modules that have it override that."""
    disk = DiskKind(tmp_path, INSTALLED[0])
    yield disk
    disk.verify()


@pytest.fixture(params=INSTALLED)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskKind]:
    """A job directory; every frontier that was opened in it agrees with itself at the end."""
    disk = DiskKind(tmp_path, request.param)
    yield disk
    disk.verify()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk_at(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client
