"""Meta keys of a request that this package reads."""

from __future__ import annotations

#: Whether no rule is to be applied to it.
SKIP_RULES = "altsched_skip_rules"
#: What it is to be told by, instead of its URL.
DEDUPE_KEY = "altsched_dedupe_key"
#: Of Scrapy since 2.17: the URL counts as it stands.
VERBATIM = "verbatim_url"
#: Whether every run has to make it, before all others.
EVERY_RUN = "altsched_every_run"
