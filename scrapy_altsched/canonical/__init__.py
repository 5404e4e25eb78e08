"""Rules for URLs: which requests mean the same page.

Rules are frozen data, read and checked once, when the crawl starts, and applied purely.  Start with
``rules.py``: :class:`Rules`, all rules of a crawl, and the canonical form of a URL.

Nothing here depends on Scrapy.  Without a rule the canonical form is that of
:func:`w3lib.url.canonicalize_url`, which Scrapy's fingerprints are made of.
"""

from __future__ import annotations

from .changes import Step
from .rule import Rule
from .rules import Canonical, Rules

__all__ = ["Canonical", "Rule", "Rules", "Step"]
