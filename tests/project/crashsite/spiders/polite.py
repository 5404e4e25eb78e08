"""Download slots with a delay beside one without."""

from __future__ import annotations

from scrapy import Request, Spider


class PoliteSpider(Spider):
    """Asks ``url`` for pages, in a slot called fast, and in slots with a delay; an item a page."""

    name = "polite"
    slow_slots, slow_pages, fast_pages = 6, 3, 40
    custom_settings = {
        "DOWNLOAD_SLOTS": {f"slow{number}": {"delay": 4} for number in range(6)},
        "CONCURRENT_REQUESTS": 4,
    }

    async def start(self):
        yield Request(f"{self.url}/", self.parse)

    def parse(self, response):
        for page in range(self.slow_pages):
            for slot in range(self.slow_slots):
                yield self.ask(f"slow{slot}", page)
        for page in range(self.fast_pages):
            yield self.ask("fast", page)

    def ask(self, slot, page):
        meta = {"download_slot": slot}
        return Request(f"{self.url}/{slot}/{page}", self.parse_page, meta=meta)

    def parse_page(self, response):
        yield {"slot": response.meta["download_slot"]}
