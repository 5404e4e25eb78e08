"""A spider that takes its start requests from a queue on a Redis server, and loses none."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scrapy import FormRequest, Request
from scrapy.signals import spider_opened

from ..crawl.setup import FedSpider
from ..engine.engine import Engine
from ..settings import read_redis

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from ..scheduler import Scheduler
    from .feeder import Feeder

logger = logging.getLogger(__name__)


class RedisQueueMixin(FedSpider):
    """Takes start requests from a list, a set or a sorted set, while the spider runs.

    ::

        class BooksSpider(RedisQueueMixin, CrawlSpider):
            name = "books"
            redis_key = "books:start_urls"

    An entry is removed from the server only when the requests made from it survive the death of
    this process.  Attributes and settings are those of scrapy-redis's ``RedisSpider``; the key's
    own type says how it is read.

    :cvar redis_key: the key; ``%(name)s`` is the spider's name.  ``None``: the setting
        ``REDIS_START_URLS_KEY``, by default ``"%(name)s:start_urls"``.
    :cvar redis_batch_size: how many entries are taken at a time, when fewer requests than that are
        pending.  ``None``: ``CONCURRENT_REQUESTS``.
    :cvar redis_encoding: of entries.  ``None``: the setting ``REDIS_ENCODING``, by default UTF-8.
    :cvar max_idle_time: seconds with nothing to crawl, and nothing in the queue, after which the
        spider is closed; 0: it never is.  ``None``: the setting ``MAX_IDLE_TIME_BEFORE_CLOSE``, by
        default 0.
    """

    redis_key: str | None = None
    redis_batch_size: int | str | None = None
    redis_encoding: str | None = None
    max_idle_time: int | str | None = None
    redis_feeder: Feeder | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.start_feeding, spider_opened)
        return spider

    def open_queue(self, scheduler: Scheduler) -> None:
        """Connect to the queue, unless the spider only looks at some pages.

        :raises ConfigError: a setting cannot be used, or a package is missing.
        :raises SharedError: the server cannot be reached.
        """
        if not Engine(self.crawler).interactive:
            server = read_redis(self.settings, "RedisQueueMixin")
            # What it needs is optional.
            from .feeder import Feeder

            self.redis_feeder = Feeder(self, scheduler, server)

    def start_feeding(self) -> None:
        """Start to take entries, with our scheduler only; called when the spider is opened."""
        engine = Engine(self.crawler)
        if self.redis_feeder is not None:
            self.redis_feeder.start()
        elif not engine.interactive:
            logger.critical(
                "SCHEDULER = %r does not tell when a request survives the death of the process,"
                " which RedisQueueMixin needs to know: set it to 'scrapy_altsched.Scheduler'. The"
                " spider is closed (no_scheduler).",
                self.settings["SCHEDULER"],
                extra={"spider": self},
            )
            engine.close_spider(self, "no_scheduler")

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """The request, or requests, that an entry of the queue stands for; ``None``: none at all.

        An entry is a URL, or a JSON object with ``url`` and, if they are needed, ``method``,
        ``meta`` and fields of a form.  Requests are not filtered as duplicates.

        :raises Exception: whatever is wrong with the entry, which is then put with the dead ones.
        """
        text = data.decode(self.redis_encoding or "utf-8").strip()
        if not text.startswith("{"):
            return Request(text, dont_filter=True)
        fields = json.loads(text)
        if not isinstance(fields.get("url"), str):
            raise ValueError("it has no 'url'")
        url, method = fields.pop("url"), str(fields.pop("method", "GET")).upper()
        meta = fields.pop("meta", {})
        if not isinstance(meta, dict):
            raise TypeError("its 'meta' is no object")
        return FormRequest(url, method=method, meta=meta, formdata=fields, dont_filter=True)
