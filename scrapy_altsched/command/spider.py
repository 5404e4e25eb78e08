"""A spider that does not run, for what only it can tell of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError
from scrapy.utils.misc import load_object

from ..canonical import Rules
from ..dupefilter import DupeFilter
from ..engine.engine import fingerprinter_of
from ..requests.fingerprint import shorten
from ..requests.identity import PageIdentity
from ..requests.made_by import describe
from ..settings import Config

if TYPE_CHECKING:
    import argparse

    from scrapy import Spider

    from .project import Project


def add_spider_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that gives a spider its arguments."""
    parser.add_argument(
        "-a",
        dest="arguments",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the spider, as for a crawl (may be repeated)",
    )


def create_spider(project: Project, name: str, arguments: list[str]) -> Spider:
    """Create the spider of that name, with every setting as in a crawl.

    :param arguments: its own, each as ``NAME=VALUE``.
    :raises UsageError: the project has none, or it cannot be created.
    """
    crawler = project.crawler(name)
    given = _read(arguments)
    try:
        crawler.spider = spider = crawler.spidercls.from_crawler(crawler, **given)
    except Exception as error:  # whatever the spider's code raises
        message = f"the spider {name!r} cannot be created ({type(error).__name__}: {error})"
        raise UsageError(f"{message}; -a gives it arguments", print_help=False) from error
    return spider


def _read(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"-a takes NAME=VALUE, not {pair!r}", print_help=False)
        found[name] = value
    return found


def identity_of(spider: Spider) -> tuple[PageIdentity, bytes]:
    """What makes the fingerprints of a spider's crawl, and the note about it.

    :raises ConfigError: a rule, or a setting, cannot be used.
    """
    crawler = spider.crawler
    filter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
    if getattr(filter_class, "request_seen", None) is DupeFilter.request_seen:
        dupefilter = filter_class.from_crawler(crawler)
        dupefilter.use_rules(Config.from_settings(crawler.settings, disk=None).rules_of(spider))
        return dupefilter.identity, dupefilter.fingerprint_note
    # Another package's filter has a seen set of its own: these only name requests in the store.
    fingerprinter = fingerprinter_of(crawler)
    identity = PageIdentity(lambda request: shorten(fingerprinter.fingerprint(request)))
    return identity, describe(fingerprinter, Rules())
