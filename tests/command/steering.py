"""Actions on a shared crawl, as a command applies them; by itself, in a process that can be killed.

``python -m tests.command.steering PORT URL COUNT`` pushes pages ``URL?1`` to ``URL?COUNT``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from scrapy.settings import Settings

from scrapy_altsched.command.crawl import Crawl
from scrapy_altsched.command.project import Project

from ..crawls import PROJECT

KEY = "pages"


def steer(port: int, **settings: Any) -> Crawl:
    """The shared crawl of the spider "pages" of the tests' project."""
    if str(PROJECT) not in sys.path:
        sys.path.append(str(PROJECT))
    found = Settings()
    found.setmodule("crashsite.settings", priority="project")
    found.setdict({"REDIS_PORT": port, **settings}, priority="cmdline")
    return Crawl(Project(found), KEY)


def pages(url: str, count: int) -> Iterator[dict[str, Any]]:
    """Requests of pages that differ in their queries."""
    return ({"url": f"{url}?{number}"} for number in range(1, count + 1))


def main(port: str, url: str, count: str) -> None:
    from scrapy_altsched.steering.actions import Push

    effect = steer(int(port)).apply(Push(pages(url, int(count))), [f"url={url}"])
    print(effect.changed, effect.refused, flush=True)


if __name__ == "__main__":
    os.chdir(PROJECT)
    main(*sys.argv[1:])
