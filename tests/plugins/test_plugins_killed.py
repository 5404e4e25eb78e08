"""Crawls with plugins that keep a record of their own, killed and resumed: nothing is missing."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ..crawl.test_neighbours import File, Library, html
from ..crawls import KILLED, Crawl
from ..sites import Site, random_graph

#: By the kernel, in the middle of a write.
TORN = -signal.SIGXFSZ
DELTAFETCH = {
    "SPIDER_MIDDLEWARES": '{"scrapy_deltafetch.DeltaFetch": 100}',
    "DELTAFETCH_ENABLED": "True",
    # Much is done and not committed when a kill comes.
    "ALTSCHED_COMMIT_INTERVAL": 0.5,
}
FILES = {"ITEM_PIPELINES": '{"scrapy.pipelines.files.FilesPipeline": 1}'}
IMAGES = {"ITEM_PIPELINES": '{"scrapy.pipelines.images.ImagesPipeline": 1}'}
CACHE = {"HTTPCACHE_ENABLED": "True"}
#: How many kills there are, and with which seeds: in most runs, and in the slow one.
KILLS = [
    pytest.param(1, 0),
    *(pytest.param(6, seed, marks=pytest.mark.slow) for seed in range(3)),
]


def seeded(seed: int) -> random.Random:
    print(f"seed {seed}")
    return random.Random(seed)


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (60, 60), noise(seed, 60 * 60 * 3)).save(file, "PNG")
    return file.getvalue()


def library(ending: str, pages: int = 12) -> dict[str, File]:
    """Pages that lead from one to the next, each with a file of its own and one that all share."""
    make = picture if ending == ".png" else lambda seed: noise(seed, 20_000)
    files = {f"/{number}{ending}": File(content=make(number)) for number in range(pages)}
    return {
        **{
            f"/{number}": html(f"/{number}{ending}", f"/0{ending}", f"/{(number + 1) % pages}")
            for number in range(pages)
        },
        **files,
    }


def paths_of(value: Any, site: Site) -> Any:
    return re.sub(re.escape(site.url), "", value)


def files_of(crawl: Crawl, site: Site, field: str) -> dict[str, set[tuple[str, str]]]:
    """Page -> URL and checksum of each file in its items."""
    found: dict[str, set[tuple[str, str]]] = {}
    for line in crawl.items.read_text().splitlines():
        item = json.loads(line)
        files = found.setdefault(paths_of(item["url"], site), set())
        files |= {(paths_of(file["url"], site), file["checksum"]) for file in item[field]}
    return found


def stored(directory: Path) -> list[str]:
    """The checksum of each file that is stored, without those that were never complete."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sorted(
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.name.endswith(".partial")
    )


def run_torn(
    crawl: Crawl, kills: int, rng: random.Random, below: Path, *names: str, **settings: Any
) -> None:
    """Run a crawl until it ends by itself; before that, have it die in the middle of writes.

    :param names: how the names of files end that it may die at.
    """
    # The same page may be in progress at each of these deaths: no reason for a dead letter here.
    settings["ALTSCHED_MAX_CRASHES"] = kills + 1
    for _ in range(kills):
        tear = {
            "TEAR_BELOW": below,
            "TEAR_NAME": rng.choice(names),
            "TEAR_AT": rng.randint(1, 3),
            "TEAR_AFTER": rng.choice([0, 100, 1500]),
        }
        assert crawl.run(**settings, **tear) == TORN, crawl.log
    assert crawl.run(**settings) == 0
    assert "is finished" in crawl.log
    assert "may lose data" not in crawl.log


@pytest.mark.parametrize(("kills", "seed"), KILLS)
def test_deltafetch_skips_no_page_whose_items_were_lost(
    tmp_path: Path, kills: int, seed: int
) -> None:
    rng = seeded(seed)
    graph = random_graph(150, 3, seed)
    settings = {**DELTAFETCH, "DELTAFETCH_DIR": tmp_path / "delta", "CONCURRENT_REQUESTS": 4}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        for _ in range(kills):
            kill = {"KILL_ON": "item", "KILL_AT": rng.randint(15, 30)}
            assert crawl.run(**settings, **kill) == KILLED
        assert crawl.run(**settings) == 0
        assert "is finished" in crawl.log
        assert "may lose data" not in crawl.log
        assert set(crawl.item_paths()) == set(graph)
        # What is new is all that a later crawl looks at: the first page, which is never skipped.
        (tmp_path / "later").mkdir()
        later = Crawl(tmp_path / "later", "pages", f"{site.url}/0")
        assert later.run(**settings) == 0
        assert later.item_paths() == ["/0"]


@pytest.mark.parametrize(("kills", "seed"), KILLS)
@pytest.mark.parametrize(
    ("spider", "settings", "field"),
    [
        pytest.param("files", FILES, "files", id="files"),
        pytest.param("images", IMAGES, "images", id="images"),
    ],
)
def test_a_file_that_is_torn_by_a_kill_is_stored_again(
    tmp_path: Path, spider: str, settings: dict[str, Any], field: str, kills: int, seed: int
) -> None:
    rng = seeded(seed)
    pages = library(".png" if spider == "images" else ".bin")
    with Library(pages) as site:
        outcomes = []
        for name, times in (("whole", 0), ("killed", kills)):
            (tmp_path / name).mkdir()
            crawl = Crawl(tmp_path / name, spider, f"{site.url}/0")
            store = tmp_path / name / "store"
            place = {"FILES_STORE": store, "IMAGES_STORE": store}
            run_torn(crawl, times, rng, store, "", **settings, **place)
            outcomes.append((files_of(crawl, site, field), stored(store)))
            assert list(store.rglob("*.partial")) == []
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 12


@pytest.mark.parametrize(("kills", "seed"), KILLS)
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_a_response_whose_cache_entry_is_torn_by_a_kill_is_fetched_again(
    tmp_path: Path, is_packed: bool, kills: int, seed: int
) -> None:
    rng = seeded(seed)
    # Each page has one link, at its end: one page that is cut short costs all that come after it.
    start = f"<!-- {noise(seed, 3000).hex()} -->".encode()
    graph = {f"/{number}": [f"/{number + 1}"] for number in range(29)} | {"/29": []}
    pages = {
        path: File(content=start + html(*links).content, kind="text/html")
        for path, links in graph.items()
    }
    with Library(pages) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        cache = tmp_path / "cache"
        settings = {**CACHE, "HTTPCACHE_DIR": cache, "HTTPCACHE_GZIP": is_packed}
        # A body that is cut short is what Scrapy itself does not notice.
        names = ("response_body", "headers", "meta") if kills > 1 else ("response_body",)
        run_torn(crawl, kills, rng, cache, *names, **settings)
        assert set(crawl.item_paths()) == set(graph)
        hits = site.hits.total()
        (tmp_path / "later").mkdir()
        later = Crawl(tmp_path / "later", "pages", f"{site.url}/0")
        assert later.run(**settings) == 0
        assert set(later.item_paths()) == set(graph)
        assert site.hits.total() == hits
