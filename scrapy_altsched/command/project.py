"""The project that a subcommand runs in, and its spiders, of which none runs."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.settings import Settings
from scrapy.spiderloader import SpiderLoader
from scrapy.utils.misc import load_object

from ..crawl.setup import identify
from ..dupefilter import DupeFilter
from ..engine.engine import prepare_crawler
from ..requests.identity import PageIdentity
from ..settings import Config


def misuse(message: str) -> UsageError:
    """The error for arguments that make no sense, without the help that is usage's."""
    return UsageError(message, print_help=False)


class Project:
    """A project by its *settings*, those of the command line included; no spider's."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def crawler(self, spider: str | None = None) -> Crawler:
        """A crawler that does not run, with every setting as in a crawl of that spider, if any."""
        spider_class = Spider if spider is None else self.spider_class(spider)
        return prepare_crawler(spider_class, self.settings)

    def spider_class(self, name: str) -> type[Spider]:
        """The class of the spider of that name; UsageError: the project has none."""
        try:
            loader = SpiderLoader.from_settings(self.settings)
        except Exception as error:  # whatever the project's modules raise
            why = f"{type(error).__name__}: {error}"
            raise misuse(f"the spiders of this project cannot be loaded ({why})") from error
        try:
            return loader.load(name)
        except KeyError:
            near = difflib.get_close_matches(name, loader.list(), 1)
            hint = f"Did you mean {near[0]!r}?" if near else "`scrapy list` names its spiders."
            raise misuse(f"this project has no spider {name!r}. {hint}") from None


def add_spider_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that gives a spider its arguments."""
    what = "an argument of the spider, as for a crawl (may be repeated)"
    parser.add_argument(
        "-a", dest="arguments", metavar="NAME=VALUE", action="append", default=[], help=what
    )


def read_spider_arguments(arguments: Iterable[str]) -> dict[str, str]:
    """What they say, each as ``NAME=VALUE``; UsageError: one does not."""
    given = {}
    for pair in arguments:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise misuse(f"-a takes NAME=VALUE, not {pair!r}")
        given[key] = value
    return given


def create_spider(project: Project, name: str, arguments: list[str]) -> Spider:
    """Create the spider of that name, as in a crawl; UsageError: it cannot be.

    :param arguments: its own, each as ``NAME=VALUE``.
    """
    crawler, given = project.crawler(name), read_spider_arguments(arguments)
    try:
        crawler.spider = spider = crawler.spidercls.from_crawler(crawler, **given)
    except Exception as error:  # whatever the spider's code raises
        message = f"the spider {name!r} cannot be created ({type(error).__name__}: {error})"
        raise misuse(f"{message}; -a gives it arguments") from error
    return spider


def identity_of(spider: Spider) -> PageIdentity:
    """What makes the fingerprints of a spider's crawl, or ConfigError."""
    return identity_for(spider.crawler, spider)


def identity_for(crawler: Crawler, spider: Spider | type[Spider]) -> PageIdentity:
    """The same by the class of a spider, if it was not created."""
    filter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
    # Another package's filter has a seen set of its own: these only name requests in the store.
    is_ours = getattr(filter_class, "request_seen", None) is DupeFilter.request_seen
    own_filter = filter_class.from_crawler(crawler) if is_ours else None
    rules = Config.from_settings(crawler.settings, disk=None).rules_of(spider)
    return identify(crawler, own_filter, rules)
