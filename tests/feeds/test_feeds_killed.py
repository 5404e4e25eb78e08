"""Feeds of crawls that are killed and resumed: what is promised holds, the rest is warned of."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..crawls import Crawl
from ..sites import Page, Site

PAGES = {f"/{number}": Page([f"/{number + 1}"]) for number in range(12)} | {"/12": Page()}


def paths_in_csv(text: str) -> list[str]:
    header, *found = text.splitlines()
    assert header == "url"
    return [re.sub(r"^http://[^/]+", "", url) for url in found]


def paths_in_lines(text: str) -> list[str]:
    return [re.sub(r"^http://[^/]+", "", json.loads(line)["url"]) for line in text.splitlines()]


@pytest.mark.parametrize("option", ["-o", "-O"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("items.csv", paths_in_csv),
        pytest.param("items.jsonl", paths_in_lines, marks=pytest.mark.smoke),
        ("items-%(batch_id)d.csv", paths_in_csv),
        ("items-%(batch_id)d.jsonl", paths_in_lines),
    ],
)
def test_a_crawl_that_is_killed_again_and_again_has_every_item_in_its_feed(
    tmp_path: Path, option: str, name: str, read: Callable[[str], list[str]]
) -> None:
    with Site(PAGES) as site:
        job = Crawl(tmp_path, "pages", f"{site.url}/0")
        feed = (option, str(tmp_path / name))
        batches = {"FEED_EXPORT_BATCH_ITEM_COUNT": 4} if "batch" in name else {}
        for killed_at in (6, 4):
            settings = {"KILL_ON": "item", "KILL_AT": killed_at, "ALTSCHED_COMMIT_EVERY": 1}
            assert job.run(feed, **settings, **batches) == -signal.SIGKILL
        assert job.run(feed, **batches) == 0
        assert "is finished" in job.log
    files = sorted(tmp_path.glob(name.replace("%(batch_id)d", "*")))
    found = [path for file in files for path in read(file.read_text())]
    assert set(found) == set(PAGES)
    # Of each page that was under way at a kill, the item may be there twice.
    assert len(found) <= len(PAGES) + 4


@pytest.mark.parametrize(
    ("feed", "settings", "warning"),
    [
        (("-o", "items.json"), {}, "items.json may lose items"),
        (("-o", "items.xml"), {}, "items.xml may lose items"),
        (("-O", "items.json"), {}, "items.json may lose items"),
        (
            (),
            {
                "FEEDS": {
                    "items.jl.gz": {
                        "format": "jsonlines",
                        "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"],
                    }
                }
            },
            "items.jl.gz may lose items",
        ),
    ],
    ids=["json", "xml", "overwritten json", "gzip"],
)
def test_a_feed_that_a_kill_breaks_was_warned_of_and_the_job_resumes(
    tmp_path: Path, feed: tuple[str, ...], settings: dict[str, Any], warning: str
) -> None:
    feeds = {str(tmp_path / path): options for path, options in settings.get("FEEDS", {}).items()}
    given = {"FEEDS": json.dumps(feeds)} if feeds else {}
    options = tuple(str(tmp_path / part) if "." in part else part for part in feed)
    with Site(PAGES) as site:
        job = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert job.run(options, KILL_ON="item", KILL_AT=5, **given) == -signal.SIGKILL
        assert warning in job.log
        assert job.run(options, **given) == 0
        assert warning in job.log
        assert "is finished" in job.log
        assert set(site.hits) == set(PAGES)
