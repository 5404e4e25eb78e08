"""What a fingerprint costs, compared with Scrapy's own: ``python -m benchmarks.fingerprints``.

The URLs are the recorded links of a documentation site, each of them once.  In each round every
contender in turn fingerprints the same URLs, in requests of its own that were created before, and
the processor time is measured; medians over all rounds are shown.  A round has so many requests
that w3lib's cache of the last 128 URLs, filled when they were created, helps none of them, and
that it does not matter whose code is in the processor's caches at the beginning.

No rule matches any of these URLs; a rule costs nothing where it does not.
"""

from __future__ import annotations

import gc
import gzip
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter as ScrapyFingerprinter

from scrapy_altsched import RequestFingerprinter
from scrapy_altsched.canonical import Rules

LINKS = Path(__file__).parent.parent / "example_project" / "data" / "python-docs-links.jsonl.gz"
URLS = 2_000
PASSES = 40  # over all URLs of a kind, by each contender in turn

Contenders = dict[str, Callable[[Request], bytes]]


def recorded_urls() -> dict[str, list[str]]:
    """Kind of URL -> different recorded URLs of that kind, in random order."""
    found: set[str] = set()
    with gzip.open(LINKS, "rt", encoding="utf-8") as file:
        for line in file:
            found.update(json.loads(line)[1])
    urls = [url for url in sorted(found) if url.startswith("http")]
    random.Random(1).shuffle(urls)
    kinds = {
        "plain": [url for url in urls if "?" not in url and "#" not in url],
        "with a fragment": [url for url in urls if "?" not in url and "#" in url],
        "with a query": [url for url in urls if "?" in url],
    }
    return {kind: urls[:URLS] for kind, urls in kinds.items()}


def rules(number: int) -> Rules:
    """*number* rules, each for another host."""
    return Rules.load(
        [
            {"include": f"shop-{at}.example/c/*", "ignore_params": ["view", "utm_*"]}
            for at in range(number)
        ]
    )


def measure(contenders: Contenders, urls: list[str]) -> dict[str, float]:
    """Microseconds a fingerprint, by contender."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(PASSES):
        for name, make in contenders.items():
            requests = [Request(url) for url in urls]
            gc.collect()
            start = time.process_time()
            for request in requests:
                make(request)
            times[name].append((time.process_time() - start) / len(urls) * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    contenders: Contenders = {"Scrapy": ScrapyFingerprinter().fingerprint}
    for number in (0, 10, 1_000):
        contenders[f"{number:,} rules"] = RequestFingerprinter(rules(number)).fingerprint
    table = Table("recorded URLs", title="Microseconds a fingerprint (part of Scrapy's time)")
    for name in contenders:
        table.add_column(name, justify="right")
    for kind, urls in recorded_urls().items():
        found = measure(contenders, urls)
        row = [f"{value:.2f} (1/{found['Scrapy'] / value:.1f})" for value in found.values()]
        table.add_row(f"{len(urls):,} {kind}", *row)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
