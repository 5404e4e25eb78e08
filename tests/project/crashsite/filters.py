"""Dupefilters of a project's own: pages are the same whatever their query is."""

from __future__ import annotations

from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from twisted.internet.defer import Deferred

from scrapy_altsched import DupeFilter


def without_query(request):
    return request.replace(url=request.url.partition("?")[0])


class OnStock(RFPDupeFilter):
    """On top of Scrapy's."""

    def request_seen(self, request):
        return super().request_seen(without_query(request))


class OnBase(BaseDupeFilter):
    """On top of nothing."""

    def __init__(self):
        self.seen = set()

    def request_seen(self, request):
        url = without_query(request).url
        is_new = url not in self.seen
        self.seen.add(url)
        return not is_new


class OnOurs(DupeFilter):
    """On top of ours, by its answers."""

    def request_seen(self, request):
        return super().request_seen(without_query(request))


class OnOurFingerprint(DupeFilter):
    """On top of ours, by its fingerprints."""

    def fingerprint(self, request):
        return super().fingerprint(without_query(request))


class Slow(OnStock):
    """Needs time to open and to close, and says when it is through."""

    def open(self):
        return self.later("filter opened")

    def close(self, reason):
        super().close(reason)
        return self.later("filter closed")

    @staticmethod
    def later(event):
        from twisted.internet import reactor

        deferred = Deferred()
        deferred.addCallback(lambda _: print(event, flush=True))
        reactor.callLater(0.1, deferred.callback, None)
        return deferred
