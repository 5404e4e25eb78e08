"""Rules for URLs: which requests mean the same page.  Start with :class:`Rules` in ``rules.py``.

Rules are frozen data, read and checked once, when the crawl starts.  Without a rule the canonical
form of a URL is that of :func:`w3lib.url.canonicalize_url`, as in Scrapy's fingerprints.
"""

from __future__ import annotations

from .changes import Step
from .rule import Rule
from .rules import Canonical, Rules

__all__ = ["Canonical", "Rule", "Rules", "Step"]
