"""Web sites on loopback, for crawls in tests."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .processes import Process


@dataclass
class Page:
    """An answer: links of a page, or a text, or another status; held until ``held`` is set."""

    links: list[str] = field(default_factory=list)
    status: int = 200
    location: str | None = None
    held: threading.Event | None = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None


class Site:
    """Serves pages while it is entered, and counts what was asked for.

    :param pages: path -> page, or a function of the path and of how often it was asked for before.
    """

    def __init__(self, pages: Any) -> None:
        self._pages = pages
        self.hits: Counter[str] = Counter()
        self.order: list[str] = []
        self.changed = threading.Condition()

    def __enter__(self) -> Site:
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> Page:
        with self.changed:
            before = self.hits[path]
            self.hits[path] += 1
            self.order.append(path)
            self.changed.notify_all()
        if callable(self._pages):
            return self._pages(path, before)
        return self._pages.get(path) or Page(status=404)

    def wait_for(self, condition: Any, timeout: float = 60) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), timeout), self.hits


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, site: Site) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.site = site

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed breaks its connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        page = self.server.site.answer(self.path)  # type: ignore[attr-defined]
        if page.held is not None:
            page.held.wait(60)
        links = "".join(f'<a href="{link}">x</a>' for link in page.links)
        text = f"<html><body>{links}</body></html>" if page.text is None else page.text
        body = text.encode()
        self.send_response(page.status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        if page.location:
            self.send_header("Location", page.location)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def random_graph(pages: int, links: int, seed: int) -> dict[str, Page]:
    """A site whose pages are all reachable from /0, with ``links`` further links on each."""
    rng = random.Random(seed)
    graph = {f"/{number}": Page() for number in range(pages)}
    for number in range(1, pages):
        graph[f"/{rng.randrange(number)}"].links.append(f"/{number}")
    for page in graph.values():
        page.links += [f"/{rng.randrange(pages)}" for _ in range(links)]
        rng.shuffle(page.links)
    return graph


def held_pages(count: int, held: threading.Event) -> dict[str, Page]:
    """A site whose first page links to all others, which wait, and link to it."""
    others = [f"/{number}" for number in range(1, count)]
    return {"/0": Page(others), **{path: Page(["/0"], held=held) for path in others}}


class Gates:
    """A site that answers its first pages, then those up to the next gate, as gates are opened.

    :param graph: path -> page.
    :param gates: after how many different pages there is a gate.
    """

    def __init__(self, graph: dict[str, Page], *gates: int) -> None:
        self.graph = graph
        self._gates = [(count, threading.Event()) for count in gates]
        self._seen: dict[str, int] = {}

    def __call__(self, path: str, _: int) -> Page:
        rank = self._seen.setdefault(path, len(self._seen))
        held = next((gate for count, gate in reversed(self._gates) if rank >= count), None)
        page = self.graph[path]
        return Page(page.links, held=held)

    def open(self) -> None:
        """Open the next gate."""
        self._gates.pop(0)[1].set()


def wait_for_pages(site: Site, count: int, process: Process) -> None:
    """Wait until so many different pages were asked for."""
    with site.changed:
        while len(site.hits) < count:
            site.changed.wait(1)
            assert process.poll() is None, "the crawl has ended"
