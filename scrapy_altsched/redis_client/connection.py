"""A client for the server of a shared crawl, from scrapy-redis's own settings.

The settings, their defaults and their precedence are those of ``scrapy_redis.connection``
(scrapy-redis 0.9.1): its defaults, then ``REDIS_PARAMS``, then ``REDIS_HOST`` and the like where
they are true, then what ``REDIS_URL`` says.  The client is not: with its settings redis-py sends a
command again when the reply was lost, which would apply a script twice.  See :data:`FIXED`.

What depends on the settings is a :class:`~scrapy_altsched.errors.ConfigError`, what may pass by
itself a :class:`~scrapy_altsched.errors.SharedError`.  No message has a password in it.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry

from ..errors import AltschedError, ConfigError, SharedError
from . import ABOVE_PARAMS

#: scrapy-redis's REDIS_PARAMS, without its retries.
_DEFAULTS = {"socket_timeout": 30, "socket_connect_timeout": 30, "encoding": "utf-8"}
#: What no setting changes, besides retries.  With protocol 2 replies are the same with each
#: redis-py, which renegotiates nothing by itself.
FIXED: Mapping[str, Any] = {"decode_responses": False, "protocol": 2}
#: What is for scrapy-redis's client alone.  Not to retry on a timeout is redis-py's default, and
#: newer ones warn of the parameter.
_NOT_OURS = ("redis_cls", "retry", "retry_on_timeout", "single_connection_client")
_URL_EXAMPLE = "redis://[[user]:password@]host[:port][/db], rediss://... or unix:///path?db=0"


def connect(settings: Mapping[str, Any]) -> redis.Redis:
    """Connect to the server that scrapy-redis's settings name; nothing on it is changed.

    :param settings: those of :data:`.redis_client.SETTINGS` that are set.
    :raises ConfigError: a setting cannot be used, or the server refuses what it says.
    :raises SharedError: the server cannot be reached, or is not ready.
    """
    client = make_client(settings)
    with explain_errors(client, (redis.RedisError, OSError, TypeError, ValueError)):
        client.ping()
    return client


def make_client(settings: Mapping[str, Any]) -> redis.Redis:
    """Make the client that :func:`connect` returns, without connecting it."""
    parameters = {**_DEFAULTS, **(settings.get("REDIS_PARAMS") or {})}
    given = (name for name in ABOVE_PARAMS if settings.get(name))
    parameters |= {name.removeprefix("REDIS_").lower(): settings[name] for name in given}
    url = parameters.pop("url", None)
    # Parsed here, since redis-py lets options in a URL override all others, ours as well.
    parameters |= _parse(url) if url else {}
    parameters = {name: value for name, value in parameters.items() if name not in _NOT_OURS}
    # Made for each client: redis-py changes both.
    parameters |= {**FIXED, "retry": Retry(NoBackoff(), 0), "retry_on_error": []}
    database = parameters.get("db")
    if not re.fullmatch(r"\d+", str(database or 0)):
        raise ConfigError(
            f"REDIS_DB = {database!r} cannot be used: it must be a number, 0 or more."
        )
    try:
        if url:
            # Closing the client closes the pool, as it does without a URL.
            client = redis.Redis.from_pool(ConnectionPool(**parameters))
        else:
            client = redis.Redis(**parameters)
        # Connections are made from the pool's parameters later: one now shows whether they fit.
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise _unusable(error, parameters) from None
    return client


def _parse(url: Any) -> dict[str, Any]:
    # No error of a parser is quoted: if the password has a "#" or a "/", it is a part of it.
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(
            "REDIS_URL cannot be used: it has to begin with redis://, rediss:// or unix://, as in"
            f" {_URL_EXAMPLE}."
        )
    shown = f"REDIS_URL = '{url.partition('://')[0]}://***'"
    try:
        parts = urlsplit(url)
        found: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise ConfigError(
            f"{shown} cannot be parsed; it has to be like {_URL_EXAMPLE}, and special characters in"
            " a password have to be percent-encoded (/ as %2F, # as %23)."
        ) from None
    is_path = parts.scheme == "unix"
    named, _, rest = parts.query.partition("@")
    if (not is_path and "@" in parts.path) or "@" in parts.fragment or (rest and "=" not in named):
        raise ConfigError(
            f"{shown} has an @ after its host; special characters in a password have to be"
            " percent-encoded (/ as %2F, # as %23, ? as %3F, @ as %40)."
        )
    # redis-py uses database 0 if this is no number.
    if not is_path and not re.fullmatch(r"/?\d*/?", parts.path):
        raise ConfigError(f"{shown} has no number of a database after its host, as in .../0.")
    return found


def _unusable(error: Exception, parameters: Mapping[str, Any]) -> ConfigError:
    if unknown := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
        return ConfigError(
            f"REDIS_PARAMS has {unknown[1]!r}, which redis-py {redis.__version__} does not know"
            " for this kind of connection."
        )
    return ConfigError(
        f"What the REDIS_... settings say cannot be used: {_mask(error, parameters)}."
    )


def _mask(error: BaseException, parameters: Mapping[str, Any]) -> str:
    """An error's text without passwords, and without a full stop."""
    text = str(error)
    for name in ("password", "ssl_password"):
        if secret := parameters.get(name):
            text = text.replace(str(secret), "***")
    return text.rstrip(". ")


def address_of(client: redis.Redis) -> str:
    """Where a client connects to, without a password, as in ``localhost:6379, database 0``."""
    parameters = client.connection_pool.connection_kwargs
    place = f"{parameters.get('host', 'localhost')}:{parameters.get('port', 6379)}"
    return f"{parameters.get('path', place)}, database {parameters.get('db') or 0}"


def options_of(client: redis.Redis) -> str:
    """Options with which ``redis-cli`` connects there, each after a space, without a password."""
    parameters = client.connection_pool.connection_kwargs
    if (path := parameters.get("path")) is not None:
        return f" -s {quote(path)}"
    host, port = str(parameters.get("host", "localhost")), int(parameters.get("port", 6379))
    option = "" if host in ("localhost", "127.0.0.1") else f" -h {quote(host)}"
    return option if port == 6379 else f"{option} -p {port}"


@contextmanager
def explain_errors(
    client: redis.Redis, kinds: tuple[type[Exception], ...] = (redis.RedisError,)
) -> Iterator[None]:
    """Turn errors of redis-py, raised inside, into ours.

    :param kinds: which errors; the default suffices for a client that has connected before.
    """
    try:
        yield
    except AltschedError:  # some of ours are ValueErrors, too
        raise
    except kinds as error:
        # Nor does a traceback show a password that the server has sent back.
        is_safe = _mask(error, client.connection_pool.connection_kwargs) == _mask(error, {})
        raise explain(error, client) from (error if is_safe else None)


def explain(error: Exception, client: redis.Redis, *, later: bool = False) -> AltschedError:
    """An error of redis-py as one of ours: what is wrong, and what to do.

    :param later: whether the server has answered before, as it is addressed then.
    """
    parameters = client.connection_pool.connection_kwargs
    server = f"The Redis server at {address_of(client)}"
    text = _mask(error, parameters)
    user = parameters.get("username") or "default"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return ConfigError(
            f"{server} does not permit user {user!r} what a shared crawl needs: {text}; grant it"
            " with ACL SETUSER."
        )
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text:
        given = parameters.get("password")
        problem = f"refused the password of user {user!r}" if given else "requires a password"
        return ConfigError(
            f"{server} {problem}: set it in REDIS_URL, or as 'password' (and 'username') in"
            " REDIS_PARAMS."
        )
    if isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in text:
        return ConfigError(
            f"{server} is a replica, or read-only for another reason: nothing can be changed there."
            " Set REDIS_URL or REDIS_HOST to its master."
        )
    # Some servers say it of a script in other words.
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "-OOM " in text:
        return SharedError(
            f"{server} has no memory left: raise its maxmemory (redis-cli CONFIG SET maxmemory"
            " ...), or delete what is not needed, such as a shared crawl: scrapy altsched drop KEY"
        )
    if isinstance(error, redis.BusyLoadingError):
        return SharedError(
            f"{server} is still loading its data; start the crawl again in a moment."
        )
    if "DB index" in text or "invalid DB" in text:
        return ConfigError(
            f"{server} has no such database: set REDIS_DB, or the end of REDIS_URL, to one below"
            " the server's setting 'databases' (0 always exists)."
        )
    if isinstance(error, TypeError | ValueError) and not isinstance(error, OSError):
        return _unusable(error, parameters)
    if not isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return SharedError(f"{server} refused a command: {text}.")
    if later:
        return SharedError(f"{server} does not answer: {text}.")
    return _explain_connection(error, client, server)


def _explain_connection(error: Exception, client: redis.Redis, server: str) -> AltschedError:
    parameters = client.connection_pool.connection_kwargs
    uses_tls = issubclass(client.connection_pool.connection_class, redis.SSLConnection)
    # redis-py keeps the cause only in the chain, and words its message differently in each version.
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__

    def find(*kinds: type[BaseException]) -> BaseException | None:
        return next((each for each in chain if isinstance(each, kinds)), None)

    if failure := find(ssl.SSLCertVerificationError):
        return ConfigError(
            f"{server} has a certificate that cannot be verified ({_mask(failure, parameters)}):"
            " set 'ssl_ca_certs' in REDIS_PARAMS to the file of the authority that signed it, and"
            " the host to the name that it is for."
        )
    if failure := find(ssl.SSLError):
        return ConfigError(
            f"No TLS connection could be made with {server[0].lower()}{server[1:]}"
            f" ({_mask(failure, parameters)}): use redis:// if it has no TLS there, and"
            " check 'ssl_certfile' and 'ssl_keyfile' in REDIS_PARAMS if it asks for a certificate."
        )
    if uses_tls and find(FileNotFoundError):
        return ConfigError(
            "A file that 'ssl_ca_certs', 'ssl_certfile' or 'ssl_keyfile' in REDIS_PARAMS names does"
            " not exist."
        )
    if find(socket.gaierror):
        problem = (
            "cannot be reached, as the name of its host is unknown here: check REDIS_HOST or"
            " REDIS_URL"
        )
    elif find(ConnectionRefusedError, FileNotFoundError):
        problem = (
            "cannot be reached, as nothing listens there: start it, or check REDIS_URL, REDIS_HOST"
            " and REDIS_PORT"
        )
    elif find(redis.TimeoutError, TimeoutError):
        hint = " and has TLS there (else use redis://)" if uses_tls else ""
        problem = (
            f"did not answer in time: check that it runs{hint}, or raise 'socket_timeout' in"
            " REDIS_PARAMS"
        )
    elif find(ConnectionResetError) or "closed by server" in str(error):
        hint = "expects TLS (use rediss://)"
        if uses_tls:
            hint = "asks for a certificate ('ssl_certfile' and 'ssl_keyfile' in REDIS_PARAMS)"
        problem = f"closed the connection: it probably {hint}"
    else:
        problem = f"cannot be reached: {_mask(error, parameters)}"
    return SharedError(f"{server} {problem}.")
