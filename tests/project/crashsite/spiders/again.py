"""Pages that are crawled again."""

from __future__ import annotations

from scrapy import Request, Spider


class AgainSpider(Spider):
    """Follows all links of ``url``; pages with "news" in their URLs may have an age of their own.

    :ivar after: that age; *revisit*: seconds after which such pages come back by themselves;
        *times*: how often the crawl goes on for them.
    """

    name = "again"
    after = revisit = ""
    times = "0"

    async def start(self):
        yield Request(f"{self.url}/", self.parse, meta=self.meta_of(f"{self.url}/"))

    def meta_of(self, url):
        meta = {}
        if self.after and "news" in url:
            meta["altsched_recrawl_after"] = self.after
        if self.revisit and "news" in url:
            meta["altsched_revisit"] = float(self.revisit)
        return meta

    def parse(self, response):
        yield {"url": response.url, "meta": sorted(response.meta)}
        self.seen = getattr(self, "seen", 0) + ("news" in response.url)
        if int(self.times) and self.seen >= int(self.times):
            self.crawler.engine.close_spider(self, "enough")
        for link in response.css("a::attr(href)").getall():
            url = response.urljoin(link)
            yield Request(url, self.parse, meta=self.meta_of(url))
