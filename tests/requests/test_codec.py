"""Requests as bytes, beside what Scrapy's own disk queues make of them."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Selector, Spider
from scrapy.http.request import NO_CALLBACK
from scrapy.squeues import _pickle_serialize  # the very function of Scrapy's disk queues
from scrapy.utils.request import request_from_dict

from scrapy_altsched.errors import CodecError
from scrapy_altsched.requests.codec import decode_request, encode_request

from .samples import BUILDERS, TEXT, URLS, LabelledRequest, arguments_of, attributes

URL = "http://example.com/page?a=1"


class BaseSpider(Spider):
    def parse_inherited(self, response: Any) -> Any: ...

    def parse_overridden(self, response: Any) -> Any: ...

    def __parse_private(self, response: Any) -> Any: ...

    def base_private(self) -> Callable[..., Any]:
        return self.__parse_private


class CodecSpider(BaseSpider):
    name = "codec"

    def parse(self, response: Any) -> Any: ...

    def parse_overridden(self, response: Any) -> Any: ...

    def parse_original(self, response: Any) -> Any: ...

    parse_alias = parse_original

    async def parse_async(self, response: Any) -> Any: ...

    def on_error(self, failure: Any) -> Any: ...

    @classmethod
    def parse_class(cls, response: Any) -> Any: ...

    def __parse_private(self, response: Any) -> Any: ...

    def methods(self) -> list[Callable[..., Any]]:
        return [
            self.parse,
            self.parse_inherited,
            self.parse_overridden,
            self.parse_original,
            self.parse_alias,
            self.parse_async,
            self.on_error,
            self.parse_class,
            self.__parse_private,
            self.base_private(),
        ]

    def overridden(self) -> Callable[..., Any]:
        return super().parse_overridden


class OtherSpider(Spider):
    name = "other"

    def parse_other(self, response: Any) -> Any: ...


class MovedRequest(Request):
    """A test takes it away."""


class Hostile:
    """Pickles, and does something else when it is unpickled."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return raise_error, (self.error,)


def raise_error(error: type[BaseException]) -> None:
    raise error("on the way back")


SPIDER = CodecSpider()
METHODS = SPIDER.methods()


def stock(request: Request) -> Request:
    """What Scrapy's own disk queue gives back."""
    fields = request.to_dict(spider=SPIDER)
    return request_from_dict(pickle.loads(pickle.dumps(fields, 4)), spider=SPIDER)


def ours(request: Request) -> Request:
    return decode_request(encode_request(request, SPIDER), SPIDER)


def assert_as_stock(request: Request) -> None:
    assert attributes(ours(request)) == attributes(stock(request))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS | st.binary(max_size=8) | st.tuples(SCALARS, SCALARS) | st.sets(st.integers()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DICTS = st.dictionaries(TEXT, VALUES, max_size=3)
ARGUMENTS = arguments_of(METHODS, DICTS)


@given(URLS, st.fixed_dictionaries({}, optional=ARGUMENTS))
@settings(max_examples=400, deadline=None)
def test_a_plain_request_comes_back_as_from_scrapys_own_queue(
    url: str, arguments: dict[str, Any]
) -> None:
    assert_as_stock(Request(url, **arguments))


@pytest.mark.parametrize("build", BUILDERS)
@given(
    url=URLS,
    arguments=st.fixed_dictionaries({}, optional={**ARGUMENTS, "encoding": st.just("utf-8")}),
    data=DICTS,
)
@settings(max_examples=60, deadline=None)
def test_a_subclass_comes_back_as_from_scrapys_own_queue(
    build: Callable[..., Request], url: str, arguments: dict[str, Any], data: dict[str, Any]
) -> None:
    assert_as_stock(build(url, arguments, data))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_callbacks_come_back_as_the_same_methods(method: Callable[..., Any]) -> None:
    request = ours(Request(URL, callback=method, errback=method))
    assert request.callback == request.errback == method


def test_a_method_given_to_the_spider_alone_comes_back() -> None:
    spider = CodecSpider()
    spider.late = OtherSpider.parse_other.__get__(spider)  # type: ignore[attr-defined]
    payload = encode_request(Request(URL, callback=spider.late), spider)  # type: ignore[attr-defined]
    assert decode_request(payload, spider).callback == spider.late  # type: ignore[attr-defined]


def test_objects_shared_between_meta_and_cb_kwargs_stay_shared() -> None:
    shared = {"list": [1]}
    request = ours(Request(URL, meta={"a": shared, "b": shared}, cb_kwargs={"c": shared}))
    assert request.meta["a"] is request.meta["b"] is request.cb_kwargs["c"]
    assert request.meta["a"] == shared


def test_what_happens_to_the_request_later_does_not_change_its_copy() -> None:
    deep = {"list": [1]}
    request = Request(URL, meta={"deep": deep}, headers={"A": "1"}, flags=["f"], cookies={"a": "1"})
    before = attributes(stock(request))
    payload = encode_request(request, SPIDER)
    deep["list"].append(2)
    request.meta["more"] = 1
    request.headers["B"] = "2"
    request.flags.append("g")
    request.cookies["b"] = "2"
    request.priority = 7
    assert attributes(decode_request(payload, SPIDER)) == before
    again = decode_request(payload, SPIDER)
    again.meta["deep"]["list"].append(3)
    assert attributes(decode_request(payload, SPIDER)) == before


@pytest.mark.parametrize(
    "request_",
    [
        Request(URL),
        Request(URL, callback=SPIDER.parse),
        Request(URL, callback=SPIDER.parse, meta={"depth": 3, "download_slot": "x"}),
        Request(URL, method="POST", body=b"a=1", headers={"Referer": URL}, priority=3),
        Request(URL, dont_filter=True, cookies={"a": "b"}, flags=["c"]),
    ],
)
def test_the_bytes_are_fewer_than_those_of_scrapys_own_queue(request_: Request) -> None:
    stock_bytes = pickle.dumps(request_.to_dict(spider=SPIDER), 4)
    assert len(encode_request(request_, SPIDER)) < len(stock_bytes)


def test_what_is_as_in_any_request_takes_no_room() -> None:
    for request in (Request(URL), Request(URL, callback=SPIDER.parse, meta={"depth": 3})):
        stock_bytes = pickle.dumps(request.to_dict(spider=SPIDER), 4)
        assert len(encode_request(request, SPIDER)) * 2 < len(stock_bytes)


def test_a_method_of_another_spider_of_the_class_becomes_this_ones_as_with_scrapy() -> None:
    request = Request(URL, callback=CodecSpider().parse)
    assert ours(request).callback == stock(request).callback == SPIDER.parse


# What cannot be encoded


def deep_list() -> list[Any]:
    nested: list[Any] = []
    for _ in range(sys.getrecursionlimit() * 2):
        nested = [nested]
    return nested


def plain_function(response: Any) -> None: ...


class CallableObject:
    def __call__(self, response: Any) -> None: ...


UNSERIALIZABLE: dict[str, Callable[[], dict[str, Any]]] = {
    "lambda": lambda: {"callback": lambda response: None},
    "function": lambda: {"callback": plain_function},
    "no callback": lambda: {"callback": NO_CALLBACK},
    "partial": lambda: {"callback": partial(SPIDER.parse)},
    "callable object": lambda: {"callback": CallableObject()},
    "another object's method": lambda: {"callback": OtherSpider().parse_other},
    "a base class's overridden method": lambda: {"callback": SPIDER.overridden()},
    "errback": lambda: {"errback": lambda failure: None},
    "lambda in meta": lambda: {"meta": {"a": lambda: None}},
    "lock": lambda: {"meta": {"a": threading.Lock()}},
    "generator": lambda: {"cb_kwargs": {"a": (number for number in range(3))}},
    "selector": lambda: {"meta": {"a": Selector(text="<p>")}},
}


@pytest.mark.parametrize("request_class", [Request, LabelledRequest])
@pytest.mark.parametrize("name", UNSERIALIZABLE)
def test_what_scrapy_cannot_store_is_refused_for_scrapys_reason(
    name: str, request_class: type[Request]
) -> None:
    request = request_class(URL, **UNSERIALIZABLE[name]())
    with pytest.raises(ValueError, match=r".") as stock_error:
        _pickle_serialize(request.to_dict(spider=SPIDER))
    with pytest.raises(CodecError) as error:
        encode_request(request, SPIDER)
    assert str(error.value) == str(stock_error.value)


@pytest.mark.parametrize("request_class", [Request, LabelledRequest])
def test_too_deep_a_nesting_is_refused(request_class: type[Request]) -> None:
    request = request_class(URL, meta={"a": deep_list()})
    with pytest.raises(CodecError, match="recursion"):
        encode_request(request, SPIDER)


def test_an_object_whose_pickling_fails_oddly_is_refused() -> None:
    class Odd:
        def __reduce__(self) -> Any:
            raise KeyError("odd")

    with pytest.raises(CodecError, match="odd"):
        encode_request(Request(URL, meta={"a": Odd()}), SPIDER)


def test_a_class_that_will_not_be_found_again_is_refused() -> None:
    class LocalRequest(Request):
        """Scrapy's own queue takes it, and raises when it should give it back."""

    with pytest.raises(CodecError, match="LocalRequest"):
        encode_request(LocalRequest(URL), SPIDER)


def test_a_class_with_the_name_of_another_one_is_refused() -> None:
    local = type("LabelledRequest", (Request,), {"__module__": __name__})
    with pytest.raises(CodecError, match="another class"):
        encode_request(local(URL), SPIDER)


def test_running_out_of_memory_is_not_the_requests_fault() -> None:
    payload = encode_request(Request(URL, meta={"a": Hostile(MemoryError)}), SPIDER)
    with pytest.raises(MemoryError):
        decode_request(payload, SPIDER)

    class Huge:
        def __reduce__(self) -> Any:
            raise MemoryError

    with pytest.raises(MemoryError):
        encode_request(Request(URL, meta={"a": Huge()}), SPIDER)


# What cannot be decoded

PAYLOAD = encode_request(
    Request(URL, callback=SPIDER.parse, headers={"A": ["1", "2"]}, meta={"a": [1, 2.5]}), SPIDER
)


def test_bytes_that_are_cut_short_are_refused() -> None:
    for end in range(len(PAYLOAD)):
        with pytest.raises(CodecError):
            decode_request(PAYLOAD[:end], SPIDER)


def test_a_byte_that_changed_is_found_out() -> None:
    for position in range(len(PAYLOAD)):
        for change in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(PAYLOAD)
            damaged[position] ^= change
            with pytest.raises(CodecError):
                decode_request(bytes(damaged), SPIDER)


@given(st.binary(max_size=64))
def test_random_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(CodecError):
        decode_request(payload, SPIDER)
    with pytest.raises(CodecError):
        decode_request(PAYLOAD[:1] + payload, SPIDER)


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(CodecError, match=r"version .*02"):
        decode_request(b"\x02" + PAYLOAD[1:], SPIDER)
    with pytest.raises(CodecError, match=r"version .*empty"):
        decode_request(b"", SPIDER)


def test_a_callback_that_is_gone_is_named() -> None:
    payload = encode_request(Request(URL, callback=SPIDER.parse_original), SPIDER)
    with pytest.raises(CodecError, match="'parse_original' not found"):
        decode_request(payload, OtherSpider())
    payload = encode_request(Request(URL, errback=SPIDER.on_error), SPIDER)
    with pytest.raises(CodecError, match="'on_error' not found"):
        decode_request(payload, OtherSpider())


def test_a_class_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = encode_request(MovedRequest(URL), SPIDER)
    assert type(decode_request(payload, SPIDER)) is MovedRequest
    monkeypatch.delattr(sys.modules[__name__], "MovedRequest")
    with pytest.raises(CodecError, match="MovedRequest"):
        decode_request(payload, SPIDER)


def test_a_class_in_meta_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = encode_request(Request(URL, meta={"a": MovedRequest}), SPIDER)
    monkeypatch.delattr(sys.modules[__name__], "MovedRequest")
    with pytest.raises(CodecError, match="MovedRequest"):
        decode_request(payload, SPIDER)


@pytest.mark.parametrize("error", [TypeError, RecursionError, KeyError, OSError])
def test_an_object_that_fails_to_come_back_is_refused(error: type[Exception]) -> None:
    payload = encode_request(Request(URL, meta={"a": Hostile(error)}), SPIDER)
    with pytest.raises(CodecError, match=f"{error.__name__}: .*on the way back"):
        decode_request(payload, SPIDER)
