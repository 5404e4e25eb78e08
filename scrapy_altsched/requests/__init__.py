"""START HERE.  Scrapy's requests as this package knows them, and the meta keys that it reads.

:mod:`.identity` tells which ones mean the same page, by way of :mod:`.fingerprint`; :mod:`.codec`
encodes and decodes requests, and :mod:`.portable` does so for a server that others can write to, by
way of :mod:`.values`; :mod:`.entries` combines all that for a frontier.  :mod:`.delays` reads how
long a request is to wait.
"""

from __future__ import annotations

#: Whether no rule is to be applied to it.
SKIP_RULES = "altsched_skip_rules"
#: What identifies it, instead of its URL.
DEDUPE_KEY = "altsched_dedupe_key"
#: Scrapy's own, since 2.17: the URL is used as it is.
VERBATIM = "verbatim_url"
#: Whether every run has to make it, before all others.
EVERY_RUN = "altsched_every_run"
#: Whether it follows the request that its parent was, once more: set by this package only.
FOLLOWS = "_altsched_follows"
#: For how many seconds it has to wait, or a pair of the least and the most.
DELAY = "altsched_delay"
#: How old its page has to be to be crawled again.
RECRAWL_AFTER = "altsched_recrawl_after"
#: After how long it comes back by itself, each time that it is done: as for DELAY.
REVISIT = "altsched_revisit"
#: The URL of the page that it was found on first.
FOUND_ON = "altsched_found_on"
#: Until when it has to wait: seconds since the epoch, or a datetime.
NOT_BEFORE = "altsched_not_before"
