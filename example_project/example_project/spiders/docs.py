"""A spider that visits every page of a documentation site."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response


class DocsSpider(Spider):
    """Follow every link of every page and yield one item a page.

    It filters no duplicates itself: that is the scheduler's job, and what this project shows.
    """

    name = "docs"

    def __init__(self, url: str = "", **arguments: Any) -> None:
        """Take the URL of the first page; links that leave its host are not followed.

        Raises ValueError if the URL is missing or has no host.
        """
        super().__init__(**arguments)
        host = urlsplit(url).hostname
        if host is None:
            raise ValueError(
                f"The docs spider needs the URL of its first page, not {url!r}: start the site "
                "with `python -m example_project.site` and pass the URL that it prints, as in "
                "`scrapy crawl docs -a url=http://127.0.0.1:PORT/index.html`."
            )
        self.url = url
        self.allowed_domains = [host]

    async def start(self) -> AsyncIterator[Any]:
        """Yield the request for the first page."""
        # Without dont_filter, unlike Scrapy's default: a page may link back to the first one,
        # and each page is to be visited once.
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """Yield the item of a page, `{"url": str, "links": int}`, then a request for each link."""
        if not isinstance(response, HtmlResponse):
            return
        links = response.css("a")
        yield {"url": response.url, "links": len(links)}
        yield from response.follow_all(links)
