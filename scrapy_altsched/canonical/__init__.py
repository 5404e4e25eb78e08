"""Rules for URLs: which requests mean the same page.

Rules are frozen data.  They are read and checked once, when the crawl starts, and applied purely:

* ``rules.py``: START HERE.  :class:`Rules`, all rules of a crawl, and the canonical form of a URL;
* ``changes.py``: what the rules that match a URL change in it;
* ``patterns.py``: which rules match a URL;
* ``sources.py``: reads rules from settings and files;
* ``discarder.py``: reads the rules of duplicate-url-discarder;
* ``rule.py``: one rule: its keys and their checks;
* ``globs.py``: names with wildcards;
* ``presets.toml``: the named lists of parameters.

Nothing here depends on Scrapy.  Without a rule the canonical form is that of
:func:`w3lib.url.canonicalize_url`, which Scrapy's fingerprints are made of.
"""

from __future__ import annotations

from .changes import Step
from .rule import Rule
from .rules import Canonical, Rules

__all__ = ["Canonical", "Rule", "Rules", "Step"]
