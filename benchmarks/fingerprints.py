"""What a fingerprint costs, beside Scrapy's own: ``python -m benchmarks.fingerprints``.

The URLs are the recorded links of a documentation site, each of them once.  In each round every
contender fingerprints the same URLs in requests of its own, which were made before; rounds
alternate between the contenders, and medians are shown.  The requests are so many that w3lib's
cache of the last 128 URLs, filled when they were made, helps nobody.
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
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_altsched.fingerprint import fingerprint

LINKS = Path(__file__).parent.parent / "example_project" / "data" / "python-docs-links.jsonl.gz"
URLS = 2_000
ROUNDS = 15

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


def measure(contenders: Contenders, urls: list[str]) -> dict[str, float]:
    """Microseconds a fingerprint, by contender."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, make in contenders.items():
            requests = [Request(url) for url in urls]
            gc.collect()
            start = time.perf_counter()
            for request in requests:
                make(request)
            times[name].append((time.perf_counter() - start) / len(urls) * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    contenders: Contenders = {"Scrapy": scrapy_fingerprint, "scrapy_altsched": fingerprint}
    table = Table(title="Microseconds a fingerprint, and Scrapy's time divided by it")
    table.add_column("URLs")
    for name in contenders:
        table.add_column(name, justify="right")
    for kind, urls in recorded_urls().items():
        found = measure(contenders, urls)
        row = [f"{value:.2f} (1/{found['Scrapy'] / value:.1f})" for value in found.values()]
        table.add_row(f"{len(urls)} {kind}", *row)
    Console().print(table)


if __name__ == "__main__":
    main()
