"""The settings of a shared crawl: what they take, what they refuse, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import FormRequest, Request
from scrapy.settings import Settings

from scrapy_altsched.errors import ConfigError
from scrapy_altsched.frontier.options import SharedOptions
from scrapy_altsched.redis_client import SETTINGS
from scrapy_altsched.settings import Config


class OwnRequest(Request):
    pass


OWN = f"{__name__}.OwnRequest"


def options(spider_name: str = "spider", **values: Any) -> SharedOptions | None:
    given = {name if name[:6] == "REDIS_" else f"ALTSCHED_{name}": values[name] for name in values}
    config = Config.from_settings(Settings({"ALTSCHED_SHARED": True, **given}), disk=None)
    return config.shared_options(spider_name)


def test_a_crawl_is_not_shared_unless_it_is_said() -> None:
    assert Config.from_settings(Settings(), disk=None).shared_options("spider") is None
    assert options(SHARED=False, REDIS_PARAMS="no JSON") is None


def test_defaults_are_the_same_in_both_places() -> None:
    redis = {"REDIS_PARAMS": {}}
    assert options() == SharedOptions(key="spider", redis=redis, words="spider")


def test_each_setting_arrives() -> None:
    found = options(
        SHARED_KEY="crawl",
        LEASE_TIMEOUT=5,
        SHARED_PREFETCH=1,
        SHARED_IDLE="wait",
        SHARED_RESTART=1,
        REDIS_HOST="h",
        REDIS_PARAMS={"password": "s3cret"},
    )
    redis = {"REDIS_HOST": "h", "REDIS_PARAMS": {"password": "s3cret"}}
    assert found == SharedOptions(
        key="crawl",
        lease_timeout=5.0,
        prefetch=1,
        idle="wait",
        restart=True,
        redis=redis,
        words="crawl",
    )
    assert "s3cret" not in repr(found)


def test_options_name_the_server_to_commands_where_the_project_does_not() -> None:
    settings = Settings({"ALTSCHED_SHARED": True, "REDIS_DB": 3})
    settings.set("REDIS_HOST", "h", "spider")
    settings.set("REDIS_PARAMS", '{"password": 12345}', "cmdline")
    found = Config.from_settings(settings, disk=None).shared_options("my spider")
    assert found is not None
    assert found.words == "'my spider' -s REDIS_HOST=h -s 'REDIS_PARAMS={\"password\": ***}'"


def test_the_settings_of_the_server_that_are_read_are_those_that_are_used() -> None:
    given = dict.fromkeys(SETTINGS, "1") | {"REDIS_PARAMS": {"db": 1}}
    found = options(**given)
    assert found is not None
    assert found.redis == given


def test_whether_requests_may_be_pickled_arrives() -> None:
    settings = Settings({"ALTSCHED_SHARED_PICKLE": "true"})
    assert Config.from_settings(settings, disk=None).shared_pickle


def test_parameters_that_are_no_dict_are_refused_without_their_password() -> None:
    for value in ("{'password': 's3cret'", "[1]", 1, [1]):
        with pytest.raises(ConfigError, match=r"REDIS_PARAMS cannot be used") as error:
            options(REDIS_PARAMS=value)
        assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("value", ["", "a{b", "a}b", "x" * 201, 1, b"name", ["name"]])
def test_a_name_that_cannot_be_a_part_of_a_key_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^ALTSCHED_SHARED_KEY = .* a name of 1 to 200"):
        options(SHARED_KEY=value)
    if isinstance(value, str):
        with pytest.raises(ConfigError, match=r"cannot be the name .* set ALTSCHED_SHARED_KEY to"):
            options(spider_name=value)
        found = options(spider_name=value, SHARED_KEY="x" * 200)
        assert found is not None
        assert found.key == "x" * 200


@pytest.mark.parametrize("value", ["stop", "", 1, True, "FINISH", []])
def test_what_is_neither_to_finish_nor_to_wait_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^ALTSCHED_SHARED_IDLE = .* one of 'finish' and 'wait'"):
        options(SHARED_IDLE=value)


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ([], ()),
        ("", ()),
        ([OwnRequest], (OWN,)),
        (f"{OWN}, scrapy.FormRequest", (OWN, f"{FormRequest.__module__}.FormRequest")),
        ((OWN, OwnRequest), (OWN, OWN)),
    ],
)
def test_request_classes_are_paths(value: Any, paths: tuple[str, ...]) -> None:
    settings = Settings({"ALTSCHED_SHARED_REQUEST_CLASSES": value})
    assert Config.from_settings(settings, disk=None).shared_request_classes == paths


@pytest.mark.parametrize("value", [["os.system"], ["scrapy.Spider"], [""], [None], 1, {OWN: 1}])
def test_what_is_no_request_class_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^ALTSCHED_SHARED_REQUEST_CLASSES = .* a list of"):
        options(SHARED_REQUEST_CLASSES=value)


def test_a_request_class_that_cannot_be_loaded_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SHARED_REQUEST_CLASSES = 'no\.such' cannot be loaded"):
        options(SHARED_REQUEST_CLASSES=["no.such"])
