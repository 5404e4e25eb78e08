"""Every setting: default, what it takes, what it refuses, and what the refusal says."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from queuelib import queue as queuelib_queue
from scrapy import Spider, pqueues, squeues
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.settings import Settings

from scrapy_altsched.age import Age
from scrapy_altsched.errors import AltschedError, ConfigError
from scrapy_altsched.frontier import Options, Order
from scrapy_altsched.settings import Config

SLOTS = "scrapy.pqueues.DownloaderAwarePriorityQueue"
ONE = "scrapy.pqueues.ScrapyPriorityQueue"
#: Name -> default, values that are taken and what they mean.
NUMBERS: dict[str, tuple[float, dict[Any, float]]] = {
    "COMMIT_INTERVAL": (1.0, {2: 2, 0.01: 0.01, "0.5": 0.5, "3": 3, 1e9: 1e9}),
    "COMMIT_EVERY": (2_000, {1: 1, "500": 500, 10.0: 10, 10**12: 10**12}),
    "COMMIT_TIMEOUT": (600.0, {0: 0, "0": 0, "1.5": 1.5, 60: 60}),
    "MAX_CRASHES": (3, {1: 1, "7": 7, 2.0: 2}),
    "MEMORY_REQUESTS": (100_000, {1: 1, "1000": 1000}),
    "SLOT_BUDGET": (0, {0: 0, "0": 0, "5000": 5_000}),
    "BREAKER": (0, {0: 0, "0": 0, "5": 5}),
    "BREAKER_DELAY": (60.0, {0.1: 0.1, "0.5": 0.5, 30: 30}),
    "KEEP_FAILED": (100_000, {0: 0, "0": 0, "1000": 1_000}),
    "RETRY_DELAY": (0.0, {0: 0, "0.5": 0.5, 30: 30}),
    "RETRY_DELAY_MAX": (3_600.0, {0: 0, "0.5": 0.5, 30: 30}),
    "ARCHIVE_SIZE": (100_000_000, {1: 1, "1000000": 1_000_000}),
    "LEASE_TIMEOUT": (60.0, {1: 1, "2.5": 2.5, 3600: 3600}),
    "SHARED_PREFETCH": (100, {1: 1, "250": 250}),
}
WHOLE = ["ARCHIVE_SIZE", "BREAKER", "COMMIT_EVERY", "KEEP_FAILED", "MAX_CRASHES", "MEMORY_REQUESTS"]
WHOLE += ["SHARED_PREFETCH", "SLOT_BUDGET"]
MAY_BE_ZERO = ["COMMIT_TIMEOUT", "RETRY_DELAY", "RETRY_DELAY_MAX", "KEEP_FAILED", "BREAKER"]
MAY_BE_ZERO += ["SLOT_BUDGET"]
FLAGS = {
    "SYNC": False,
    "WAIT_AT_CLOSE": True,
    "KEEP_PARENT": False,
    "RETRY_FAILED_NEXT_RUN": False,
    "SKIP_STARTED": True,
    "TRUST_STOCK_SEEN": False,
    "LOG_PROGRESS": True,
    "GC_FREEZE": True,
    "EXIT_CODE": False,
    "SHARED": False,
    "SHARED_RESTART": False,
    "SHARED_PACE": True,
    "SHARED_PICKLE": False,
}
#: Others that are about a shared crawl.
SHARED = {"SHARED_KEY", "SHARED_IDLE", "SHARED_REQUEST_CLASSES", "SHARED_WORKER"}
NO_NUMBERS: list[Any] = [
    -1,
    "-1",
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    "nan",
    "inf",
    "",
    " ",
    "many",
    "1s",
    "0x10",
    True,
    False,
    "True",
    [1],
    {},
    (),
    object(),
    1j,
]
NO_FLAGS: list[Any] = [2, -1, 0.5, "", "yes", "on", "None", [], {}, math.nan, object()]


def read(disk: bool | None = True, given: dict[str, Any] | None = None, **values: Any) -> Config:
    return Config.from_settings(Settings(values), disk=disk, **(given or {}))


def refusal(disk: bool = True, given: dict[str, Any] | None = None, **values: Any) -> str:
    with pytest.raises(ConfigError) as error:
        read(disk, given, **values)
    assert isinstance(error.value, AltschedError)
    assert isinstance(error.value, ValueError)
    return str(error.value)


# ALTSCHED_...


def test_every_setting_is_tested_here() -> None:
    names = {field.name.upper() for field in fields(Config)}
    derived = {"KEEPS_INTERVAL", "ORDER", "PATIENCE", "REDIS", "REDIS_OPTIONS"}
    assert names == {
        *NUMBERS,
        *FLAGS,
        *SHARED,
        *derived,
        "ARCHIVE",
        "URL_RULES",
        "STORE",
        "POLICY",
        "RECRAWL_AFTER",
    }


def test_defaults() -> None:
    config = read()
    for name, (default, _) in NUMBERS.items():
        assert getattr(config, name.lower()) == default
    for name, default in FLAGS.items():
        assert getattr(config, name.lower()) is default
    assert Config() == Config.from_settings(
        Settings({"SCHEDULER_PRIORITY_QUEUE": SLOTS}), disk=True
    )


def test_ages() -> None:
    assert read().frontier.recrawl_after is None
    assert read(ALTSCHED_RECRAWL_AFTER="7d").frontier.recrawl_after == Age(7 * 86_400)
    assert read(ALTSCHED_RECRAWL_AFTER="run").frontier.recrawl_after == Age(period="run")
    for value in (0, -1, "", "soon", "1y", math.nan, math.inf, True, [1]):
        assert "a number of seconds above 0, '12h'" in refusal(ALTSCHED_RECRAWL_AFTER=value)


def test_policies() -> None:
    assert not read().frontier.polite
    polite = read(ALTSCHED_POLICY="polite", SCHEDULER_PRIORITY_QUEUE=SLOTS)
    assert polite.frontier.polite
    for value in ("fast", "", 1, True):
        assert "one of 'stock' and 'polite'" in refusal(ALTSCHED_POLICY=value)
    one = "scrapy.pqueues.ScrapyPriorityQueue"
    message = refusal(ALTSCHED_POLICY="polite", SCHEDULER_PRIORITY_QUEUE=one)
    assert "Set the latter to 'scrapy.pqueues.DownloaderAwarePriorityQueue'" in message


def test_the_budget_of_a_slot_needs_slots_in_a_shared_crawl() -> None:
    one = "scrapy.pqueues.ScrapyPriorityQueue"
    given = {"ALTSCHED_SLOT_BUDGET": 5, "SCHEDULER_PRIORITY_QUEUE": one}
    assert read(**given).slot_budget == 5
    message = refusal(**given, ALTSCHED_SHARED=True)
    assert "ALTSCHED_SLOT_BUDGET = 5, in a shared crawl, is about download slots" in message
    given["SCHEDULER_PRIORITY_QUEUE"] = SLOTS
    assert read(**given, ALTSCHED_SHARED=True).slot_budget == 5


def test_a_polite_shared_crawl_needs_its_pace() -> None:
    # Not the default before Scrapy 2.14.
    given = {"ALTSCHED_POLICY": "polite", "SCHEDULER_PRIORITY_QUEUE": SLOTS}
    assert read(**given, ALTSCHED_SHARED=True).policy == "polite"
    message = refusal(**given, ALTSCHED_SHARED=True, ALTSCHED_SHARED_PACE=False)
    assert "ALTSCHED_POLICY = 'polite' needs the pace of a shared crawl" in message


def test_an_interval_between_commits_that_is_set_is_kept_to_even_if_it_is_the_default() -> None:
    assert not read().keeps_interval
    assert not read(ALTSCHED_COMMIT_INTERVAL=None).keeps_interval
    assert read(ALTSCHED_COMMIT_INTERVAL=1).keeps_interval


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_taken_as_numbers_and_as_text(name: str) -> None:
    for value, meant in NUMBERS[name][1].items():
        found = getattr(read(**{f"ALTSCHED_{name}": value}), name.lower())
        assert found == meant
        assert type(found) is (int if name in WHOLE else float)


@pytest.mark.parametrize("value", ["w1", "web-1.example.com", "a_b", 7, "7"])
def test_the_name_of_a_worker_is_text_that_can_be_in_a_files_name(value: str | int) -> None:
    assert read(ALTSCHED_SHARED_WORKER=value).shared_worker == str(value)
    assert read().shared_worker is None


@pytest.mark.parametrize("value", ["", "a b", "a/b", "../a", ".a", "-a", "a%b", True, 1.5, [], {}])
def test_another_name_of_a_worker_is_refused(value: Any) -> None:
    assert "must be text of letters, digits" in refusal(ALTSCHED_SHARED_WORKER=value)


def test_the_engine_of_a_new_store_is_one_that_is_known() -> None:
    assert read().frontier.store == "auto"
    for name in ("auto", "rocksdb", "sqlite"):
        assert read(ALTSCHED_STORE=name).frontier.store == name
    for value in ("", "SQLite", "mysql", None.__class__, 1, True, [], ["sqlite"], {}):
        assert "must be one of 'auto', 'rocksdb' and 'sqlite'" in refusal(ALTSCHED_STORE=value)


def test_rules_are_those_of_the_setting_and_then_those_of_the_spider() -> None:
    class RulesSpider(Spider):
        name = "rules"
        url_rules = [{"name": "own", "ignore_params": "b"}]

    assert len(read().rules_of(Spider)) == 0
    assert len(read().rules_of(None)) == 0
    config = read(ALTSCHED_URL_RULES=[{"name": "ours", "ignore_params": "a"}])
    for spider in (RulesSpider, RulesSpider()):
        rules = config.rules_of(spider)
        assert [rules.label(index) for index in range(len(rules))] == ["ours", "own"]
    assert len(config.rules_of(Spider("plain"))) == 1


def test_a_rule_that_is_invalid_is_refused_with_its_place() -> None:
    message = refusal(ALTSCHED_URL_RULES=[{"ignore_params": "a"}, {"ignore_parms": "a"}])
    assert "ALTSCHED_URL_RULES" in message
    assert "'ignore_params'" in message

    class WrongSpider(Spider):
        name = "wrong"
        url_rules = 1

    with pytest.raises(ConfigError, match=r"WrongSpider\.url_rules"):
        read().rules_of(WrongSpider())


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_taken_as_flags_numbers_and_text(name: str) -> None:
    for meant, values in {
        True: (True, 1, "1", "True", "true", "TRUE"),
        False: (False, 0, "0", "False", "false"),
    }.items():
        for value in values:
            assert getattr(read(**{f"ALTSCHED_{name}": value}), name.lower()) is meant


@pytest.mark.parametrize("name", [*NUMBERS, *FLAGS])
def test_none_stands_for_the_default(name: str) -> None:
    assert read(**{f"ALTSCHED_{name}": None}) == read()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number_of_the_kind_is_refused(name: str, value: Any) -> None:
    message = refusal(**{f"ALTSCHED_{name}": value})
    kind = "a whole number of " if name in WHOLE else "a number of "
    assert message.startswith(f"ALTSCHED_{name} = {value!r} cannot be used: it must be {kind}")
    assert re.search(r", [\d.]+ or more \(default: [\d.]+\)\.$", message)


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in MAY_BE_ZERO])
@pytest.mark.parametrize("value", [0, "0", 0.0])
def test_zero_is_refused_where_it_means_nothing(name: str, value: Any) -> None:
    least = "0.01" if name in ("COMMIT_INTERVAL", "BREAKER_DELAY") else "1"
    assert f", {least} or more" in refusal(**{f"ALTSCHED_{name}": value})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [2.5, "2.5", "1e3"])
def test_whole_numbers_are_not_rounded(name: str, value: Any) -> None:
    assert f"ALTSCHED_{name} = {value!r}" in refusal(**{f"ALTSCHED_{name}": value})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", NO_FLAGS)
def test_what_is_no_flag_is_refused(name: str, value: Any) -> None:
    assert refusal(**{f"ALTSCHED_{name}": value}) == (
        f"ALTSCHED_{name} = {value!r} cannot be used: it must be True or False"
        f" (default: {FLAGS[name]!r})."
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ALTSCHED_COMMIT_INTERVALL", "ALTSCHED_COMMIT_INTERVAL"),
        ("ALTSCHED_MAXCRASHES", "ALTSCHED_MAX_CRASHES"),
        ("ALTSCHED_FSYNC", "ALTSCHED_SYNC"),
        ("ALTSCHED_commit_every", "ALTSCHED_COMMIT_EVERY"),
        ("ALTSCHED_ORDER", "ALTSCHED_"),
        ("ALTSCHED_", "ALTSCHED_SYNC"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    message = refusal(**{name: 1})
    assert message.startswith(f"Unknown setting {name} (did you mean {nearest}")


def test_an_unknown_name_is_refused_even_if_it_is_none() -> None:
    assert "ALTSCHED_NOTHING" in refusal(ALTSCHED_NOTHING=None)


def test_settings_of_others_are_left_alone() -> None:
    assert read(MY_ALTSCHED_SYNC="?", ALTSCHEDULE=1) == read()


def test_the_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().sync = True  # type: ignore[misc]


def test_the_frontier_gets_its_part() -> None:
    config = read(
        ALTSCHED_MAX_CRASHES=9,
        ALTSCHED_MEMORY_REQUESTS=8,
        ALTSCHED_SKIP_STARTED=False,
        SCHEDULER_PRIORITY_QUEUE=ONE,
        SCHEDULER_DISK_QUEUE="scrapy.squeues.PickleFifoDiskQueue",
        SCHEDULER_START_DISK_QUEUE=None,
    )
    order = Order("one", "fifo", None)
    assert config.frontier == Options(
        order=order, max_crashes=9, memory_requests=8, skip_started=False
    )


# Scrapy's queue settings


def stock_queues() -> dict[str, Any]:
    return {
        name: queue
        for name, queue in vars(squeues).items()
        if isinstance(queue, type) and re.fullmatch(r"(\w*)(Lifo|Fifo)(\w*)Queue", name)
        if not name.startswith("_")
    }


QUEUES = stock_queues()


def test_all_of_scrapys_queues_are_tested_here() -> None:
    assert {"PickleLifoDiskQueue", "MarshalFifoDiskQueue", "FifoMemoryQueue"} <= set(QUEUES)
    documented = {name for name in vars(squeues) if name.endswith("Queue")}
    assert {name for name in documented if not name.startswith("_")} == set(QUEUES)


@pytest.mark.parametrize("disk", [True, False])
@pytest.mark.parametrize("name", QUEUES)
def test_each_of_scrapys_queues_stands_for_its_direction(name: str, disk: bool) -> None:
    medium = "DISK" if disk else "MEMORY"
    direction = "lifo" if "Lifo" in name else "fifo"
    for value in (f"scrapy.squeues.{name}", QUEUES[name]):
        setting = f"SCHEDULER_{medium}_QUEUE"
        assert read(disk, **{setting: value}).order.normal == direction
        assert read(disk, {setting: QUEUES[name]}).order.normal == direction
        setting = f"SCHEDULER_START_{medium}_QUEUE"
        assert read(disk, **{setting: value}).order.start == direction


@pytest.mark.parametrize("disk", [True, False])
def test_only_the_queues_of_the_medium_count(disk: bool) -> None:
    other = "MEMORY" if disk else "DISK"
    values = {
        f"SCHEDULER_{other}_QUEUE": "no.such.Queue",
        f"SCHEDULER_START_{other}_QUEUE": "no.such.Queue",
    }
    assert read(disk, **values) == read(disk)


@pytest.mark.parametrize("disk", [True, False])
@pytest.mark.parametrize("value", [None, ""])
def test_without_a_queue_for_start_requests_they_are_as_all_others(
    disk: bool, value: str | None
) -> None:
    name = "SCHEDULER_START_DISK_QUEUE" if disk else "SCHEDULER_START_MEMORY_QUEUE"
    assert read(disk).order.start == "fifo"
    assert read(disk, **{name: value}).order.start is None


@pytest.mark.parametrize("disk", [True, False])
@pytest.mark.parametrize("value", [None, ""])
def test_the_queue_itself_must_be_set(disk: bool, value: str | None) -> None:
    name = "SCHEDULER_DISK_QUEUE" if disk else "SCHEDULER_MEMORY_QUEUE"
    message = refusal(disk, **{name: value})
    assert message.startswith(f"{name} is not set. Use one of 'scrapy.squeues.")


class CustomQueue:
    pass


class SubclassedDiskQueue(squeues.PickleLifoDiskQueue):  # type: ignore[misc,valid-type]
    pass


class SubclassedMemoryQueue(squeues.FifoMemoryQueue):  # type: ignore[misc,valid-type]
    pass


@pytest.mark.parametrize(
    "value",
    [
        CustomQueue,
        SubclassedDiskQueue,
        SubclassedMemoryQueue,
        "tests.crawl.test_settings.CustomQueue",
        "tests.crawl.test_settings.SubclassedDiskQueue",
        queuelib_queue.FifoMemoryQueue,
        "scrapy.squeues.request_from_dict",
        "scrapy.squeues.pickle",
        "scrapy.squeues.Path",
        "scrapy.squeues._with_mkdir",
        SLOTS,
        len,
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "SCHEDULER_DISK_QUEUE",
        "SCHEDULER_MEMORY_QUEUE",
        "SCHEDULER_START_DISK_QUEUE",
        "SCHEDULER_START_MEMORY_QUEUE",
    ],
)
def test_a_queue_that_is_invalid_is_refused(name: str, value: Any) -> None:
    disk = "DISK" in name
    message = refusal(disk, **{name: value})
    assert message.startswith(f"{name} = {value!r} is not supported")
    lifo = "PickleLifoDiskQueue" if disk else "LifoMemoryQueue"
    fifo = "PickleFifoDiskQueue" if disk else "FifoMemoryQueue"
    assert f"Use one of 'scrapy.squeues.{lifo}' and 'scrapy.squeues.{fifo}'" in message
    assert "Scrapy's own SCHEDULER" in message


@pytest.mark.parametrize(
    "value", ["no.such.Queue", "scrapy.squeues.NoQueue", "nodots", "scrapy.", 5, ["a"]], ids=repr
)
@pytest.mark.parametrize(
    "name", ["SCHEDULER_DISK_QUEUE", "SCHEDULER_START_DISK_QUEUE", "SCHEDULER_PRIORITY_QUEUE"]
)
def test_a_class_that_cannot_be_loaded_is_refused(name: str, value: Any) -> None:
    assert refusal(**{name: value}).startswith(f"{name} = {value!r} cannot be loaded: ")


def test_a_class_given_by_hand_counts_instead_of_the_setting_and_is_named_when_refused() -> None:
    name = "SCHEDULER_DISK_QUEUE"
    given = {name: squeues.PickleFifoDiskQueue, "SCHEDULER_PRIORITY_QUEUE": None}
    assert read(given=given, **{name: "no.such.Queue"}).order.normal == "fifo"
    assert repr(CustomQueue) in refusal(given={name: CustomQueue})
    assert repr(CustomQueue) in refusal(given={"SCHEDULER_PRIORITY_QUEUE": CustomQueue})


@pytest.mark.parametrize("disk", [True, False])
@pytest.mark.parametrize(
    ("value", "policy"),
    [
        (SLOTS, "slots"),
        (pqueues.DownloaderAwarePriorityQueue, "slots"),
        (ONE, "one"),
        (pqueues.ScrapyPriorityQueue, "one"),
    ],
)
def test_each_of_scrapys_priority_queues_is_honoured(disk: bool, value: Any, policy: str) -> None:
    assert read(disk, SCHEDULER_PRIORITY_QUEUE=value).order.policy == policy


def test_the_default_order_is_that_of_the_installed_scrapy() -> None:
    policies = {SLOTS: "slots", ONE: "one"}
    for disk in (True, False):
        assert read(disk).order == Order(
            policies[Settings()["SCHEDULER_PRIORITY_QUEUE"]],  # type: ignore[arg-type]
            "lifo",
            "fifo",
        )


class SubclassedPriorityQueue(pqueues.ScrapyPriorityQueue):
    pass


@pytest.mark.parametrize("value", [CustomQueue, SubclassedPriorityQueue, None, "", len])
def test_a_priority_queue_that_is_invalid_is_refused(value: Any) -> None:
    message = refusal(SCHEDULER_PRIORITY_QUEUE=value)
    assert message.startswith(f"SCHEDULER_PRIORITY_QUEUE = {value!r} is not supported")
    assert SLOTS in message
    assert ONE in message


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize("value", [1, "8"])
def test_concurrency_per_ip_is_refused_between_slots_and_taken_with_one_queue(value: Any) -> None:
    values = {"CONCURRENT_REQUESTS_PER_IP": value}
    message = refusal(SCHEDULER_PRIORITY_QUEUE=SLOTS, **values)
    assert message.startswith(f"SCHEDULER_PRIORITY_QUEUE = '{SLOTS}' does not support")
    assert "CONCURRENT_REQUESTS_PER_IP" in message
    assert ONE in message
    assert read(SCHEDULER_PRIORITY_QUEUE=ONE, **values).order.policy == "one"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0, "0", None])
def test_concurrency_per_ip_of_zero_means_that_it_is_not_used(value: Any) -> None:
    values = {"CONCURRENT_REQUESTS_PER_IP": value}
    assert read(SCHEDULER_PRIORITY_QUEUE=SLOTS, **values).order.policy == "slots"


def test_nothing_is_deprecated_in_the_defaults(recwarn: pytest.WarningsRecorder) -> None:
    read()
    assert not [item for item in recwarn if item.category is ScrapyDeprecationWarning]


def test_without_a_queue_of_ours_none_of_its_settings_counts() -> None:
    config = read(
        None,
        SCHEDULER_DISK_QUEUE="no.such.Queue",
        SCHEDULER_PRIORITY_QUEUE=CustomQueue,
        ALTSCHED_SYNC="1",
    )
    assert config == Config(sync=True)
    with pytest.raises(ConfigError):
        read(None, ALTSCHED_SYNC="?")
