"""The addon is exactly its settings, and gives way to whoever sets them."""

from __future__ import annotations

import ast
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.core.scheduler import Scheduler as StockScheduler
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.test import get_crawler

from scrapy_altsched import Addon, DupeFilter, Scheduler
from scrapy_altsched.errors import JobdirError
from scrapy_altsched.feeds import FileStorage

from ..crawls import run_scrapy
from ..engines import StandIn
from ..sites import Page, Site

ADDONS = {"scrapy_altsched.Addon": 500}
BY_HAND: dict[str, Any] = {
    "SCHEDULER": "scrapy_altsched.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_altsched.DupeFilter",
    "FEED_STORAGES": {
        "": "scrapy_altsched.feeds.FileStorage",
        "file": "scrapy_altsched.feeds.FileStorage",
    },
}
STOCK_SCHEDULER = "scrapy.core.scheduler.Scheduler"
STOCK_FILTER = "scrapy.dupefilters.RFPDupeFilter"
STOCK_STORAGE = "scrapy.extensions.feedexport.FileFeedStorage"
ROOT = Path(__file__).parents[2]
#: What the frontier leaves in a job directory.
TRACES = {"frontier", "altsched.json", "altsched.lock"}


class OwnScheduler(Scheduler):
    """A project's own, on top of ours."""


def make_crawler(spider_class: type[Spider] = Spider, **values: Any) -> Crawler:
    return get_crawler(spider_class, {"ADDONS": ADDONS, **values})


def as_dict(settings: BaseSettings) -> dict[str, Any]:
    values: dict[str, Any] = settings.copy_to_dict()
    values.pop("ADDONS")
    return values


def updated(priority: str | int = "project", **values: Any) -> Settings:
    settings = Settings()
    settings.setdict(values, priority)
    Addon().update_settings(settings)
    return settings


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        item.getMessage()
        for item in caplog.records
        if item.name.startswith("scrapy_altsched") and item.levelno >= logging.WARNING
    ]


def test_the_addon_is_the_same_as_all_settings_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    by_hand = get_crawler(Spider, {"ADDONS": {}, **BY_HAND})
    assert as_dict(make_crawler().settings) == as_dict(by_hand.settings)
    assert as_dict(by_hand.settings) != as_dict(get_crawler(Spider, {"ADDONS": {}}).settings)
    assert warnings_of(caplog) == []


def test_the_addon_changes_nothing_else() -> None:
    before = Settings()
    after = updated()
    changed = {name for name in {*before, *after} if before[name] != after[name]}
    assert changed == set(BY_HAND)


def test_other_storages_and_other_settings_of_feeds_are_kept() -> None:
    after = updated(FEED_STORAGES={"s3": "my.Storage"}, FEED_EXPORT_INDENT=3)
    assert dict(after["FEED_STORAGES"]) == {"s3": "my.Storage", **BY_HAND["FEED_STORAGES"]}
    assert after["FEED_EXPORT_INDENT"] == 3
    scheme_classes = after.getwithbase("FEED_STORAGES")
    assert scheme_classes["stdout"] == "scrapy.extensions.feedexport.StdoutFeedStorage"


@pytest.mark.parametrize("priority", ["project", "spider", "cmdline"])
@pytest.mark.parametrize(
    ("name", "value"), [("SCHEDULER", STOCK_SCHEDULER), ("DUPEFILTER_CLASS", STOCK_FILTER)]
)
def test_a_class_of_the_projects_own_wins_and_is_reported(
    caplog: pytest.LogCaptureFixture, name: str, value: str, priority: str
) -> None:
    after = updated(priority, **{name: value})
    assert after[name] == value
    for other in {"SCHEDULER", "DUPEFILTER_CLASS"} - {name}:
        assert after[other] == BY_HAND[other]
    (message,) = warnings_of(caplog)
    assert message.startswith(f"{name} = {value!r} ")
    assert BY_HAND[name] in message


def test_a_class_object_of_the_projects_own_wins_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert updated(SCHEDULER=StockScheduler)["SCHEDULER"] is StockScheduler
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("scheme", ["", "file"])
def test_a_storage_of_the_projects_own_wins_for_its_scheme_and_is_reported(
    caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    (other,) = {"", "file"} - {scheme}
    storages = updated(FEED_STORAGES={scheme: STOCK_STORAGE})["FEED_STORAGES"]
    assert storages[scheme] == STOCK_STORAGE
    assert storages[other] == "scrapy_altsched.feeds.FileStorage"
    (message,) = warnings_of(caplog)
    assert message.startswith(f"FEED_STORAGES[{scheme!r}] = {STOCK_STORAGE!r} ")


@pytest.mark.parametrize("value", [{"file": None}, '{"file": null}'])
def test_a_storage_that_the_project_turned_off_stays_off(
    caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    assert updated("cmdline", FEED_STORAGES=value)["FEED_STORAGES"]["file"] is None
    assert warnings_of(caplog)[0].startswith("FEED_STORAGES['file'] = None ")


def test_storages_of_the_command_line_win(caplog: pytest.LogCaptureFixture) -> None:
    after = updated("cmdline", FEED_STORAGES=f'{{"": "{STOCK_STORAGE}"}}')
    assert after["FEED_STORAGES"][""] == STOCK_STORAGE
    assert len(warnings_of(caplog)) == 1


def test_custom_settings_of_a_spider_win_and_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class OwnSpider(Spider):
        name = "own"
        custom_settings = {
            "SCHEDULER": STOCK_SCHEDULER,
            "DUPEFILTER_CLASS": STOCK_FILTER,
            "FEED_STORAGES": {"file": STOCK_STORAGE},
        }

    settings = make_crawler(OwnSpider).settings
    assert settings["SCHEDULER"] == STOCK_SCHEDULER
    assert settings["DUPEFILTER_CLASS"] == STOCK_FILTER
    assert settings["FEED_STORAGES"]["file"] == STOCK_STORAGE
    assert settings["FEED_STORAGES"][""] == "scrapy_altsched.feeds.FileStorage"
    assert len(warnings_of(caplog)) == 3


@pytest.mark.parametrize(
    "values",
    [
        BY_HAND,
        {"SCHEDULER": Scheduler, "DUPEFILTER_CLASS": DupeFilter},
        {"SCHEDULER": "scrapy_altsched.scheduler.Scheduler", "FEED_STORAGES": {"": FileStorage}},
        {"SCHEDULER": OwnScheduler},
        {"SCHEDULER": "tests.crawl.test_addon.OwnScheduler"},
    ],
)
def test_our_own_classes_given_by_hand_are_kept_and_not_reported(
    caplog: pytest.LogCaptureFixture, values: dict[str, Any]
) -> None:
    after = updated(**values)
    assert warnings_of(caplog) == []
    for name in {"SCHEDULER", "DUPEFILTER_CLASS"} & set(values):
        assert after[name] is values[name]


@pytest.mark.parametrize("value", ["no.such.Class", "nodots", 5, len])
def test_what_cannot_be_loaded_is_left_to_scrapy_to_complain_of(
    caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    assert updated(SCHEDULER=value)["SCHEDULER"] == value
    (message,) = warnings_of(caplog)
    assert message.startswith(f"SCHEDULER = {value!r} ")


def test_another_addons_choice_gives_way_to_whichever_comes_last() -> None:
    assert updated("addon", SCHEDULER=STOCK_SCHEDULER)["SCHEDULER"] == BY_HAND["SCHEDULER"]


class OtherAddon:
    """Sets another scheduler."""

    def update_settings(self, settings: BaseSettings) -> None:
        settings.set("SCHEDULER", STOCK_SCHEDULER, "addon")


@pytest.mark.parametrize(("order", "is_late"), [(400, False), (600, True)])
def test_another_scheduler_of_an_addon_that_comes_later_is_warned_of(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, order: int, is_late: bool
) -> None:
    addons = {"scrapy_altsched.Addon": 500, OtherAddon: order}
    crawl = StandIn({"ADDONS": addons, "JOBDIR": str(tmp_path)})
    assert (type(crawl.scheduler) is StockScheduler) == is_late
    crawl.scheduler.close("shutdown")
    found = [text for text in warnings_of(caplog) if text.startswith("JOBDIR is set")]
    assert len(found) == is_late


@pytest.mark.parametrize("name", ["SCHEDULER", "DUPEFILTER_CLASS"])
def test_what_a_command_sets_is_left_alone(caplog: pytest.LogCaptureFixture, name: str) -> None:
    after = updated("command", **{name: "a.commands.Own"})
    assert {item for item in BY_HAND if after[item] != BY_HAND[item]} == {name}
    assert after[name] == "a.commands.Own"
    assert warnings_of(caplog) == []


def test_other_settings_of_a_command_leave_the_addon_on() -> None:
    assert updated("command", LOG_ENABLED=False)["SCHEDULER"] == BY_HAND["SCHEDULER"]


def test_jobdir_is_made_with_its_parents(tmp_path: Path) -> None:
    jobdir = tmp_path / "a" / "b"
    updated(JOBDIR=str(jobdir))
    assert jobdir.is_dir()
    assert list(jobdir.iterdir()) == []
    updated(JOBDIR=jobdir)


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_jobdir_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    updated(JOBDIR=value)
    assert list(tmp_path.iterdir()) == []


def test_a_jobdir_that_cannot_be_made_is_logged_and_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    jobdir = tmp_path / "file" / "job"
    with pytest.raises(JobdirError, match="JOBDIR cannot be used"):
        make_crawler(JOBDIR=str(jobdir))
    (record,) = [item for item in caplog.records if item.levelno == logging.CRITICAL]
    assert str(jobdir) in record.getMessage()
    assert "Not a directory" in record.getMessage()


def test_the_classes_take_part_in_a_crawler_as_set() -> None:
    crawler = make_crawler(FEEDS={"items.csv": {"format": "csv"}})
    (exporter,) = [
        item for item in crawler.extensions.middlewares if type(item).__name__ == "FeedExporter"
    ]
    assert exporter.storages[""] is exporter.storages["file"] is FileStorage
    assert issubclass(FileStorage, FileFeedStorage)


# The real shell


def run_shell(directory: Path, code: str, *arguments: str, **values: Any) -> Any:
    """What *code* comes to in ``scrapy shell``, in a project with JOBDIR and these settings."""
    lines = [f"{name} = {value!r}" for name, value in {"JOBDIR": "job", **values}.items()]
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = shellproject\n")
    (directory / "shellproject.py").write_text("\n".join([*lines, "RETRY_ENABLED = False", ""]))
    path = os.pathsep.join([str(directory), str(ROOT)])
    done = run_scrapy("shell", "-c", code, *arguments, cwd=directory, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "CRITICAL" not in done.stderr
    assert "Traceback" not in done.stderr
    # Scrapy's own components may make the directory; of ours there is nothing in it.
    jobdir = directory / "job"
    assert not jobdir.exists() or not TRACES & {path.name for path in jobdir.iterdir()}
    return ast.literal_eval(done.stdout.splitlines()[-1])


MODULES = (
    "type(crawler.engine._slot.scheduler).__module__,"
    "type(crawler.engine._slot.scheduler.df).__module__"
)


@pytest.mark.parametrize(
    ("values", "dupefilter"),
    [
        ({"ADDONS": ADDONS}, "scrapy.dupefilters"),
        ({"SCHEDULER": BY_HAND["SCHEDULER"]}, "scrapy.dupefilters"),
        (
            {name: BY_HAND[name] for name in ("SCHEDULER", "DUPEFILTER_CLASS")},
            "scrapy_altsched.dupefilter",
        ),
    ],
    ids=["addon", "scheduler", "both"],
)
def test_the_shell_works_and_leaves_the_job_alone(
    tmp_path: Path, values: dict[str, Any], dupefilter: str
) -> None:
    with Site({"/a": Page(), "/b": Page()}) as site:
        fetch = "fetch(response.url) or fetch(response.urljoin('/b')) or response.status"
        code = f"(response.status, {fetch}, {MODULES})"
        result = run_shell(tmp_path, code, f"{site.url}/a", **values)
        assert result == (200, 200, "scrapy_altsched.scheduler", dupefilter)
        assert site.hits == {"/a": 2, "/b": 1}


def test_in_a_shell_with_scrapys_own_scheduler_our_filter_leaves_the_job_alone(
    tmp_path: Path,
) -> None:
    with Site({"/a": Page()}) as site:
        # Scrapy 2.19 waits forever for a request that went through its queue on disk.
        request = f"scrapy.Request('{site.url}/a', meta={{'memory only': lambda: None}})"
        code = f"(fetch({request}), response.status, {MODULES})"
        result = run_shell(tmp_path, code, DUPEFILTER_CLASS=BY_HAND["DUPEFILTER_CLASS"])
        assert result == (None, 200, "scrapy.core.scheduler", "scrapy_altsched.dupefilter")


def test_scrapys_log_names_the_addon(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "scrapy.addons"):
        make_crawler()
    assert "[<scrapy_altsched.Addon>]" in caplog.text
