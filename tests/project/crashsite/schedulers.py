"""Schedulers of a project's own, on top of ours and on top of Scrapy's."""

from __future__ import annotations

from scrapy.core.scheduler import Scheduler as StockScheduler

from scrapy_altsched import Scheduler


class _Choosy:
    """Wants no page that ends with 3, puts those that end with 7 first, and tells what it did."""

    def enqueue_request(self, request):
        if request.url.endswith("3"):
            return False
        if request.url.endswith("7"):
            request = request.replace(priority=1)
        return super().enqueue_request(request)

    def next_request(self):
        request = super().next_request()
        if request is not None:
            self.stats.inc_value("choosy/handed out")
        return request


class Choosy(_Choosy, Scheduler):
    """On top of ours."""


class StockChoosy(_Choosy, StockScheduler):
    """On top of Scrapy's."""
