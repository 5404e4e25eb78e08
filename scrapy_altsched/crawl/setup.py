"""What the parts of an open crawl are created from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.engine import Engine
from ..frontier import Clock
from ..requests.entries import Entries
from ..requests.identity import PageIdentity
from ..settings import Config
from .reports import Reports
from .tally import Tally

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter


@dataclass(frozen=True, slots=True)
class Setup:
    """What the parts of an open crawl are created from.

    :ivar jobdir: the job directory, absolute; ``None``: all is in memory.
    :ivar fingerprint_note: what makes the fingerprints.
    :ivar feed_files: the local files that the feeds of a job will write to.
    """

    crawler: Crawler
    spider: Spider
    engine: Engine
    config: Config
    clock: Clock
    jobdir: str | None
    dupefilter: BaseDupeFilter
    identity: PageIdentity
    fingerprint_note: bytes
    feed_files: Sequence[Path]
    entries: Entries
    reports: Reports
    tally: Tally
