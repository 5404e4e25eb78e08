"""Which plugins are replaced, and which are warned of."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import scrapy_deltafetch
from scrapy import Spider
from scrapy.extensions.httpcache import FilesystemCacheStorage as StockCache
from scrapy.pipelines.files import FilesPipeline as StockFiles
from scrapy.pipelines.files import FSFilesStore
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from scrapy_altsched import Addon
from scrapy_altsched.plugins import warn_of_unsafe_plugins
from scrapy_altsched.plugins.configured import KNOWN, SAFE
from scrapy_altsched.plugins.deltafetch import DeltaFetch
from scrapy_altsched.plugins.files import FilesPipeline, ImagesPipeline, LocalFilesStore
from scrapy_altsched.plugins.httpcache import FilesystemCacheStorage

from ..crawls import Crawl
from ..sites import Page, Site

STOCK_FILES = "scrapy.pipelines.files.FilesPipeline"
STOCK_IMAGES = "scrapy.pipelines.images.ImagesPipeline"
STOCK_CACHE = "scrapy.extensions.httpcache.FilesystemCacheStorage"
DBM_CACHE = "scrapy.extensions.httpcache.DbmCacheStorage"


class OwnFiles(StockFiles):
    """A project's own."""


class OwnSafeFiles(FilesPipeline):
    """A project's own, on top of ours."""


class OwnSchemes(StockFiles):
    """A project's own, with our stores."""

    STORE_SCHEMES = FilesPipeline.STORE_SCHEMES


class OwnCache(StockCache):
    """A project's own."""


class OwnDeltaFetch(scrapy_deltafetch.DeltaFetch):
    """A project's own."""


def settings_of(priority: str = "project", **values: Any) -> Settings:
    settings = Settings()
    settings.setdict(values, priority)
    return settings


def updated(priority: str = "project", **values: Any) -> Settings:
    settings = settings_of(priority, **values)
    Addon().update_settings(settings)
    return settings


@pytest.mark.parametrize("path", SAFE)
def test_each_class_that_is_replaced_is_the_base_of_what_replaces_it(path: str) -> None:
    assert issubclass(load_object(SAFE[path]), load_object(path))


@pytest.mark.parametrize("path", KNOWN)
def test_each_class_that_is_known_is_there_under_that_name(path: str) -> None:
    found = load_object(path)
    assert f"{found.__module__}.{found.__qualname__}" == path


@pytest.mark.parametrize("priority", ["project", "spider", "cmdline"])
@pytest.mark.parametrize(
    ("setting", "component", "safe"),
    [
        ("ITEM_PIPELINES", STOCK_FILES, FilesPipeline),
        ("ITEM_PIPELINES", StockFiles, FilesPipeline),
        ("ITEM_PIPELINES", STOCK_IMAGES, ImagesPipeline),
        ("SPIDER_MIDDLEWARES", "scrapy_deltafetch.DeltaFetch", DeltaFetch),
        ("SPIDER_MIDDLEWARES", scrapy_deltafetch.DeltaFetch, DeltaFetch),
    ],
)
def test_a_component_that_is_on_is_replaced_in_its_place(
    setting: str, component: Any, safe: type, priority: str
) -> None:
    after = updated(priority, **{setting: {component: 7, "project.Other": 8}})
    components = after.getwithbase(setting)
    assert components[f"{safe.__module__}.{safe.__qualname__}"] == 7
    assert components["project.Other"] == 8
    assert component not in components


@pytest.mark.parametrize("given", [{}, {"HTTPCACHE_STORAGE": STOCK_CACHE}], ids=["default", "set"])
def test_the_storage_of_a_cache_that_is_on_is_replaced(given: dict[str, str]) -> None:
    after = updated(HTTPCACHE_ENABLED=True, **given)
    assert load_object(after["HTTPCACHE_STORAGE"]) is FilesystemCacheStorage


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("HTTPCACHE_STORAGE", {"HTTPCACHE_STORAGE": STOCK_CACHE}),
        ("HTTPCACHE_STORAGE", {"HTTPCACHE_ENABLED": True, "HTTPCACHE_STORAGE": DBM_CACHE}),
        ("HTTPCACHE_STORAGE", {"HTTPCACHE_ENABLED": True, "HTTPCACHE_STORAGE": OwnCache}),
        ("ITEM_PIPELINES", {"ITEM_PIPELINES": {STOCK_FILES: None}}),
        ("ITEM_PIPELINES", {"ITEM_PIPELINES": {OwnFiles: 1}}),
        ("SPIDER_MIDDLEWARES", {"SPIDER_MIDDLEWARES": {OwnDeltaFetch: 1}}),
    ],
    ids=["cache off", "another cache", "own cache", "files off", "own files", "own deltafetch"],
)
def test_what_is_off_or_the_projects_own_is_left_alone(
    setting: str, values: dict[str, Any]
) -> None:
    before, after = settings_of(**values)[setting], updated(**values)[setting]
    assert (after if isinstance(after, str | type) else dict(after)) == (
        before if isinstance(before, str | type) else dict(before)
    )


def warnings_for(caplog: pytest.LogCaptureFixture, **values: Any) -> list[str]:
    with caplog.at_level(logging.WARNING):
        warn_of_unsafe_plugins(settings_of(**values), Spider("spider"))
    return [item.getMessage() for item in caplog.records]


@pytest.mark.parametrize(
    ("values", "named", "recipe"),
    [
        ({"ITEM_PIPELINES": {STOCK_FILES: 1}, "FILES_STORE": "a"}, STOCK_FILES, "files.Files"),
        ({"ITEM_PIPELINES": {STOCK_FILES: 1}, "FILES_STORE": "/a"}, STOCK_FILES, "files.Files"),
        ({"ITEM_PIPELINES": {OwnFiles: 1}, "FILES_STORE": "file:///a"}, "OwnFiles", "SCHEMES"),
        ({"ITEM_PIPELINES": {STOCK_IMAGES: 1}, "IMAGES_STORE": "a"}, STOCK_IMAGES, "files.Images"),
        (
            {"ITEM_PIPELINES": {OwnSafeFiles: 1}, "FILES_STORE": "ftp://a:21/b"},
            "OwnSafeFiles",
            "local directory",
        ),
        ({"HTTPCACHE_ENABLED": True}, STOCK_CACHE, "httpcache.Filesystem"),
        (
            {"HTTPCACHE_ENABLED": True, "HTTPCACHE_STORAGE": DBM_CACHE},
            DBM_CACHE,
            "httpcache.Filesystem",
        ),
        ({"HTTPCACHE_ENABLED": True, "HTTPCACHE_STORAGE": OwnCache}, "OwnCache", "derive"),
        (
            {"DELTAFETCH_ENABLED": True, "SPIDER_MIDDLEWARES": {OwnDeltaFetch: 1}},
            "OwnDeltaFetch",
            "deltafetch.DeltaFetch",
        ),
    ],
)
def test_what_a_kill_harms_is_named_with_what_to_do(
    caplog: pytest.LogCaptureFixture, values: dict[str, Any], named: str, recipe: str
) -> None:
    (warning,) = warnings_for(caplog, **values)
    assert f"{named} (" in warning
    assert "if this crawl dies" in warning
    assert recipe in warning


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ITEM_PIPELINES": {STOCK_FILES: 1}},
        {"ITEM_PIPELINES": {STOCK_FILES: None}, "FILES_STORE": "a"},
        {"ITEM_PIPELINES": {STOCK_FILES: 1}, "FILES_STORE": "s3://bucket/a"},
        {"ITEM_PIPELINES": {STOCK_FILES: 1}, "FILES_STORE": "unknown://a"},
        {"ITEM_PIPELINES": {FilesPipeline: 1, ImagesPipeline: 2}, "FILES_STORE": "a"},
        {"ITEM_PIPELINES": {OwnSafeFiles: 1, OwnSchemes: 2}, "FILES_STORE": "a"},
        {"ITEM_PIPELINES": {"no.such.Pipeline": 1, len: 2}, "FILES_STORE": "a"},
        {"HTTPCACHE_ENABLED": True, "HTTPCACHE_STORAGE": FilesystemCacheStorage},
        {"DELTAFETCH_ENABLED": True, "SPIDER_MIDDLEWARES": {DeltaFetch: 1}},
        {"SPIDER_MIDDLEWARES": {OwnDeltaFetch: 1}},
    ],
)
def test_what_is_off_or_safe_is_not_warned_of(
    caplog: pytest.LogCaptureFixture, values: dict[str, Any]
) -> None:
    assert warnings_for(caplog, **values) == []


def test_a_project_without_the_addon_is_warned_and_only_if_it_can_resume(tmp_path: Path) -> None:
    settings = {
        "ADDONS": "{}",
        "SCHEDULER": "scrapy_altsched.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_altsched.DupeFilter",
        "HTTPCACHE_ENABLED": "True",
        "HTTPCACHE_DIR": tmp_path / "cache",
    }
    with Site({"/0": Page()}) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**settings) == 0
        assert f"{STOCK_CACHE} (HTTPCACHE_STORAGE) may lose data if this crawl dies" in crawl.log
        assert crawl.run(**settings, JOBDIR=None) == 0
        assert "may lose data" not in crawl.log


def test_a_record_that_cannot_be_written_costs_no_item(tmp_path: Path) -> None:
    (tmp_path / "delta").mkdir()
    (tmp_path / "delta" / "pages.db.dir").touch()
    (tmp_path / "delta" / "pages.db.dat").symlink_to("/dev/full")
    graph = {"/0": Page(["/1", "/2"]), "/1": Page(), "/2": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert (
            crawl.run(
                SPIDER_MIDDLEWARES='{"scrapy_deltafetch.DeltaFetch": 100}',
                DELTAFETCH_ENABLED="True",
                DELTAFETCH_DIR=tmp_path / "delta",
            )
            == 0
        )
        assert sorted(crawl.item_paths()) == sorted(graph)
    assert crawl.log.count("The record of scrapy-deltafetch cannot be written") == 1
    assert "No space left on device" in crawl.log
    assert "3 pages were not added to the record of scrapy-deltafetch" in crawl.log
    assert "Traceback" not in crawl.log


def test_an_empty_file_of_an_earlier_kill_is_not_up_to_date(tmp_path: Path) -> None:
    info: Any = None
    (tmp_path / "empty").touch()
    (tmp_path / "whole").write_bytes(b"x")
    store = LocalFilesStore(str(tmp_path))
    assert FSFilesStore(str(tmp_path)).stat_file("empty", info)
    assert store.stat_file("empty", info) == {}
    assert store.stat_file("none", info) == {}
    assert store.stat_file("whole", info)["last_modified"] > 0


def test_a_spider_that_is_stopped_keeps_its_record(tmp_path: Path) -> None:
    settings = {
        "SPIDER_MIDDLEWARES": '{"scrapy_deltafetch.DeltaFetch": 100}',
        "DELTAFETCH_ENABLED": "True",
        "DELTAFETCH_DIR": tmp_path / "delta",
    }
    graph = {f"/{number}": Page([f"/{number + 1}"]) for number in range(6)} | {"/6": Page()}
    with Site(graph) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0")
        assert crawl.run(**settings, CLOSESPIDER_ITEMCOUNT=3) == 0
        found = len(crawl.item_paths())
        assert crawl.stat("deltafetch/stored") == found < len(graph)
        assert crawl.run(**settings, JOBDIR=tmp_path / "other") == 0
        # The links of the first page are known, so the crawl ends with it.
        assert crawl.stat("deltafetch/skipped") == 1
        assert crawl.run(**settings) == 0
        assert set(crawl.item_paths()) == set(graph)
