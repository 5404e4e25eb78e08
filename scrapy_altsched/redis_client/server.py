"""What a server is and how it keeps data, looked at before a shared crawl uses it.

Only ``INFO`` and ``CONFIG GET`` are sent, and nothing is changed.  Managed servers often refuse
``CONFIG``; what it would have said is then unknown, and a warning says so.

The figures are measured ones: a seen URL takes 21 bytes in a hash that is a listpack, and 85 to 89
in one that is not (Redis 7.0, a million URLs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import redis

from ..errors import ConfigError
from .connection import address_of, explain_errors, options_of

#: The oldest Redis whose scripts and commands suffice; Valkey began as 7.2.
OLDEST = (6, 2)
#: Entries and bytes of a value that a bucket of seen URLs needs to stay a listpack.
BUCKET_ENTRIES, BUCKET_VALUE = 512, 20

#: Bytes that the server must take in one piece: a batch has 4 MiB and one request of up to 16.
_MOST_BYTES = 32 * 1024 * 1024

#: What is asked for with CONFIG GET; a hash's limits were called ziplist before 7.0.
_CONFIG = ("save", "appendfsync", "hash-max-*", "proto-max-bulk-len")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What is known of a server.

    :ivar name: ``"Redis"`` or ``"Valkey"``.
    :ivar version: its own; for Valkey not the Redis version that it also names.
    :ivar policy: ``maxmemory-policy``.
    :ivar has_aof: whether it keeps an append-only file.
    :ivar fsync: ``appendfsync``; ``None``: unknown, or there is no such file.
    :ivar has_snapshots: whether it saves snapshots by itself; ``None``: unknown.
    :ivar bucket_entries: how many entries a hash may have as a listpack; ``None``: unknown.
    :ivar bucket_value: how many bytes a value may have in one; ``None``: unknown.
    :ivar warnings: a sentence each on what the crawl's operator should know or change.
    """

    name: str
    version: tuple[int, ...]
    policy: str
    has_aof: bool
    fsync: str | None
    has_snapshots: bool | None
    bucket_entries: int | None
    bucket_value: int | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}"


def examine(client: redis.Redis) -> ServerInfo:
    """Ask a server what it is; nothing on it is changed.

    :raises ConfigError: a shared crawl cannot use this server, for a reason that the message says,
        or ``INFO`` is not permitted.
    :raises SharedError: it cannot be reached, or is not ready.
    """
    config: dict[str, str] = {}
    with explain_errors(client):
        info = client.info()
        try:
            for pattern in _CONFIG:
                config.update(cast("dict[str, str]", client.config_get(pattern)))
        except redis.ResponseError:  # not permitted, or renamed
            config = {}
    return understand(info, config, address_of(client), options_of(client))


def check_permissions(client: redis.Redis, commands: Sequence[Sequence[str | bytes | int]]) -> None:
    """Check that the user may send *commands*, keys included; none of them is executed.

    They are queued in a transaction, where the server checks permissions, which is then discarded.

    :param commands: whole commands, each as the name and its arguments.
    :raises ConfigError: one is not permitted, or transactions are not.
    :raises SharedError: the server cannot be reached, or is not ready.
    """
    with explain_errors(client), client.client() as single:  # type: ignore[no-untyped-call]
        # A queued command has another answer than redis-py expects of it.
        single.response_callbacks.clear()
        single.execute_command("MULTI")
        try:
            for command in commands:
                try:
                    single.execute_command(*command)
                except redis.exceptions.NoPermissionError:
                    raise
                except redis.ResponseError as error:
                    # A full server takes none that needs memory, but has checked permissions.
                    if not isinstance(error, redis.exceptions.OutOfMemoryError):
                        raise
        finally:
            # Also ends a transaction that the server has given up.
            single.execute_command("DISCARD")


def understand(
    info: Mapping[str, Any], config: Mapping[str, str], address: str, options: str = ""
) -> ServerInfo:
    """Judge what a server has answered.

    :param info: ``INFO``, as redis-py parses it.
    :param config: what ``CONFIG GET`` said; empty: it is not permitted.
    :param address: where the server is, for messages.
    :param options: with which ``redis-cli`` finds it there.
    :raises ConfigError: a shared crawl cannot use this server.
    """
    is_valkey = "valkey_version" in info
    entries, value = (_limit(config, what) for what in ("entries", "value"))
    has_aof = bool(info.get("aof_enabled"))
    found = ServerInfo(
        name="Valkey" if is_valkey else "Redis",
        version=_version(info.get("valkey_version" if is_valkey else "redis_version")),
        policy=str(info.get("maxmemory_policy", "")),
        has_aof=has_aof,
        fsync=config.get("appendfsync") if has_aof else None,
        has_snapshots=bool(config["save"]) if "save" in config else None,
        bucket_entries=entries,
        bucket_value=value,
        warnings=(),
    )
    cli = f"{found.name.lower()}-cli{options}"
    _refuse(found, info, config, address, cli)
    warnings = _persistence_warnings(found, cli) + _size_warnings(found)
    if not config:
        warnings.append(
            "The server does not permit CONFIG GET, so it is not known whether it saves snapshots,"
            " how often its append-only file is synced, and whether hash-max-listpack-entries and"
            " hash-max-listpack-value have their default values."
        )
    return replace(found, warnings=tuple(warnings))


def _version(text: object) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", str(text))[:3])


def _limit(config: Mapping[str, str], what: str) -> int | None:
    for kind in ("listpack", "ziplist"):
        if (value := config.get(f"hash-max-{kind}-{what}")) is not None:
            return int(value)
    return None


def _refuse(
    found: ServerInfo, info: Mapping[str, Any], config: Mapping[str, str], address: str, cli: str
) -> None:
    server = f"{found} at {address}"
    if found.version < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"{server} is too old for a shared crawl: use Redis {needed} or newer, or Valkey."
        )
    # Valkey has the former.
    mode = info.get("server_mode") or info.get("redis_mode", "standalone")
    if mode != "standalone":
        raise ConfigError(
            f"{server} runs as {mode!r}: shared crawls need a standalone server; set REDIS_URL or"
            " REDIS_HOST to one."
        )
    if info.get("role", "master") != "master":
        raise ConfigError(
            f"{server} is a replica, which takes no writes: set REDIS_URL or REDIS_HOST to its"
            f" master, {info.get('master_host')}:{info.get('master_port')}."
        )
    # Refused without a limit of memory as well: an operator who sets one later is not warned.
    if found.policy != "noeviction":
        raise ConfigError(
            f"{server} may delete requests when its memory is full (maxmemory-policy is"
            f" {found.policy!r}): run {cli} CONFIG SET maxmemory-policy noeviction, or change it"
            " where the server is managed."
        )
    if int(config.get("proto-max-bulk-len", _MOST_BYTES)) < _MOST_BYTES:
        raise ConfigError(
            f"{server} takes no more than {config['proto-max-bulk-len']} bytes at once"
            f" (proto-max-bulk-len), and a shared crawl may send {_MOST_BYTES}: run {cli} CONFIG"
            f" SET proto-max-bulk-len {_MOST_BYTES}, or more."
        )


def _persistence_warnings(found: ServerInfo, cli: str) -> list[str]:
    remedy = f"turn on appendonly ({cli} CONFIG SET appendonly yes)"
    if found.has_aof and found.fsync == "no":
        text = (
            "The server leaves syncing its append-only file to the operating system (appendfsync is"
            " 'no'): a power cut can undo half a minute of the crawl; set it to 'everysec'."
        )
    elif found.has_aof:
        return []
    elif found.has_snapshots is None:
        text = (
            "The server has no append-only file: if it dies, the crawl goes back to the last"
            f" snapshot, or is lost if there is none; {remedy}."
        )
    elif found.has_snapshots:
        text = (
            "The server saves snapshots only: if it dies, the crawl goes back to the last one, and"
            f" what came after is crawled again; {remedy}."
        )
    else:
        text = f"The server keeps nothing on disk: if it stops, the crawl is lost; {remedy}."
    return [text]


def _size_warnings(found: ServerInfo) -> list[str]:
    # Named as the server names them.
    kind = "listpack" if found.name == "Valkey" or found.version >= (7,) else "ziplist"
    return [
        f"The server's hash-max-{kind}-{what} is {limit}, below {needed}: a seen URL can take about"
        f" 88 bytes of its memory instead of 21; set it to {usual}."
        for what, limit, needed, usual in (
            ("entries", found.bucket_entries, BUCKET_ENTRIES, BUCKET_ENTRIES),
            ("value", found.bucket_value, BUCKET_VALUE, 64),
        )
        if limit is not None and limit < needed
    ]
