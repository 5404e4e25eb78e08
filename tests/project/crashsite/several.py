"""Several spiders in one process: ``python -m crashsite.several '[{...}, ...]'``.

Each is given as ``{"spider": name, "arguments": {...}, "settings": {...}}``.
"""

from __future__ import annotations

import json
import sys

from scrapy.crawler import CrawlerProcess
from scrapy.utils.project import get_project_settings

if __name__ == "__main__":
    process = CrawlerProcess(get_project_settings())
    for job in json.loads(sys.argv[1]):
        spider_class = process.spider_loader.load(job["spider"])
        own = type(spider_class.__name__, (spider_class,), {"custom_settings": job["settings"]})
        process.crawl(own, **job["arguments"])
    process.start()
