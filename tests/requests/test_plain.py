"""What a request carries, as JSON, comes back with exactly the same types."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from scrapy_altsched.errors import CodecError
from scrapy_altsched.requests.kinds import CARRIED
from scrapy_altsched.requests.plain import from_plain, to_plain

VALUES: list[Any] = [
    None,
    True,
    -(1 << 63),
    1 << 63,
    10**5000,
    0.1,
    -0.0,
    math.inf,
    "text \u00e9 \ud800 \U0001f600",
    b"\x00\xff text",
    [1, [2, []]],
    (1, (2, ())),
    {},
    {"a": {"b": 1}},
    {"$tuple": [1, 2]},
    {1: "a", b"b": 2, (3,): [4]},
    {"b", "a", "c"},
    frozenset({b"1", b"2"}),
    bytearray(b"\xff"),
    1 + 2j,
    Decimal("1.50"),
    UUID(int=7),
    date(2026, 1, 31),
    time(1, 2, 3, 4, tzinfo=timezone.utc, fold=1),
    datetime(2026, 1, 31, 1, 2, 3, 4, tzinfo=ZoneInfo("Europe/Berlin")),
    timedelta(days=-1, microseconds=1),
    timezone(timedelta(hours=1), "name"),
]


def shape_of(value: Any) -> Any:
    """The value with the types of all that is in it."""
    if isinstance(value, dict):
        return type(value), [(shape_of(key), shape_of(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [shape_of(part) for part in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    return type(value), value if isinstance(value, int) else repr(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    text = json.dumps(to_plain({"meta": {"a": value}}))
    assert text.isascii()
    [back] = from_plain(json.loads(text))["meta"].values()
    assert shape_of(back) == shape_of(value)
    assert json.dumps(to_plain({"meta": {"a": back}})) == text


def test_no_type_is_forgotten() -> None:
    assert {type(value) for value in VALUES} | {ZoneInfo} == CARRIED


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "meta['a'] is an object, which JSON cannot carry"),
        ([OrderedDict()], "meta['a'][0] is an OrderedDict, which JSON cannot carry"),
    ],
)
def test_a_value_of_another_type_is_named(value: Any, problem: str) -> None:
    with pytest.raises(CodecError) as caught:
        to_plain({"meta": {"a": value}})
    assert str(caught.value) == problem


def test_a_value_that_contains_itself_is_named() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError, match="nested more than 200 deep, or contains itself"):
        to_plain({"meta": value})


@pytest.mark.parametrize(
    "plain",
    [
        {"$unknown": []},
        {"$bytes": "\u0100"},
        {"$bytes": 1},
        {"$tuple": 1},
        {"$tuple": [], "other": 1},
        {"$bytearray": [1_000_000_000_000]},
        {"$set": [[]]},
        {"$float": "much"},
        {"$dict": [[1]]},
        {"$ZoneInfo": ["../../etc/passwd"]},
    ],
    ids=json.dumps,
)
def test_what_was_not_made_of_a_value_is_refused(plain: Any) -> None:
    with pytest.raises(CodecError):
        from_plain({"meta": plain})
