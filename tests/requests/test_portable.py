"""Requests as bytes that may come from anywhere, beside what :mod:`.codec` makes of them."""

from __future__ import annotations

import collections
import datetime
import enum
import io
import pickle
import random
import re
import struct
import sys
import threading
import tracemalloc
import uuid
import zoneinfo
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Field, Item, Request, Spider
from scrapy.http import JsonRequest

from scrapy_altsched.errors import CodecError
from scrapy_altsched.requests.codec import decode_request, encode_request, wrap
from scrapy_altsched.requests.kinds import CARRIED
from scrapy_altsched.requests.portable import PortableCodec, read_url

from .samples import BUILDERS, TEXT, URLS, LabelledRequest, arguments_of, attributes

URL = "http://example.com/page?a=1"


class PortableSpider(Spider):
    name = "portable"
    touched: list[str] = []

    class Loader:
        """A class, and so callable."""

    def parse_page(self, response: Any) -> Any: ...

    def _parse_hidden(self, response: Any) -> Any: ...

    def __parse_private(self, response: Any) -> Any: ...

    def __call__(self, response: Any) -> Any: ...

    async def parse_async(self, response: Any) -> Any: ...

    @classmethod
    def parse_class(cls, response: Any) -> Any: ...

    @staticmethod
    def parse_static(response: Any) -> Any: ...

    def on_error(self, failure: Any) -> Any: ...

    @property
    def database(self) -> Any:
        self.touched.append("database")

    @cached_property
    def session(self) -> Any:
        self.touched.append("session")

    def __getattr__(self, name: str) -> Any:
        self.touched.append(name)
        raise AttributeError(name)

    def methods(self) -> list[Callable[..., Any]]:
        return [
            self.parse,
            self.parse_page,
            self._parse_hidden,
            self.__parse_private,
            self.parse_async,
            self.parse_class,
            self.on_error,
        ]


class OtherRequest(Request):
    """Not allowed."""


SPIDER = PortableSpider()
METHODS = SPIDER.methods()
CODEC = PortableCodec(SPIDER, [LabelledRequest])
TRUSTING = PortableCodec(SPIDER, [LabelledRequest], pickle=True)


def there_and_back(request: Request) -> Request:
    return CODEC.decode(CODEC.encode(request))


def carried(value: Any) -> Any:
    """What *value* in a request's meta comes back as."""
    return there_and_back(Request(URL, meta={"value": value})).meta["value"]


def refusal(codec: PortableCodec, payload: bytes) -> str:
    with pytest.raises(CodecError) as error:
        codec.decode(payload)
    return str(error.value)


def exactly(value: Any) -> Any:
    """A form of *value* that equals another's only if all types at all depths are the same."""
    kind = type(value)
    if kind is dict:
        return kind, [(exactly(key), exactly(part)) for key, part in value.items()]
    if kind in (list, tuple):
        return kind, [exactly(part) for part in value]
    if kind in (set, frozenset):
        return kind, sorted((exactly(part) for part in value), key=repr)
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is complex:
        return kind, struct.pack(">dd", value.real, value.imag)
    if kind is Decimal:
        return kind, value.as_tuple()
    if kind in (datetime.datetime, datetime.time):
        # repr: all fields, fold included; times in two zones may be equal.
        return kind, repr(value), exactly(value.tzinfo)
    if kind is uuid.UUID:
        return kind, value, value.is_safe
    return kind, value


# Values, with their types

SURROGATES = st.text(st.characters(), max_size=8)
FIXED = st.builds(
    datetime.timezone,
    st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)),
) | st.just(datetime.timezone(datetime.timedelta(0), "named"))
ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]).map(zoneinfo.ZoneInfo)
HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.integers(-(2**64) - 2, 2**64 + 2)
    | st.floats(allow_nan=True)
    | SURROGATES
    | st.binary(max_size=8)
    | st.complex_numbers()
    | st.decimals(allow_nan=True).filter(lambda value: not value.is_snan())
    | st.uuids(allow_nil=True)
    | st.dates()
    | st.times(timezones=st.none() | FIXED)
    | st.datetimes(timezones=st.none() | FIXED | ZONES)
    | st.timedeltas()
    | FIXED
    | ZONES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner.filter(lambda value: value == value), max_size=3)
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE | st.binary(max_size=8).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(HASHABLE.filter(lambda value: value == value), max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=500, deadline=None)
def test_a_value_comes_back_with_the_same_types_at_all_depths(value: Any) -> None:
    assert exactly(carried(value)) == exactly(value)


EDGES = {
    "signaling nan": Decimal("sNaN123"),
    "negative zero": [-0.0, Decimal("-0.00"), complex(-0.0, -0.0)],
    "infinities": [float("inf"), float("-inf"), Decimal("-Infinity")],
    "int borders": [
        sign * 2**bits + step
        for bits in (7, 8, 31, 32, 63, 64, 65, 4000)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ],
    "many digits": 10**5000,
    "surrogate pair, as two": "\ud83d\ude00 \udcff",
    "zero characters": "\0a\0",
    "empty ones": [(), [], {}, set(), frozenset(), "", b"", bytearray()],
    "keys": {None: 1, 2: 2, (3, (4,)): 3, b"5": 4, 6.5: 5, frozenset({7}): 6, "8": 7},
    "true and false": {True: 1, 0: False},
    "one and zero": {1: True, False: 0},
    "same text": [{"a": 1, b"a": 2}, ("a", b"a", bytearray(b"a"))],
    "bytearrays": {"a": [(bytearray(b"1"), {"b": bytearray(b"2")})], (b"1",): b"2"},
    "fold": datetime.datetime(
        2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1
    ),
    "time with fold": datetime.time(1, 2, 3, 4, fold=1),
    "time of zone": datetime.time(1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "odd offset": datetime.timezone(datetime.timedelta(seconds=-3601, microseconds=7)),
    "extremes": [datetime.datetime.max, datetime.date.min, datetime.timedelta.min],
    "time based uuid": uuid.UUID(int=7, is_safe=uuid.SafeUUID.safe),
    "long": ["x" * 70_000, b"y" * 70_000, list(range(70_000)), dict.fromkeys(range(70_000))],
}


@pytest.mark.parametrize("name", EDGES)
def test_a_value_at_an_edge_comes_back_exactly(name: str) -> None:
    value = EDGES[name]
    assert exactly(carried(value)) == exactly(value)


def test_a_time_zone_comes_back_as_the_same_object() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    assert carried(zone) is zone
    assert carried(datetime.timezone.utc) is datetime.timezone.utc


def test_exact_types_are_told_apart() -> None:
    values = [1, True, 1.0, "1", b"1", bytearray(b"1"), [1], (1,), {1}, frozenset({1}), Decimal(1)]
    assert len({repr(exactly(value)) for value in values}) == len(values)
    assert exactly(float("nan")) == exactly(float("nan"))
    assert exactly([0.0]) != exactly([-0.0])


def test_shared_objects_come_back_as_copies() -> None:
    shared = [1]
    meta = there_and_back(Request(URL, meta={"a": shared, "b": shared})).meta
    assert meta == {"a": [1], "b": [1]}
    assert meta["a"] is not meta["b"]


def test_what_happens_to_the_request_later_does_not_change_its_copy() -> None:
    deep = {"list": [1], "bytes": bytearray(b"1")}
    payload = CODEC.encode(Request(URL, meta={"deep": deep}, headers={"A": "1"}))
    deep["list"].append(2)  # type: ignore[union-attr]
    first = CODEC.decode(payload)
    first.meta["deep"]["list"].append(3)
    first.headers["B"] = "1"
    again = CODEC.decode(payload)
    assert again.meta == {"deep": {"list": [1], "bytes": bytearray(b"1")}}
    assert dict(again.headers) == {b"A": [b"1"]}


# Requests, as from the other codec

DICTS = st.dictionaries(TEXT, VALUES, max_size=3)
ARGUMENTS = {
    **arguments_of(METHODS, DICTS),
    "meta": DICTS | st.just({"verbatim_url": True}),
}


def assert_as_from_the_other_codec(request: Request) -> None:
    mine, other = (
        attributes(there_and_back(request)),
        attributes(decode_request(encode_request(request, SPIDER), SPIDER)),
    )
    assert {name: exactly(part) for name, part in mine.items()} == {
        name: exactly(part) for name, part in other.items()
    }


@given(URLS, st.fixed_dictionaries({}, optional=ARGUMENTS))
@settings(max_examples=300, deadline=None)
def test_a_plain_request_comes_back_as_from_the_other_codec(
    url: str, arguments: dict[str, Any]
) -> None:
    assert_as_from_the_other_codec(Request(url, **arguments))


@pytest.mark.parametrize("build", BUILDERS)
@given(
    url=URLS,
    arguments=st.fixed_dictionaries({}, optional={**ARGUMENTS, "encoding": st.just("utf-8")}),
    data=DICTS,
)
@settings(max_examples=50, deadline=None)
def test_an_allowed_subclass_comes_back_as_from_the_other_codec(
    build: Callable[..., Request], url: str, arguments: dict[str, Any], data: dict[str, Any]
) -> None:
    assert_as_from_the_other_codec(build(url, arguments, data))


def test_attributes_of_subclasses_come_back() -> None:
    dumps = {"indent": 2, "sort_keys": True, "separators": (",", ":")}
    request = there_and_back(JsonRequest(URL, data={"a": 1}, dumps_kwargs=dumps))
    assert type(request) is JsonRequest
    assert exactly(request.dumps_kwargs) == exactly(dumps)
    labelled = there_and_back(LabelledRequest(URL, label="own", extra=bytearray(b"x")))
    assert type(labelled) is LabelledRequest
    assert (labelled.label, exactly(labelled.extra)) == ("own", exactly(bytearray(b"x")))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_callbacks_come_back_as_the_same_methods(method: Callable[..., Any]) -> None:
    codec = PortableCodec(SPIDER)  # that has seen none of them
    request = codec.decode(codec.encode(Request(URL, callback=method, errback=method)))
    assert request.callback == request.errback == method


def test_a_method_given_to_the_spider_alone_comes_back() -> None:
    spider = PortableSpider()
    spider.late = LabelledSpider.parse_late.__get__(spider)  # type: ignore[attr-defined]
    codec = PortableCodec(spider)
    request = Request(URL, callback=spider.late)  # type: ignore[attr-defined]
    assert codec.decode(codec.encode(request)).callback == spider.late  # type: ignore[attr-defined]


class LabelledSpider(Spider):
    name = "labelled"

    def parse_late(self, response: Any) -> Any: ...


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "1", b"b": [2, "3"]},
        {"a": [b"1"], "b": [b"2", b"3"]},
        {b"A": [b"1"], b"B": [b"2", "3"]},
        {b"A": b"1", b"B": [b"2", b"3"]},
        [["a", b"1"], ["b", b"2"], ["b", b"3"]],
    ],
)
def test_headers_that_are_not_as_scrapy_makes_them_become_so(headers: Any) -> None:
    request = CODEC.decode(pack({"url": URL, "headers": headers}))
    assert exactly(dict(request.headers)) == exactly({b"A": [b"1"], b"B": [b"2", b"3"]})


def test_tuples_in_headers_become_lists() -> None:
    data = msgpack.packb({"url": URL, "headers": {b"A": 0}})[:-1] + b"\x92\xc7\x00\x01\xc4\x011"
    request = CODEC.decode(wrap(data, b"\x02"))
    assert exactly(dict(request.headers)) == exactly({b"A": [b"1"]})


def test_fewer_bytes_than_a_pickle() -> None:
    for request in (
        Request(URL),
        Request(URL, callback=SPIDER.parse, meta={"depth": 3}, headers={"Referer": URL}),
    ):
        assert len(CODEC.encode(request)) < len(encode_request(request, SPIDER))


def test_the_form_is_a_version_a_checksum_and_msgpack_of_what_differs() -> None:
    request = Request(URL, callback=SPIDER.parse_page, meta={"depth": 1, "pair": (1, 2)})
    payload = CODEC.encode(request)
    assert payload[:1] == b"\x02"
    assert msgpack.unpackb(payload[5:]) == {
        "url": URL,
        "callback": "parse_page",
        "meta": {"depth": 1, "pair": [msgpack.ExtType(1, b""), 1, 2]},
    }


#: Payloads as they were first stored: they have to be readable for as long as crawls run.
STORED = {
    "tuple": (b"\x93\xc7\x00\x01\x01\x02", (1, 2)),
    "set": (b"\x92\xc7\x00\x02\x01", {1}),
    "frozenset": (b"\x92\xc7\x00\x03\x01", frozenset({1})),
    "int": (b"\x92\xc7\x00\x04\xc4\x09\x01" + bytes(8), 2**64),
    "bytearray": (b"\x92\xc7\x00\x05\xc4\x01a", bytearray(b"a")),
    "complex": (b"\x93\xc7\x00\x06" + (b"\xcb" + bytes(8)) * 2, 0j),
    "Decimal": (b"\x92\xc7\x00\x07\xa31.0", Decimal("1.0")),
    "UUID": (b"\x93\xc7\x00\x08\xc4\x10" + bytes(16) + b"\xc0", uuid.UUID(int=0)),
    "date": (b"\x94\xc7\x00\x09\x01\x02\x03", datetime.date(1, 2, 3)),
    "time": (b"\x97\xc7\x00\x0a\x01\x02\x03\x04\xc0\x01", datetime.time(1, 2, 3, 4, fold=1)),
    "datetime": (
        b"\x9a\xc7\x00\x0b\x01\x02\x03\x04\x05\x06\x07\xc0\x00",
        datetime.datetime(1, 2, 3, 4, 5, 6, 7),
    ),
    "timedelta": (b"\x94\xc7\x00\x0c\x01\x02\x03", datetime.timedelta(1, 2, 3)),
    "timezone": (
        b"\x92\xc7\x00\x0d\x94\xc7\x00\x0c\x00\x3c\x00",
        datetime.timezone(datetime.timedelta(minutes=1)),
    ),
    "ZoneInfo": (b"\x92\xc7\x00\x0e\xa3UTC", zoneinfo.ZoneInfo("UTC")),
}


@pytest.mark.parametrize("name", STORED)
def test_the_form_of_a_type_stays_as_it_is(name: str) -> None:
    data, value = STORED[name]
    fields = {"url": URL, "meta": {"value": 0}}
    payload = wrap(msgpack.packb(fields)[:-1] + data, b"\x02")
    assert CODEC.encode(Request(URL, meta={"value": value})) == payload
    assert exactly(CODEC.decode(payload).meta["value"]) == exactly(value)


# What cannot be encoded


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int


class FormItem(Item):
    name = Field()


class Whole(int):
    pass


class Day(datetime.date):
    pass


class OwnZone(datetime.tzinfo):
    def utcoffset(self, when: Any) -> Any:
        return datetime.timedelta(0)


def function() -> None: ...


def zone_from_file(key: str | None) -> zoneinfo.ZoneInfo:
    # Of no data, version 1, with one zone: the smallest that there is.
    content = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(content), key=key)


REFUSED: dict[str, tuple[Any, str]] = {
    "item": (FormItem(name="a"), "a FormItem"),
    "str subclass": (Text("a"), "a Text"),
    "int subclass": (Whole(1), "a Whole"),
    "big int subclass": (Whole(2**70), "a Whole"),
    "date subclass": (Day(2020, 1, 1), "a Day"),
    "namedtuple": (Point(1), "a Point"),
    "IntEnum": (Color.RED, "a Color"),
    "OrderedDict": (collections.OrderedDict(a=1), "an OrderedDict"),
    "defaultdict": (collections.defaultdict(int), "a defaultdict"),
    "Counter": (collections.Counter(), "a Counter"),
    "deque": (collections.deque(), "a deque"),
    "object": (object(), "an object"),
    "function": (function, "a function"),
    "lambda": (lambda: None, "a function"),
    "class": (Request, "a type"),
    "module": (sys, "a module"),
    "lock": (threading.Lock(), "a lock"),
    "generator": ((x for x in ()), "a generator"),
    "request": (Request(URL), "a Request"),
    "range": (range(3), "a range"),
    "exception": (ValueError(), "a ValueError"),
    "ellipsis": (..., "an ellipsis"),
    "pattern": (re.compile("a"), "a Pattern"),
    "memoryview": (memoryview(b"a"), "a memoryview"),
    "msgpack's extension type": (msgpack.ExtType(1, b""), "an ExtType"),
    "msgpack's timestamp": (msgpack.Timestamp(1), "a Timestamp"),
}

#: How to put a value somewhere in a request -> how that place is called.
PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "meta['item']": lambda it: {"meta": {"item": it}},
    "cb_kwargs['item']": lambda it: {"cb_kwargs": {"item": it}},
    "cookies['a']": lambda it: {"cookies": {"a": it}},
    "flags[1]": lambda it: {"flags": ["a", it]},
    "meta['a'][0]['b'][1]": lambda it: {"meta": {"x": 1, "a": [{"b": (1, it)}]}},
    "meta[1][b'k'][None]": lambda it: {"meta": {1: {b"k": {None: it}}}},
    "meta[...]": lambda it: {"meta": {(1, 2): it}},
    "meta['b']": lambda it: {"meta": {"a": bytearray(b"x"), "b": it}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_msgpack_cannot_carry_is_refused_by_its_place_and_type(name: str) -> None:
    value, kind = REFUSED[name]
    for place, arguments in PLACES.items():
        with pytest.raises(CodecError) as error:
            CODEC.encode(Request(URL, **arguments(value)))
        assert str(error.value) == f"{place} is {kind}, which msgpack cannot carry"


@pytest.mark.parametrize("value", [Color.RED, Text("a"), Point(1), memoryview(b"a"), function])
def test_a_key_or_an_element_of_a_set_is_refused_by_its_place(value: Any) -> None:
    for place, meta in {
        "a key of meta": {value: 1},
        "a key of meta['a']": {"a": {value: 1}},
        "an element of meta['a']": {"a": {value}},
        "an element of meta['b']": {"b": frozenset({value})},
        "a key of meta['c']": {"c": {value: bytearray(b"x")}},
        "a key of meta[0]": {0: {value: 1}},
    }.items():
        with pytest.raises(CodecError) as error:
            CODEC.encode(Request(URL, meta=meta))
        kind = type(value).__name__
        assert str(error.value) == f"{place} is a {kind}, which msgpack cannot carry"


def test_an_attribute_of_a_subclass_is_refused_by_its_name() -> None:
    with pytest.raises(CodecError, match=r"^extra is a memoryview, which msgpack"):
        CODEC.encode(LabelledRequest(URL, extra=memoryview(b"a")))
    with pytest.raises(CodecError, match=r"^extra is an OwnZone, which msgpack"):
        CODEC.encode(LabelledRequest(URL, extra=OwnZone()))
    with pytest.raises(CodecError, match=r"^dumps_kwargs\['cls'\] is a type, which"):
        CODEC.encode(JsonRequest(URL, dumps_kwargs={"cls": dict}))


def test_a_time_zone_of_another_kind_is_refused() -> None:
    when = datetime.datetime(2020, 1, 1, tzinfo=OwnZone())
    with pytest.raises(CodecError, match=r"^a part of meta\['a'\] is an OwnZone, which"):
        CODEC.encode(Request(URL, meta={"a": when}))
    with pytest.raises(CodecError, match=r"^a part of meta\['a'\] is an OwnZone, which"):
        CODEC.encode(Request(URL, meta={"a": when.timetz()}))


@pytest.mark.parametrize("key", [None, "Europe/Berlin"])
def test_a_time_zone_from_a_file_is_refused(key: str | None) -> None:
    with pytest.raises(CodecError, match=r"^meta\['a'\] cannot be carried: .*file"):
        CODEC.encode(Request(URL, meta={"a": zone_from_file(key)}))


def test_a_time_zone_that_other_machines_may_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    payload = CODEC.encode(Request(URL, meta={"a": zone}))
    monkeypatch.setattr("scrapy_altsched.requests.kinds._zones", lambda: {"UTC"})
    with pytest.raises(CodecError, match=r"^meta\['a'\] cannot be .*Europe/Berlin is not known"):
        CODEC.encode(Request(URL, meta={"a": zone}))
    assert "time zone Europe/Berlin is not known" in refusal(CODEC, payload)


def nest(depth: int, wrapped: Callable[[Any], Any], inner: Any = None) -> Any:
    for _ in range(depth):
        inner = wrapped(inner)
    return inner


WRAPPINGS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "frozenset": lambda inner: frozenset({inner}),
}


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("inner", [None, -1, b"\xff", datetime.datetime(1, 1, 1)])
def test_what_is_encoded_can_be_decoded_up_to_the_limit_of_nesting(name: str, inner: Any) -> None:
    wrapped = WRAPPINGS[name]
    value = nest(199, wrapped, inner)  # meta itself is the first level
    assert exactly(carried(value)) == exactly(value)
    too_deep = r"^(an element of )?meta\['a'\].* is nested more than 200 deep, or contains itself$"
    for depth in (200, 201, 500, 520, 1021, 1022, 1023, 1024, 5000):
        with pytest.raises(CodecError, match=too_deep):
            CODEC.encode(Request(URL, meta={"a": nest(depth, wrapped, inner)}))


def test_bytearrays_at_the_limit_of_nesting_are_carried() -> None:
    value = nest(199, WRAPPINGS["list"], bytearray(b"x"))
    assert exactly(carried(value)) == exactly(value)


def test_what_contains_itself_is_refused() -> None:
    a_list: list[Any] = []
    a_list.append(a_list)
    a_dict: dict[str, Any] = {}
    a_dict["self"] = a_dict
    inside: list[Any] = []
    inside.append((inside,))
    for value in (a_list, a_dict, inside):
        with pytest.raises(CodecError, match=r"^meta\['a'\].{190,210} is nested more than 200"):
            CODEC.encode(Request(URL, meta={"b": 1, "a": value}))


UNSTABLE: dict[str, Callable[[], dict[str, Any]]] = {
    "lambda": lambda: {"callback": lambda response: None},
    "function": lambda: {"callback": function},
    "static method": lambda: {"callback": SPIDER.parse_static},
    "another spider's method": lambda: {"callback": LabelledSpider().parse_late},
    "errback": lambda: {"errback": lambda failure: None},
}


@pytest.mark.parametrize("name", UNSTABLE)
@pytest.mark.parametrize("codec", [CODEC, TRUSTING], ids=["msgpack", "pickle"])
def test_a_callback_is_refused_as_by_the_other_codec(codec: PortableCodec, name: str) -> None:
    for request_class in (Request, LabelledRequest):
        request = request_class(URL, **UNSTABLE[name]())
        with pytest.raises(CodecError) as other:
            encode_request(request, SPIDER)
        with pytest.raises(CodecError) as error:
            codec.encode(request)
        assert str(error.value) == str(other.value)


def test_a_dunder_method_is_no_callback() -> None:
    for part in ("callback", "errback"):
        with pytest.raises(CodecError, match=f"^its {part}, __call__, is not a method of <Portab"):
            CODEC.encode(Request(URL, **{part: SPIDER.__call__}))


def test_a_method_of_something_that_the_spider_refers_to_is_no_callback() -> None:
    spider = PortableSpider()
    spider.helper = LabelledSpider().parse_late  # type: ignore[attr-defined]
    codec = PortableCodec(spider)
    request = Request(URL, callback=spider.helper)  # type: ignore[attr-defined]
    assert decode_request(encode_request(request, spider), spider).callback == request.callback
    with pytest.raises(CodecError, match=r"^its callback, helper, is not a method of"):
        codec.encode(request)
    assert "its callback, helper, is not" in refusal(
        codec, pack({"url": URL, "callback": "helper"})
    )


def test_a_class_that_is_not_allowed_is_refused_by_the_setting_that_allows_it() -> None:
    path = f"{OtherRequest.__module__}.OtherRequest"
    expected = (
        f"its class, {path}, is not allowed in a shared crawl: add it to"
        " ALTSCHED_SHARED_REQUEST_CLASSES"
    )
    for codec in (CODEC, TRUSTING):
        with pytest.raises(CodecError) as error:
            codec.encode(OtherRequest(URL))
        assert str(error.value) == expected
    payload = PortableCodec(SPIDER, [OtherRequest]).encode(OtherRequest(URL))
    assert refusal(CODEC, payload) == expected
    assert refusal(TRUSTING, encode_request(OtherRequest(URL), SPIDER)) == expected


def test_a_class_with_the_name_of_an_allowed_one_is_refused() -> None:
    local = type("LabelledRequest", (Request,), {"__module__": LabelledRequest.__module__})
    with pytest.raises(CodecError, match=r"LabelledRequest is another class than the request's"):
        CODEC.encode(local(URL))


def test_a_class_that_gives_no_path_is_refused() -> None:
    class Bare(Request):
        def to_dict(self, **kwargs: Any) -> dict[str, Any]:
            return {"url": self.url}

    with pytest.raises(CodecError, match="its class, None, is not allowed"):
        PortableCodec(SPIDER, [Bare]).encode(Bare(URL))


def test_a_local_class_that_is_allowed_need_not_be_importable() -> None:
    class Local(Request): ...

    codec = PortableCodec(SPIDER, [Local])
    assert type(codec.decode(codec.encode(Local(URL)))) is Local


def run_out_of_memory(*args: Any, **kwargs: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("place", ["to_dict", "_pack", "_unpack", "__init__"])
def test_running_out_of_memory_is_not_the_requests_fault(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = PortableCodec(SPIDER, [LabelledRequest])
    request = LabelledRequest(URL)
    payload = codec.encode(request)
    owner = codec._values if place in ("_pack", "_unpack") else LabelledRequest
    monkeypatch.setattr(owner, place, run_out_of_memory)
    with pytest.raises(MemoryError):
        codec.decode(payload) if place in ("_unpack", "__init__") else codec.encode(request)


def test_a_place_that_python_refuses_to_print_is_left_out() -> None:
    with pytest.raises(CodecError, match=r"^meta\['a'\] is an object, which"):
        CODEC.encode(Request(URL, meta={10**5000: 1, "a": object()}))


def test_a_codec_works_after_each_error() -> None:
    codec = PortableCodec(SPIDER)
    good = Request(URL, meta={"a": (1, "\ud800"), "b": [bytearray(b"x")]}, callback=SPIDER.parse)
    payload = codec.encode(good)
    for meta in ({"a": object()}, {"a": "\ud800", "b": object()}, {"a": memoryview(b"a")}):
        with pytest.raises(CodecError):
            codec.encode(Request(URL, meta=meta))
        assert codec.encode(good) == payload
    # A head that nothing follows.
    for data in (b"\xc7\x00\x01", b"\x91\xc7\x00\x01\xc7", b"\x81\xc7\x00\x01\x01"):
        refusal(codec, wrap(data, b"\x02"))
        assert attributes(codec.decode(payload)) == attributes(good)


# What cannot be decoded


def pack(fields: Any) -> bytes:
    return wrap(msgpack.packb(fields), b"\x02")


def raw(value: bytes) -> bytes:
    """A payload whose meta has a value of these bytes."""
    return wrap(b"\x82\xa3url" + msgpack.packb(URL) + b"\xa4meta\x81\xa1a" + value, b"\x02")


PAYLOAD = CODEC.encode(
    LabelledRequest(
        URL,
        callback=SPIDER.parse_page,
        headers={"A": ["1", "2"]},
        meta={"a": [1, 2.5, (1,), {2}, Decimal(1), 2**70], "b": {b"c": None}},
        extra=[bytearray(b"x"), uuid.UUID(int=1), datetime.datetime(2020, 1, 1)],
    )
)


def test_bytes_that_are_cut_short_are_refused() -> None:
    for end in range(len(PAYLOAD)):
        refusal(CODEC, PAYLOAD[:end])
    for end in range(len(PAYLOAD) - 5):
        refusal(CODEC, wrap(PAYLOAD[5 : 5 + end], b"\x02"))
    assert "ExtraData" in refusal(CODEC, wrap(PAYLOAD[5:] + b"\xc0", b"\x02"))


def test_a_changed_byte_is_refused() -> None:
    for position in range(len(PAYLOAD)):
        damaged = bytearray(PAYLOAD)
        damaged[position] ^= 0x01
        refusal(CODEC, bytes(damaged))
    assert refusal(CODEC, PAYLOAD[:-1] + b"z") == "its bytes are damaged"


def assert_harmless(codec: PortableCodec, data: bytes) -> bool:
    """Decode *data* with a right checksum: a refusal, or a request of an allowed class."""
    modules = set(sys.modules)
    try:
        request = codec.decode(wrap(data, b"\x02"))
    except CodecError:
        return False
    finally:
        assert {name for name in sys.modules.keys() - modules if "encodings" not in name} == set()
    assert type(request) in codec._classes.values()
    # All that came is of types that are carried.
    codec.encode(request)
    return True


@given(st.binary(max_size=64))
@settings(deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(CODEC, data)
    refusal(CODEC, b"\x02" + data)
    refusal(CODEC, wrap(data, b"\x02"))


@pytest.mark.long
def test_mutations_of_payloads_are_refused_or_requests_of_allowed_classes() -> None:
    chance = random.Random(1)
    data = PAYLOAD[5:]
    good = 0
    for _ in range(20_000):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            position = chance.randrange(len(mutated))
            kind = chance.randrange(4)
            if kind == 0:
                mutated[position] = chance.randrange(256)
            elif kind == 1:
                mutated[position] ^= 1 << chance.randrange(8)
            elif kind == 2:
                del mutated[position : position + chance.randint(1, 4)]
            else:
                other = chance.randrange(len(data))
                mutated[position:position] = data[other : other + chance.randint(1, 16)]
        good += assert_harmless(CODEC, bytes(mutated))
    assert 100 < good < 19_000


FORGED: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "version .empty"),
    "a newer version": (wrap(PAYLOAD[5:], b"\x03"), "version .03"),
    "not a dict": (pack([1]), "those of a list, not of a request"),
    "a scalar": (pack(5), "those of an int, not of a request"),
    "no URL": (pack({}), "TypeError"),
    "a URL that is none": (pack({"url": "page"}), "Missing scheme"),
    "a URL of bytes": (pack({"url": b"http://a"}), "TypeError"),
    "meta is a list": (pack({"url": URL, "meta": [1]}), "TypeError"),
    "meta is a str": (pack({"url": URL, "meta": "verbatim"}), "TypeError|ValueError"),
    "meta is a number": (pack({"url": URL, "meta": 1}), "TypeError"),
    "priority is a str": (pack({"url": URL, "priority": "1"}), "TypeError"),
    "body is a list": (pack({"url": URL, "body": [1]}), "TypeError"),
    "headers are numbers": (pack({"url": URL, "headers": {1: 1}}), "AttributeError"),
    "headers are nested": (pack({"url": URL, "headers": {"a": [[1]]}}), "TypeError"),
    "headers are a number": (pack({"url": URL, "headers": 5}), "TypeError"),
    "a timestamp in headers": (
        pack({"url": URL, "headers": {b"A": [msgpack.Timestamp(1)]}}),
        "TypeError",
    ),
    "unknown extension type": (raw(b"\xd4\x63\x00"), r"unknown extension type \(99\)"),
    "a negative extension type": (raw(b"\xd4\xfb\x00"), r"unknown extension type \(-5\)"),
    "a head with data": (raw(b"\x92\xd4\x01\x00\x01"), r"unknown extension type \(1\)"),
    "a head alone": (raw(b"\xc7\x00\x01"), "extension type where none belongs"),
    "a head in second place": (raw(b"\x92\x01\xc7\x00\x01"), "where none belongs"),
    "a head twice": (raw(b"\x92" + b"\xc7\x00\x01" * 2), "where none belongs"),
    "a head as a key": (raw(b"\x81\xc7\x00\x01\x01"), "where none belongs"),
    "a timestamp": (raw(b"\xd6\xff\x00\x00\x00\x01"), "where none belongs"),
    "a longer timestamp": (raw(b"\xc7\x0c\xff" + bytes(12)), "where none belongs"),
    "a timestamp oddly put": (raw(b"\xc8\x00\x04\xff" + bytes(4)), "where none belongs"),
    "a timestamp as a key": (raw(b"\x81\xd6\xff\x00\x00\x00\x01\x01"), "where none belongs"),
    "a timestamp in a tuple": (
        raw(b"\x92\xc7\x00\x01\xd6\xff\x00\x00\x00\x01"),
        "where none belongs",
    ),
    "an attribute that is a timestamp": (
        pack({"url": URL, "flags": msgpack.Timestamp(1)}),
        "where none belongs",
    ),
    "a long array": (raw(b"\xdd\xff\xff\xff\xff"), "max_array_len"),
    "a long dict": (raw(b"\xdf\xff\xff\xff\xff"), "max_map_len"),
    "a long str": (raw(b"\xdb\xff\xff\xff\xff"), "incomplete input|max_str_len|max_bin_len"),
    "long bytes": (raw(b"\xc6\xff\xff\xff\xff"), "incomplete input|max_str_len|max_bin_len"),
    "a long extension": (raw(b"\xc9\xff\xff\xff\xff\x01"), "max_ext_len"),
    "a bad byte": (raw(b"\xc1"), "FormatError"),
    "a bad str": (raw(b"\xa1\xff"), "UnicodeDecodeError"),
    "a list as a key": (raw(b"\x81\x90\x01"), "TypeError: unhashable"),
    "deeper than is encoded": (raw(b"\x91" * 200 + b"\xc0"), "nested too deeply"),
    "too deep for msgpack": (raw(b"\x91" * 1100 + b"\xc0"), "StackError"),
    "deep heads": (raw(b"\x92\xc7\x00\x01" * 300 + b"\xc0"), "nested too deeply"),
    "bytearray of a size": (raw(b"\x92\xc7\x00\x05\xcf" + b"\x00\x0f" * 4), "bytes is needed"),
    "bytearray of nothing": (raw(b"\x91\xc7\x00\x05"), "TypeError"),
    "int of a str": (raw(b"\x92\xc7\x00\x04\xa15"), "a bytes is needed, not a str"),
    "complex of a str": (raw(b"\x92\xc7\x00\x06\xa1x"), "ValueError"),
    "Decimal of a number": (raw(b"\x92\xc7\x00\x07\x05"), "a str is needed, not an int"),
    "Decimal of a text": (raw(b"\x92\xc7\x00\x07\xa1x"), "InvalidOperation"),
    "UUID of a few bytes": (raw(b"\x93\xc7\x00\x08\xc4\x01a\xc0"), "ValueError"),
    "UUID, unknown safety": (raw(b"\x93\xc7\x00\x08\xc4\x10" + bytes(16) + b"\x09"), "SafeUUID"),
    "month 13": (raw(b"\x94\xc7\x00\x09\x01\x0d\x01"), "month must be in"),
    "datetime of nothing": (raw(b"\x91\xc7\x00\x0b"), "IndexError"),
    "datetime, zone 5": (
        raw(b"\x9a\xc7\x00\x0b\x01\x01\x01\x00\x00\x00\x00\x05\x00"),
        "TypeError",
    ),
    "time of hour 99": (raw(b"\x97\xc7\x00\x0a\x63\x00\x00\x00\xc0\x00"), "hour must be in"),
    "a long timedelta": (raw(b"\x94\xc7\x00\x0c\xce\xff\xff\xff\xff\x00\x00"), "OverflowError"),
    "an offset of a number": (raw(b"\x92\xc7\x00\x0d\x05"), "TypeError"),
    "a zone outside": (raw(b"\x92\xc7\x00\x0e\xa9../passwd"), "not known on this machine"),
    "an absolute zone": (raw(b"\x92\xc7\x00\x0e\xab/etc/passwd"), "not known on this machine"),
    "a set of a list": (raw(b"\x92\xc7\x00\x02\x90"), "TypeError: unhashable"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_bytes_are_refused_for_their_reason(name: str) -> None:
    payload, message = FORGED[name]
    assert re.search(message, refusal(CODEC, payload))
    refusal(TRUSTING, payload)


@pytest.mark.parametrize(
    "name",
    [
        *("__init__", "__class__", "__call__", "__reduce__", "__parse_private", "__doc__"),
        *("_parse_missing", "missing", "name", "logger", "settings", "touched", "database"),
        *("session", "Loader", "parse_static", "start_urls", "", "parse page", "parse.page"),
        *("parse_page ", 5, True, b"parse_page", ["parse_page"], {"a": 1}, 0, False, [], 10**18),
    ],
)
def test_a_callback_that_is_no_method_is_refused_and_nothing_runs(name: Any) -> None:
    spider = PortableSpider()
    spider.touched.clear()
    codec = PortableCodec(spider)
    for part in ("callback", "errback"):
        message = refusal(codec, pack({"url": URL, part: name}))
        assert message == f"its {part}, {name}, is not a method of {spider}"
    assert spider.touched == []


def test_a_callback_that_is_gone_is_named_in_its_worker() -> None:
    payload = CODEC.encode(Request(URL, callback=SPIDER.parse_page))
    spider = LabelledSpider()
    message = refusal(PortableCodec(spider), payload)
    assert message == f"its callback, parse_page, is not a method of {spider}"


@pytest.mark.parametrize(
    "path",
    [
        *("os.system", "subprocess.Popen", "scrapy.Request", "antigravity.Request", "Request"),
        *("", None, 5, ["scrapy.http.request.Request"], b"scrapy.http.request.Request", True),
    ],
)
def test_a_class_in_a_payload_is_never_imported(path: Any) -> None:
    modules = set(sys.modules)
    message = refusal(CODEC, pack({"url": URL, "_class": path}))
    assert message == (
        f"its class, {path}, is not allowed in a shared crawl: add it to"
        " ALTSCHED_SHARED_REQUEST_CLASSES"
    )
    assert set(sys.modules) == modules


def test_attributes_that_the_class_does_not_have_are_ignored() -> None:
    fields = {"url": URL, "label": "x", "__class__": "y", "_flags": 3, 5: 6}
    assert attributes(CODEC.decode(pack(fields))) == attributes(Request(URL))


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 500 + b"\xdd\x00\x06\x00\x00" + b"\xc0" * 400_000,
        (b"\xdd\x00\x05\x00\x00" * 1000) + b"\xc0" * 400_000,
        (b"\xdf\x00\x02\x00\x00\x01" * 1000) + b"\x01" * 400_000,
        b"\xdd\x00\x00\x0f\x00" * 819,
    ],
    ids=["one array", "nested arrays", "nested dicts", "short"],
)
def test_declared_lengths_take_no_memory(data: bytes) -> None:
    payload = wrap(data, b"\x02")
    tracemalloc.start()
    try:
        refusal(CODEC, payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40e6


def test_a_long_message_is_cut() -> None:
    assert len(refusal(CODEC, pack({"url": "x" * 100_000}))) < 300
    assert len(refusal(CODEC, pack({"url": URL, "_class": "x" * 100_000}))) < 400
    assert len(refusal(CODEC, pack({"url": URL, "callback": "x" * 100_000}))) < 400
    assert "\n" not in refusal(CODEC, pack({"url": URL, "callback": "x\ny"}))


# Pickles


UNPICKLED: list[str] = []


class Marked:
    """Unpickling it leaves a trace."""

    def __reduce__(self) -> Any:
        return leave_trace, ("here",)


def leave_trace(trace: str) -> None:
    UNPICKLED.append(trace)


def test_a_pickle_is_not_loaded_unless_that_is_allowed() -> None:
    UNPICKLED.clear()
    payload = wrap(pickle.dumps({"url": URL, "meta": {"a": Marked()}}, 4), b"\x01")
    assert refusal(CODEC, payload) == (
        "it is a pickle (version 01): one from a shared server could run any code"
    )
    assert UNPICKLED == []
    assert TRUSTING.decode(payload).meta == {"a": None}
    assert UNPICKLED == ["here"]


def test_a_pickle_is_made_only_of_what_msgpack_cannot_carry() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    for value, version in [
        (1, 2),
        ((1, bytearray(b"x")), 2),
        (Color.RED, 1),
        (Point(1), 1),
        (nest(300, WRAPPINGS["list"]), 1),
        (cycle, 1),
        (datetime.datetime(2020, 1, 1, tzinfo=OwnZone()), 1),
    ]:
        payload = TRUSTING.encode(Request(URL, meta={"a": value}, callback=SPIDER.parse))
        assert payload[0] == version
        request = TRUSTING.decode(payload)
        assert type(request.meta["a"]) is type(value)
        assert request.callback == SPIDER.parse
    assert TRUSTING.encode(LabelledRequest(URL, extra=Color.RED))[0] == 1


def test_what_a_pickle_cannot_carry_either_is_refused() -> None:
    with pytest.raises(CodecError, match="pickle"):
        TRUSTING.encode(Request(URL, meta={"a": threading.Lock()}))


def test_a_damaged_pickle_is_refused() -> None:
    payload = encode_request(Request(URL), SPIDER)
    assert refusal(TRUSTING, payload[:-1]) == "its bytes are damaged"


def test_the_strategies_reach_every_type() -> None:
    """A round trip that never meets a type would prove nothing of it."""
    reached: set[type] = set()

    def walk(value: Any) -> None:
        reached.add(type(value))
        if isinstance(value, dict):
            for part in chain(value, value.values()):
                walk(part)
        elif isinstance(value, list | tuple | set | frozenset):
            walk_all(value)

    def walk_all(values: Iterable[Any]) -> None:
        for value in values:
            walk(value)

    @given(VALUES)
    @settings(max_examples=500, deadline=None, database=None)
    def explore(value: Any) -> None:
        walk(value)

    explore()
    assert reached >= CARRIED


# What is reported of requests


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_the_url_of_a_request_is_read_without_unpickling_anything(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    fields = {"url": "http://site.test/", "meta": Touch(ran)}
    pickled = wrap(pickle.dumps(fields), b"\x01")
    codec = PortableCodec(Spider("spider"))
    for read in (read_url, codec.url_of):
        assert read(pickled) is None
        assert read(codec.encode(Request("http://site.test/a"))) == "http://site.test/a"
        assert read(b"") is None
        assert read(b"\x02damaged") is None
    assert not ran.exists()
    assert PortableCodec(Spider("spider"), pickle=True).url_of(pickled) == "http://site.test/"
    assert ran.exists()


@pytest.mark.parametrize("part", ["body", "cb_kwargs"])
@pytest.mark.parametrize("allows_pickle", [False, True])
def test_a_request_that_is_too_large_is_refused(
    part: str, allows_pickle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_altsched.requests.portable.MOST_BYTES", 1_000)
    codec = PortableCodec(Spider("spider"), pickle=allows_pickle)
    values: dict[str, Any] = {"body": bytes(1_001), "cb_kwargs": {"data": bytes(1_001)}}
    with pytest.raises(CodecError, match=r"it has 1,[0-9]{3} bytes, and one that goes to the serv"):
        codec.encode(Request("http://site.test/", **{part: values[part]}))
    assert codec.encode(Request("http://site.test/", body=bytes(800)))
