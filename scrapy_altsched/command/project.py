"""The project that a subcommand runs in, and its spiders."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from scrapy import Spider
from scrapy.exceptions import UsageError
from scrapy.spiderloader import SpiderLoader

from ..engine.engine import prepare_crawler

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings


class Project:
    """The settings of ``settings.py``, the command line and a spider together.

    :ivar settings: the project's, those of the command line included; no spider's.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def crawler(self, spider: str | None = None) -> Crawler:
        """A crawler that does not run, with every setting as in a crawl of that spider.

        :param spider: its name; ``None``: the project's settings alone.
        :raises UsageError: the project has no such spider.
        """
        spider_class = Spider if spider is None else self.spider_class(spider)
        return prepare_crawler(spider_class, self.settings)

    def spider_class(self, name: str) -> type[Spider]:
        """The class of the spider of that name.

        :raises UsageError: the project has none.
        """
        loader = SpiderLoader.from_settings(self.settings)
        try:
            return loader.load(name)
        except KeyError:
            near = difflib.get_close_matches(name, loader.list(), 1)
            hint = f"Did you mean {near[0]!r}?" if near else "`scrapy list` names its spiders."
            message = f"this project has no spider {name!r}. {hint}"
            raise UsageError(message, print_help=False) from None
