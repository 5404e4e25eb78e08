"""Crawls of hosts that are all on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrapy.resolver import CachingThreadedResolver
from scrapy.settings import default_settings
from twisted.internet import defer


class LoopbackResolver(CachingThreadedResolver):
    """Finds all hosts on this machine, at once."""

    def getHostByName(  # noqa: N802  (the interface of Twisted)
        self,
        name: str,  # noqa: ARG002  (all are here)
        timeout: Sequence[int] = (),  # noqa: ARG002  (it takes no time)
    ) -> defer.Deferred[str]:
        return defer.succeed("127.0.0.1")


#: Settings of a real crawl of such hosts, without what would come between scheduler and downloader.
LOOPBACK: dict[str, Any] = {
    # Newer versions of Scrapy have another name for it.
    "TWISTED_DNS_RESOLVER"
    if hasattr(default_settings, "TWISTED_DNS_RESOLVER")
    else "DNS_RESOLVER": f"{__name__}.{LoopbackResolver.__name__}",
    "COOKIES_ENABLED": False,
    "HTTPPROXY_ENABLED": False,
    "LOGSTATS_INTERVAL": 0,
    "RETRY_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    # Not the default of older versions.
    "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    "TELNETCONSOLE_ENABLED": False,
}
