"""The recorded link graph of a real documentation site, served on loopback.

The recording is a gzipped file of JSON lines, one `[url, [hrefs]]` a page. Served alone by
`python -m example_project.site`; in a program, as `with Site(load_graph()) as site: ...`.

Always import this module as `example_project.site`: `site` alone is Python's own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import threading
import time
from collections import Counter
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urlsplit

if TYPE_CHECKING:
    # typing.Self requires Python 3.11
    from typing_extensions import Self

DATA = Path(__file__).resolve().parent.parent / "data" / "python-docs-links.jsonl.gz"
HOST = "127.0.0.1"
FIRST_PAGE = "/index.html"


def load_graph(path: Path = DATA) -> dict[str, list[str]]:
    """Read a recording: the path of each page on its site, and the page's hrefs as served.

    Links to the site's own host become relative to it, so that they hold on any port; links to
    other hosts stay as they were recorded. Raises ValueError if the pages are not all of one site.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        recorded: dict[str, list[str]] = dict(json.loads(line) for line in lines)
    origins = {"{0.scheme}://{0.netloc}".format(urlsplit(url)) for url in recorded}
    if len(origins) != 1:
        raise ValueError(f"{path} must hold the pages of one site, not of {sorted(origins)}.")
    origin = origins.pop()
    return {
        _relative(url, origin): [_relative(href, origin) for href in hrefs]
        for url, hrefs in recorded.items()
    }


def _relative(href: str, origin: str) -> str:
    """Return the href without the origin, or as it is if it leads elsewhere."""
    # The slash keeps https://docs.example apart from https://docs.example.org.
    return href[len(origin) :] if href.startswith(f"{origin}/") else href


def _reachable(graph: dict[str, list[str]]) -> frozenset[str]:
    """Return the recorded paths that links lead to from the first page, itself included."""
    reached = {FIRST_PAGE} & graph.keys()
    waiting = list(reached)
    while waiting:
        targets = {urldefrag(href).url for href in graph[waiting.pop()]}
        new = (targets & graph.keys()) - reached
        reached |= new
        waiting.extend(new)
    return frozenset(reached)


def _render(path: str, hrefs: list[str]) -> bytes:
    """Return the HTML of a page, its links in recorded order."""
    title = escape(path)
    links = "\n".join(f'<li><a href="{escape(href)}">{escape(href)}</a>' for href in hrefs)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<h1>{title}</h1>\n<ul>\n{links}\n</ul>\n</html>\n"
    ).encode()


class Site:
    """A context manager that serves a link graph on loopback while it is entered.

    Attributes:
        url: the site's address without a path, such as "http://127.0.0.1:4711"; set on entry.
        pages: all recorded paths.
        reachable: the paths that links lead to from /index.html.
        hits: fetches a recorded path, each counted once its response has been written whole.
            Read it under `changed` while a client is active.
        served_to: the same by the client's User-Agent.
        in_flight: responses that are being written, by the client's User-Agent.
        changed: notified after each fetch and each connection that closes; its lock guards `hits`.

    """

    url: str

    def __init__(self, graph: dict[str, list[str]], latency: float = 0.0, port: int = 0) -> None:
        """Take a graph from `load_graph`, seconds to wait before each answer, and a port.

        Port 0 is any free one.
        """
        self.pages = frozenset(graph)
        self.reachable = _reachable(graph)
        self.hits: Counter[str] = Counter()
        self.served_to: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.changed = threading.Condition()
        self._bodies = {path: _render(path, hrefs) for path, hrefs in graph.items()}
        self._latency = latency
        self._port = port
        self._connections = 0

    def __enter__(self) -> Self:
        """Start serving; raises OSError if the port is taken."""
        self._server = _Server(self, self._port)
        self.url = f"http://{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="example site", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening; connections that are still open end with their clients."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for_hits(self, total: int, timeout: float) -> bool:
        """Wait until so many pages have been served; False if it took more than timeout seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self.hits.total() >= total, timeout)

    def wait_for_disconnect(self, timeout: float) -> bool:
        """Wait until no client is connected; False if it took more than timeout seconds.

        A client that was killed leaves responses in flight: `hits` is final only after this.
        """
        with self.changed:
            return self.changed.wait_for(lambda: self._connections == 0, timeout)

    def body(self, path: str) -> bytes | None:
        """Return the HTML recorded under the path after the site's latency, or None."""
        time.sleep(self._latency)
        return self._bodies.get(path)

    def count_hit(self, path: str, agent: str) -> None:
        """Count a response to a client that has been written whole."""
        with self.changed:
            self.hits[path] += 1
            self.served_to[agent] += 1
            self.changed.notify_all()

    def count_in_flight(self, agent: str, change: int) -> None:
        """Count a response to a client that is begun (1) or over (-1)."""
        with self.changed:
            self.in_flight[agent] += change

    def count_connections(self, change: int) -> None:
        """Count a connection that was opened (1) or closed (-1)."""
        with self.changed:
            self._connections += change
            self.changed.notify_all()


class _Server(ThreadingHTTPServer):
    """The HTTP server under a Site, one thread a connection."""

    # At the default of 5 a crawler that opens its connections all at once has some of them
    # dropped, and tries them again only after a second.
    request_queue_size = 128

    def __init__(self, site: Site, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.site = site

    def process_request(self, request: Any, client_address: Any) -> None:
        self.site.count_connections(1)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.site.count_connections(-1)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        # A client that is killed breaks its connections: expected here, and not worth a traceback.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: with Nagle's algorithm the second would wait for the
    # client's delayed acknowledgement of the first.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer with the recorded page or with 404."""
        agent = self.headers.get("User-Agent", "")
        self.server.site.count_in_flight(agent, 1)
        try:
            self._answer(agent)
        finally:
            self.server.site.count_in_flight(agent, -1)

    def _answer(self, agent: str) -> None:
        body = self.server.site.body(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.server.site.count_hit(self.path, agent)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  (its base's name)
        """Log nothing: the site's output is its hits."""


def main() -> str | None:
    """Serve a recording until Ctrl-C; return why it cannot be served, if so."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.site",
        description="Serve the recorded link graph of a documentation site on loopback.",
    )
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help="a recording")
    options = parser.parse_args()
    try:
        with Site(load_graph(options.data), port=options.port) as site:
            print(f"{site.url}{FIRST_PAGE}", flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError, OverflowError) as error:
        return f"The site cannot be served: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
