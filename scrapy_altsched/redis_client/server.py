"""What a server is and how it keeps data, looked at before a shared crawl uses it.

Nothing is changed.  Managed servers often refuse ``CONFIG GET``: a warning says what is unknown.

The figures are measured ones: a seen URL takes 21 bytes in a hash that is a listpack, and 85 to 89
in one that is not (Redis 7.0, a million URLs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import redis

from ..errors import ConfigError
from .connection import address_of, explain_errors, options_of

#: The oldest Redis whose scripts and commands suffice; Valkey began as 7.2.
_OLDEST = (6, 2)
#: Entries, and bytes of a value, that a bucket of seen URLs needs to stay a listpack; what to set.
_LIMITS = (("entries", 512, 512), ("value", 20, 64))
#: Bytes that the server must take in one piece: a batch has 4 MiB and one request of up to 16.
_MOST_BYTES = 32 * 1024**2
#: A hash's limits were called ziplist before 7.0.
_CONFIG = ("save", "appendfsync", "hash-max-*", "proto-max-bulk-len")


def examine(client: redis.Redis) -> list[str]:
    """A sentence each on what the crawl's operator should know or change of a server.

    :raises ConfigError: a shared crawl cannot use it, or ``INFO`` is not permitted.
    :raises SharedError: it cannot be reached, or is not ready.
    """
    config: dict[str, str] = {}
    with explain_errors(client):
        info = client.info()
        with suppress(redis.ResponseError):  # not permitted, or renamed: all of them, or none
            for pattern in _CONFIG:
                config.update(cast("dict[str, str]", client.config_get(pattern)))
    return understand(info, config, address_of(client), options_of(client))


def check_permissions(client: redis.Redis, commands: Sequence[Sequence[str | bytes | int]]) -> None:
    """Check that the user may send *commands*, each a name and its arguments; none is executed.

    They are queued in a transaction, where the server checks permissions, which is then discarded.

    :raises ConfigError: one is not permitted, or transactions are not.
    :raises SharedError: the server cannot be reached, or is not ready.
    """
    with explain_errors(client), client.client() as single:  # type: ignore[no-untyped-call]
        # A queued command has another answer than redis-py expects of it.
        single.response_callbacks.clear()
        single.execute_command("MULTI")
        try:
            for command in commands:
                # A full server takes none that needs memory, but has checked permissions.
                with suppress(redis.exceptions.OutOfMemoryError):
                    single.execute_command(*command)
        finally:
            # Also ends a transaction that the server has given up.
            single.execute_command("DISCARD")


def understand(
    info: Mapping[str, Any], config: Mapping[str, str], address: str, options: str = ""
) -> list[str]:
    """See :func:`examine`; an empty *config*: it is not permitted to ask.

    :param address: where the server is; *options*: with which ``redis-cli`` finds it there.
    """
    name = "Valkey" if "valkey_version" in info else "Redis"
    numbers = re.findall(r"\d+", str(info.get(f"{name.lower()}_version")))[:3]
    version = tuple(map(int, numbers))
    cli = f"{name.lower()}-cli{options}"
    server = f"{name} {'.'.join(numbers)} at {address}"
    if version < _OLDEST:
        raise ConfigError(
            f"{server} is too old for a shared crawl: use Redis {'.'.join(map(str, _OLDEST))} or"
            " newer, or Valkey."
        )
    _refuse_unfit(info, config, server, cli)
    warnings = []
    remedy = f"turn on appendonly ({cli} CONFIG SET appendonly yes)"
    if info.get("aof_enabled"):
        if config.get("appendfsync") == "no":
            warnings.append(
                "The server leaves syncing its append-only file to the operating system"
                " (appendfsync is 'no'): a power cut can undo half a minute of the crawl; set it to"
                " 'everysec'."
            )
    elif "save" not in config:
        warnings.append(
            "The server has no append-only file: if it dies, the crawl goes back to the last"
            f" snapshot, or is lost if there is none; {remedy}."
        )
    elif config["save"]:
        warnings.append(
            "The server saves snapshots only: if it dies, the crawl goes back to the last one, and"
            f" what came after is crawled again; {remedy}."
        )
    else:
        warnings.append(
            f"The server keeps nothing on disk: if it stops, the crawl is lost; {remedy}."
        )
    # Named as the server names them.
    kind = "listpack" if name == "Valkey" or version >= (7,) else "ziplist"
    for what, needed, usual in _LIMITS:
        names = (f"hash-max-{each}-{what}" for each in ("listpack", "ziplist"))
        limit = int(next((config[name] for name in names if name in config), needed))
        if limit < needed:
            warnings.append(
                f"The server's hash-max-{kind}-{what} is {limit}, below {needed}: a seen URL can"
                f" take about 88 bytes of its memory instead of 21; set it to {usual}."
            )
    if not config:
        warnings.append(
            "The server does not permit CONFIG GET, so it is not known whether it saves snapshots,"
            " how often its append-only file is synced, and whether hash-max-listpack-entries and"
            " hash-max-listpack-value have their default values."
        )
    return warnings


def _refuse_unfit(
    info: Mapping[str, Any], config: Mapping[str, str], server: str, cli: str
) -> None:
    """Raise ConfigError if *server* cannot hold a shared crawl as it is set up."""
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
    policy = str(info.get("maxmemory_policy", ""))
    if policy != "noeviction":
        raise ConfigError(
            f"{server} may delete requests when its memory is full (maxmemory-policy is"
            f" {policy!r}): run {cli} CONFIG SET maxmemory-policy noeviction, or change it"
            " where the server is managed."
        )
    if int(config.get("proto-max-bulk-len", _MOST_BYTES)) < _MOST_BYTES:
        raise ConfigError(
            f"{server} takes no more than {config['proto-max-bulk-len']} bytes at once"
            f" (proto-max-bulk-len), and a shared crawl may send {_MOST_BYTES}: run {cli} CONFIG"
            f" SET proto-max-bulk-len {_MOST_BYTES}, or more."
        )
