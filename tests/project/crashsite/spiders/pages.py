"""Spiders for the tests' sites."""

from __future__ import annotations

import asyncio
import os
import signal

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_altsched.engine.engine import Engine, current_scheduler
from scrapy_altsched.engine.event_loop import sleep


class PagesSpider(Spider):
    """Follows every link and yields an item a page."""

    name = "pages"

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        if response.url.endswith(getattr(self, "poison", "none")):
            os.kill(os.getpid(), signal.SIGKILL)
        self.state_count()
        padding = "x" * int(getattr(self, "padding", 0))
        yield {"url": response.url, "padding": padding} if padding else {"url": response.url}
        yield from response.follow_all(css="a")

    def state_count(self):
        if hasattr(self, "state"):
            self.state["pages"] = self.state.get("pages", 0) + 1


class WanderingSpider(PagesSpider):
    """Changes the working directory (argument ``to``) before its first page."""

    name = "wandering"

    async def start(self):
        os.chdir(self.to)
        async for request in super().start():
            yield request


class MembersSpider(PagesSpider):
    """Logs in first, by a page and the form on it, in each run."""

    name = "members"

    async def start(self):
        key = {"altsched_every_run": True} if int(getattr(self, "keyed", 1)) else {}
        yield Request(f"{self.url}/login", self.log_in, meta=key)
        yield Request(f"{self.url}/0")

    def log_in(self, response):
        yield response.follow("/form", self.parse_form, meta=response.meta)

    def parse_form(self, response):
        self.logger.info("logged in")


class GenerousSpider(PagesSpider):
    """Kills the process at one page, when all that the page leads to is scheduled."""

    name = "generous"

    def parse(self, response):
        poisonous = response.url.endswith(self.poison)
        yield from response.follow_all(css="a")
        if poisonous:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"url": response.url}


class PatientSpider(Spider):
    """Its start page waits for a request that it feeds itself; unless it kills the process."""

    name = "patient"

    async def start(self):
        yield Request(f"{self.url}/0")

    async def parse(self, response):
        if int(getattr(self, "die", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        self.fed = Deferred()
        self.crawler.engine.crawl(Request(f"{self.url}/fed", self.parse_fed))
        await maybe_deferred_to_future(self.fed)
        return {"url": response.url}

    def parse_fed(self, response):
        self.fed.callback(None)
        return {"url": response.url}


class ManyStartsSpider(PagesSpider):
    """Starts with every page, as Scrapy's own start() does: unfiltered."""

    name = "starts"

    async def start(self):
        for number in range(int(self.count)):
            yield Request(f"{self.url}/{number}", dont_filter=True)

    def parse(self, response):
        yield {"url": response.url}


class OwnPageSpider(ManyStartsSpider):
    """Its start() goes on when the callback of its first request was called."""

    name = "own-page"

    async def start(self):
        self.first = Deferred()
        is_unique = bool(int(getattr(self, "unique", 0)))
        yield Request(f"{self.url}/first", self.parse_first, dont_filter=not is_unique)
        await maybe_deferred_to_future(self.first)
        async for request in super().start():
            yield request

    def parse_first(self, response):
        self.first.callback(None)
        yield Request(f"{self.url}/other")


class HoldingSpider(ManyStartsSpider):
    """Never comes to an end with a page, if argument ``hold`` says so."""

    name = "holding"

    async def parse(self, response):
        if int(self.hold):
            print("holding", flush=True)
            await maybe_deferred_to_future(Deferred())
        return {"url": response.url}


class ItemFirstSpider(PagesSpider):
    """Its start() itself yields an item."""

    name = "item-first"

    async def start(self):
        yield {"url": f"{self.url}-start"}
        yield Request(self.url)


class TwiceSpider(ManyStartsSpider):
    """Starts with every page twice."""

    name = "twice"

    async def start(self):
        for number in [*range(int(self.count)), *range(int(self.count))]:
            yield Request(f"{self.url}/{number}", dont_filter=True)


class BrokenStartSpider(ManyStartsSpider):
    """Its start() raises half-way, until it is repaired."""

    name = "broken"

    async def start(self):
        yield Request(f"{self.url}/0", dont_filter=True)
        if not int(getattr(self, "repaired", 0)):
            raise RuntimeError("broken half-way")
        yield Request(f"{self.url}/1", dont_filter=True)


class FedSpider(Spider):
    """Is fed one request while it is idle, and killed right after."""

    name = "fed"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.feed, signals.spider_idle)
        return spider

    async def start(self):
        yield Request(f"{self.url}/start")

    def feed(self):
        if int(getattr(self, "die", 0)):
            self.crawler.engine.crawl(Request(f"{self.url}/fed"))
            os.kill(os.getpid(), signal.SIGKILL)

    def parse(self, response):
        yield {"url": response.url}


class MemoryOnlySpider(Spider):
    """/a leads to /b by a request that cannot be serialized; so does /c, by one that can."""

    name = "memory"

    async def start(self):
        yield Request(f"{self.url}/a", priority=2)
        yield Request(f"{self.url}/c", priority=1)

    def parse(self, response):
        yield {"url": response.url}
        if response.url.endswith("/a"):
            yield Request(f"{self.url}/b", callback=lambda response: {"url": response.url})
        if response.url.endswith("/c"):
            yield Request(f"{self.url}/b")


class LambdasSpider(Spider):
    """Ten lists of twenty pages, each of which leads to one more: all by lambdas."""

    name = "lambdas"

    async def start(self):
        yield Request(f"{self.url}/", self.parse)

    def parse(self, response):
        for number in range(10):
            yield Request(f"{self.url}/list/{number}", self.parse_list)

    def parse_list(self, response):
        for number in range(20):
            yield response.follow(f"{response.url}/{number}", lambda page: self.parse_page(page))

    def parse_page(self, response):
        yield {"url": response.url}
        yield response.follow(f"{response.url}/more", lambda page: iter([{"url": page.url}]))


class OrphanSpider(Spider):
    """A timer brings a request that cannot be serialized, and then the run ends.

    :ivar end: "kill" or "close"; empty: there is no timer.
    """

    name = "orphan"

    async def start(self):
        yield Request(f"{self.url}/")

    def parse(self, response):
        if self.end:
            deferred_from_coro(self.feed())

    async def feed(self):
        await sleep(0)
        self.crawler.engine.crawl(Request(f"{self.url}/fed", callback=lambda _: None))
        current_scheduler(self.crawler).checkpoint()
        if self.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        Engine(self.crawler).close_spider(self, "enough")


class OrderSpider(Spider):
    """Yields requests of several priorities, every other one not serializable."""

    name = "order"

    async def start(self):
        yield Request(f"{self.url}/start")

    def parse(self, response):
        yield {"url": response.url}
        if response.url.endswith("/start"):
            for number, priority in enumerate([0, 5, 0, 5, -1, 5, 0]):
                callback = (lambda response: {"url": response.url}) if number % 2 else self.parse
                yield Request(f"{self.url}/{number}", callback=callback, priority=priority)


class SlowSpider(Spider):
    """While /held is under way, another request comes in from outside."""

    name = "slow"

    async def start(self):
        yield Request(f"{self.url}/quick")
        yield Request(f"{self.url}/held", priority=-1)

    def parse(self, response):
        yield {"url": response.url}

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.wait, signals.request_reached_downloader)
        return spider

    def wait(self, request):
        if request.url.endswith("/held"):
            from twisted.internet import reactor

            reactor.callLater(float(self.after), self.crawl_late)

    def crawl_late(self):
        print("late", flush=True)
        self.crawler.engine.crawl(Request(f"{self.url}/late"))


class AsyncSpider(PagesSpider):
    """Works on each page in steps."""

    name = "async"

    async def parse(self, response):
        yield {"url": response.url}
        await asyncio.sleep(0)
        for link in response.css("a"):
            await asyncio.sleep(0)
            yield response.follow(link)


class TogetherSpider(PagesSpider):
    """Works on pages for long, or until so many are in work at once (argument ``together``).

    Argument ``seconds``: the page with this number takes, in turn; 0: none does.
    """

    name = "together"
    together = "0"
    seconds = "0"

    async def start(self):
        self.in_work = []
        for number in range(int(self.pages)):
            yield Request(f"{self.url}/{number}")

    async def parse(self, response):
        print(response.url, flush=True)
        if int(self.together):
            deferred = Deferred()
            self.in_work.append(deferred)
            if len(self.in_work) == int(self.together):
                self.release()
            await maybe_deferred_to_future(deferred)
        turns = [float(part) for part in self.seconds.split(",")]
        if seconds := turns[int(response.url.rpartition("/")[2]) % len(turns)]:
            await asyncio.sleep(seconds)
        yield {"url": response.url}

    def release(self):
        for deferred in self.in_work:
            deferred.callback(None)


class LatePoisonSpider(PagesSpider):
    """A page of its own kills the process, if it is poison, long after its response was there."""

    name = "late"

    async def parse(self, response):
        if response.url.endswith(self.poison):
            await asyncio.sleep(float(self.delay))
            os.kill(os.getpid(), signal.SIGKILL)
        for result in super().parse(response):
            yield result


class EarlyPoisonSpider(PagesSpider):
    """A page of its own kills the process, if it is poison, before it is downloaded."""

    name = "early"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.die, signals.request_reached_downloader)
        return spider

    def die(self, request):
        if request.url.endswith(self.poison):
            os.kill(os.getpid(), signal.SIGKILL)

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")


class WaitingSpider(PagesSpider):
    """Does not end by itself."""

    name = "waiting"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.stay, signals.spider_idle)
        return spider

    def stay(self):
        raise DontCloseSpider
