"""Meta keys of a request that this package reads."""

from __future__ import annotations

#: Whether no rule is to be applied to it.
SKIP_RULES = "altsched_skip_rules"
#: What identifies it, instead of its URL.
DEDUPE_KEY = "altsched_dedupe_key"
#: Scrapy's own, since 2.17: the URL is used as it is.
VERBATIM = "verbatim_url"
#: Whether every run has to make it, before all others.
EVERY_RUN = "altsched_every_run"
