"""What each of the workers runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response

from benchmarks.politeness.cases import page_paths


class PolitenessSpider(Spider):
    """Fetches the first page of each host, and from there all its others.

    It starts when all workers are ready, so that none has a lead.

    :param port: the site's.
    :param hosts: how many there are.
    :param pages: how many each of them has.
    :param ready: a file that it makes when it is ready.
    :param start_file: a file that is made when it may start.
    """

    name = "politeness"

    def __init__(
        self, port: str, hosts: str, pages: str, ready: str, start_file: str, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._port, self._hosts = int(port), int(hosts)
        self._first, *self._others = page_paths(int(pages))
        self._ready, self._start_file = Path(ready), Path(start_file)

    async def start(self) -> AsyncIterator[Any]:
        self._ready.touch()
        while not self._start_file.exists():
            await asyncio.sleep(0.02)
        for number in range(self._hosts):
            yield Request(f"http://host-{number}.test:{self._port}{self._first}")

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        if response.url.endswith(self._first):
            for path in self._others:
                yield Request(response.urljoin(path))
