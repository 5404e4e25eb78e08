"""Pipelines of the tests' crawls."""

from __future__ import annotations

from twisted.internet.defer import Deferred


class StuckPipeline:
    """Never lets go of the item of the page named by ``STUCK_ON``."""

    @classmethod
    def from_crawler(cls, crawler):
        pipeline = cls()
        pipeline.stuck_on = crawler.settings["STUCK_ON"]
        return pipeline

    def process_item(self, item, spider=None):
        if self.stuck_on and item["url"].endswith(self.stuck_on):
            print("stuck", flush=True)
            return Deferred()
        return item
