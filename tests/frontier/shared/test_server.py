"""What is refused of a server before a crawl uses it, and what its operator is warned of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_altsched.errors import ConfigError
from scrapy_altsched.redis_client.connection import connect, make_client, options_of
from scrapy_altsched.redis_client.server import check_permissions, examine, understand

from ...servers import RedisServer

#: What redis-py makes of INFO, of servers that are not at hand.
REDIS_8 = {"redis_version": "8.0.1", "maxmemory_policy": "noeviction", "aof_enabled": 1}
REDIS_60 = {"redis_version": "6.0.16", "maxmemory_policy": "noeviction", "aof_enabled": 1}
VALKEY = {
    "redis_version": "7.2.4",
    "server_name": "valkey",
    "valkey_version": "8.1.3",
    "server_mode": "standalone",
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}
CONFIG = {
    "save": "",
    "appendfsync": "everysec",
    "hash-max-listpack-entries": "512",
    "hash-max-listpack-value": "64",
}


def state(client: redis.Redis) -> tuple[Any, ...]:
    """All that an examination could have changed: keys, configuration, scripts."""
    client.config_resetstat()
    return client.keys(), client.config_get(), client.info("memory")["number_of_cached_scripts"]


def test_a_server_that_is_set_up_well(server: RedisServer, client: redis.Redis) -> None:
    before = state(client)
    assert examine(connect({"REDIS_PORT": server.port})) == []
    assert state(client) == before


# Warnings


@pytest.mark.parametrize(
    ("appendonly", "options", "words"),
    [
        (False, {}, "keeps nothing on disk: if it stops, the crawl is lost; turn on appendonly"),
        (False, {"save": "3600 1"}, "saves snapshots only"),
        (True, {"appendfsync": "no"}, "leaves syncing its append-only file"),
        (True, {"hash-max-ziplist-entries": 511}, "-entries is 511, below 512"),
        (True, {"hash-max-ziplist-value": 19}, "-value is 19, below 20"),
        (True, {"appendfsync": "always", "save": "3600 1"}, ""),
        (True, {"hash-max-ziplist-entries": 1024, "hash-max-ziplist-value": 20}, ""),
    ],
    ids=str,
)
def test_a_warning_says_what_to_change(
    own_directory: Path, appendonly: bool, options: Mapping[str, object], words: str
) -> None:
    with RedisServer(own_directory, appendonly=appendonly, options=options) as server:
        warnings = examine(server.client())
        assert len(warnings) == bool(words)
        for warning in warnings:
            assert words in warning
            assert warning.endswith(".")
        if "hash" in str(options) and words:
            # Under the name that this server takes.
            found = re.search(r"hash-max-\w+-\w+", warnings[0])
            assert found
            with server.client() as client:
                is_old = client.info()["redis_version"].startswith("6.")
                assert ("ziplist" in found[0]) is is_old
                client.config_set(found[0], warnings[0].rpartition(" ")[2][:-1])
            assert examine(server.client()) == []


def test_the_command_of_a_warning_works(own_directory: Path) -> None:
    with RedisServer(own_directory) as server:
        (warning,) = examine(server.client())
        assert f"-cli -p {server.port} CONFIG SET appendonly yes)" in warning
        server.client().config_set("appendonly", "yes")
        assert examine(server.client()) == []


def rename_config(directory: Path) -> tuple[RedisServer, dict[str, Any]]:
    return RedisServer(directory, options={"rename-command": 'CONFIG ""'}), {}


def forbid_config(directory: Path) -> tuple[RedisServer, dict[str, Any]]:
    users = ["worker on >pw ~* +@all -config"]
    return RedisServer(directory, users=users), {"username": "worker", "password": "pw"}


@pytest.mark.parametrize("make", [rename_config, forbid_config])
def test_what_cannot_be_asked_is_said_to_be_unknown(
    own_directory: Path, make: Callable[[Path], tuple[RedisServer, dict[str, Any]]]
) -> None:
    server, parameters = make(own_directory)
    with server:
        nothing_kept, unknown = examine(server.client(**parameters))
        assert "goes back to the last snapshot, or is lost if there is none" in nothing_kept
        assert "does not permit CONFIG GET, so it is not known" in unknown


# Refused


def test_a_server_that_takes_no_large_batch_is_refused(own_directory: Path) -> None:
    with RedisServer(
        own_directory, appendonly=True, options={"proto-max-bulk-len": "17mb"}
    ) as server:
        with pytest.raises(ConfigError, match="takes no more than 17825792 bytes") as caught:
            examine(server.client())
        name, value = str(caught.value).partition("CONFIG SET ")[2].split()[:2]
        server.client().config_set(name, value.rstrip(","))
        assert examine(server.client()) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
@pytest.mark.parametrize("limit", ["0", "100mb"])
def test_a_server_that_deletes_by_itself_is_refused(
    own_directory: Path, policy: str, limit: str
) -> None:
    options = {"maxmemory-policy": policy, "maxmemory": limit}
    with RedisServer(own_directory, appendonly=True, options=options) as server:
        client = server.client()
        with pytest.raises(ConfigError) as error:
            examine(client)
        message = str(error.value)
        assert f"maxmemory-policy is {policy!r}" in message
        assert f"localhost:{server.port}" in message
        command = message.partition("-cli ")[2].partition(",")[0]
        assert command == f"-p {server.port} CONFIG SET maxmemory-policy noeviction"
        client.execute_command(*command.split()[2:])
        assert examine(client) == []


def test_a_replica_is_refused(own_directory: Path, server: RedisServer) -> None:
    options = {"replicaof": f"127.0.0.1 {server.port}"}
    with RedisServer(own_directory, options=options) as replica:
        with pytest.raises(ConfigError, match=r"a replica.* master, 127\.0\.0\.1:\d+\.$") as error:
            examine(replica.client())
        assert str(server.port) in str(error.value)


def test_a_cluster_is_refused(own_directory: Path) -> None:
    options = {"cluster-enabled": "yes"}
    with (
        RedisServer(own_directory, options=options) as server,
        pytest.raises(ConfigError, match="runs as 'cluster'"),
    ):
        examine(server.client())


def test_info_has_to_be_permitted(own_directory: Path) -> None:
    with (
        RedisServer(own_directory, users=["worker on >pw ~* +@all -info"]) as server,
        pytest.raises(ConfigError, match=r"does not permit user 'worker' .*'info'"),
    ):
        examine(server.client(username="worker", password="pw"))


# Servers that are not at hand


def test_a_redis_that_is_too_old_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^Redis 6\.0\.16 at h:1 is too old .* Redis 6\.2 or"):
        understand(REDIS_60, CONFIG, "h:1")
    assert understand(REDIS_60 | {"redis_version": "6.2.0"}, CONFIG, "h:1") == []
    with pytest.raises(ConfigError, match="too old"):
        understand({}, CONFIG, "h:1")


def test_a_newer_redis_and_a_valkey_are_accepted() -> None:
    assert understand(REDIS_8, CONFIG, "h:1") == []
    (warning,) = understand(VALKEY, CONFIG | {"hash-max-listpack-entries": "9"}, "h:1")
    assert "hash-max-listpack-entries is 9" in warning
    with pytest.raises(ConfigError, match=r"^Valkey 8\.1\.3 at h:1 .* run valkey-cli CONFIG SET"):
        understand(VALKEY | {"maxmemory_policy": "allkeys-lfu"}, CONFIG, "h:1")
    with pytest.raises(ConfigError, match="runs as 'cluster'"):
        understand(VALKEY | {"server_mode": "cluster"}, CONFIG, "h:1")


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, ""),
        ({"REDIS_HOST": "redis.example", "REDIS_PORT": 6380}, " -h redis.example -p 6380"),
        ({"REDIS_URL": "redis://:secret@redis.example:6379/3"}, " -h redis.example"),
        ({"REDIS_URL": "unix:///tmp/a b/redis.sock"}, " -s '/tmp/a b/redis.sock'"),
    ],
    ids=str,
)
def test_a_command_says_where_the_server_is(settings: dict[str, Any], options: str) -> None:
    assert options_of(make_client(settings)) == options


# Permissions

NEEDED = [
    ("HSET", "crawl:a", "field", "value"),
    ("ZADD", "crawl:b", 1, "member"),
    ("EVALSHA", "0" * 40, 1, "crawl:a"),
    ("TIME",),
]


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ("~crawl:* +@all", ""),
        ("~crawl:* +@all -zadd", "'zadd'"),
        ("~crawl:* +@all -evalsha", "'evalsha'"),
        ("~crawl:* +@all -@transaction", "'multi'"),
        ("~crawl:a +@all", "key"),
    ],
)
def test_permissions_are_checked_and_nothing_is_executed(
    own_directory: Path, rights: str, words: str
) -> None:
    with RedisServer(own_directory, users=[f"worker on >pw {rights}"]) as server:
        client = server.client(username="worker", password="pw")
        if words:
            with pytest.raises(ConfigError, match=f"does not permit user 'worker' .*{words}"):
                check_permissions(client, NEEDED)
        else:
            check_permissions(client, NEEDED)
        # The connection is not left in a transaction.
        assert client.get("crawl:a") is None
        assert server.client().keys() == []


def test_a_full_server_is_no_matter_of_permissions(own_directory: Path) -> None:
    with RedisServer(own_directory, options={"maxmemory": "1"}) as server:
        check_permissions(server.client(), NEEDED)
