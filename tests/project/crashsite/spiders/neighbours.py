"""Spiders that lean on Scrapy's other parts."""

from __future__ import annotations

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider

from scrapy_altsched.signals import frontier_committed

from .pages import PagesSpider


class RulesSpider(CrawlSpider):
    """Walks lists, yields an item a page, and follows what pages lead to."""

    name = "rules"
    rules = (
        Rule(LinkExtractor(allow="/list/")),
        Rule(LinkExtractor(allow="/page/"), "parse_page", cb_kwargs={"kind": "page"}, follow=True),
    )

    async def start(self):
        yield Request(self.url)

    def parse_page(self, response, kind):
        yield {"url": response.url, "kind": kind}


class MapSpider(SitemapSpider):
    """Reads a site's map, by way of its robots.txt."""

    name = "map"
    sitemap_rules = [("/page/", "parse_page"), ("/offer/", "parse_offer")]
    sitemap_follow = ["/maps/"]

    def __init__(self, url, **kwargs):
        self.sitemap_urls = [url]
        super().__init__(**kwargs)

    def parse_page(self, response):
        yield {"url": response.url, "kind": "page"}

    def parse_offer(self, response):
        yield {"url": response.url, "kind": "offer"}


class AtHomeSpider(PagesSpider):
    """Stays on one host."""

    name = "athome"
    allowed_domains = ["127.0.0.1"]


class FilesSpider(PagesSpider):
    """Has the files that a page links to downloaded with its item."""

    name = "files"
    field = "file_urls"
    ending = ".bin"

    def parse(self, response):
        links = response.css("a::attr(href)").getall()
        files = [response.urljoin(link) for link in links if link.endswith(self.ending)]
        yield {"url": response.url, self.field: files}
        yield from response.follow_all(link for link in links if not link.endswith(self.ending))


class ImagesSpider(FilesSpider):
    """Has the images that a page links to downloaded with its item."""

    name = "images"
    field = "image_urls"
    ending = ".png"
    custom_settings = {"IMAGES_THUMBS": {"small": (30, 30)}}


class RefilledSpider(Spider):
    """Is given one more page each time that it is idle."""

    name = "refilled"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.left = list(range(1, 6))
        crawler.signals.connect(spider.refill, signals.spider_idle)
        return spider

    async def start(self):
        yield Request(f"{self.url}/0")

    def refill(self):
        if self.left:
            self.crawler.engine.crawl(Request(f"{self.url}/{self.left.pop(0)}"))
            raise DontCloseSpider

    def parse(self, response):
        yield {"url": response.url}


class PausedSpider(PagesSpider):
    """Pauses the engine when the first page is there, and says so."""

    name = "paused"

    def parse(self, response):
        if response.url.endswith("/0"):
            from twisted.internet import reactor

            self.crawler.engine.pause()
            print("paused", flush=True)
            reactor.callLater(float(self.after), self.go_on)
        yield from super().parse(response)

    def go_on(self):
        print("unpaused", flush=True)
        self.crawler.engine.unpause()
        # Scrapy itself looks again within five seconds; a new request has it look at once.
        self.crawler.engine.crawl(Request(f"{self.url[:-2]}/late"))


class MixedSpider(Spider):
    """Its first page leads to all others: twice to some, by unserializable requests to some."""

    name = "mixed"

    async def start(self):
        yield Request(f"{self.url}/0")

    def parse(self, response):
        yield {"url": response.url}
        if response.url.endswith("/0"):
            for number in (1, 2, 3, 1, 4, 5, 0, 2, 6):
                callback = (lambda response: {"url": response.url}) if number > 4 else self.parse
                yield response.follow(f"/{number}", callback)


class FilledSpider(Spider):
    """While /held is under way and the engine is full, two requests come in from outside.

    The second one comes when the commit of the first is through and not over: it finds no commit
    due, however late it is.
    """

    name = "filled"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.fill, signals.request_reached_downloader)
        return spider

    async def start(self):
        yield Request(f"{self.url}/held")

    def fill(self, request):
        if request.url.endswith("/held"):
            call_later(float(self.after), self.crawl_late)

    def crawl_late(self):
        # Connected last: what the test reads of this commit comes before "late".
        self.crawler.signals.connect(self.crawl_later, frontier_committed)
        self.crawler.engine.crawl(Request(f"{self.url}/late/1"))

    def crawl_later(self):
        self.crawler.signals.disconnect(self.crawl_later, frontier_committed)
        self.crawler.engine.crawl(Request(f"{self.url}/late/2"))
        print("late", flush=True)

    def parse(self, response):
        yield {"url": response.url}


def call_later(delay, call):
    """With a reactor or without."""
    try:
        from scrapy.utils.asyncio import call_later as with_or_without
    except ImportError:  # new in Scrapy 2.14
        from twisted.internet import reactor

        reactor.callLater(delay, call)
    else:
        with_or_without(delay, call)
