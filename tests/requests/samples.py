"""Requests of every kind, and what of a request has to come back from any codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest, XmlRpcRequest

TEXT = st.text(max_size=8)
TOKEN = st.from_regex(r"[A-Za-z-]{1,8}", fullmatch=True)
PRINTABLE = st.from_regex(r"[ -~]{0,8}", fullmatch=True)
URLS = st.builds("http://{}.example/{}?q={}#f".format, TOKEN, TEXT, TEXT)
HEADER_VALUE = PRINTABLE | st.binary(max_size=8)
HEADERS = st.dictionaries(TOKEN, HEADER_VALUE | st.lists(HEADER_VALUE, max_size=3), max_size=3)
COOKIES = st.dictionaries(TOKEN, TEXT | st.binary(max_size=3), max_size=2) | st.lists(
    st.fixed_dictionaries(
        {"name": TOKEN, "value": TEXT},
        optional={"domain": TOKEN, "path": TOKEN, "secure": st.booleans()},
    ),
    max_size=2,
)


def arguments_of(
    methods: list[Callable[..., Any]], dicts: st.SearchStrategy[dict[Any, Any]]
) -> dict[str, st.SearchStrategy[Any]]:
    """What each argument of a request may be, besides the URL.

    :param methods: those of the spider that may be callbacks.
    :param dicts: what its meta, and the arguments of its callback, may be.
    """
    callback = st.none() | st.sampled_from(methods)
    return {
        "method": st.sampled_from(["GET", "post", "HEAD", ""]),
        "headers": HEADERS | HEADERS.map(lambda headers: list(headers.items())),
        "body": st.binary(max_size=8) | PRINTABLE,
        "cookies": COOKIES,
        "meta": dicts,
        "cb_kwargs": dicts,
        "encoding": st.sampled_from(["utf-8", "utf8", "utf-16", "gb18030"]),
        "priority": st.integers() | st.sampled_from([10**40, -(10**40), True, False]),
        "dont_filter": st.sampled_from([True, False, 0, 1]),
        "flags": st.lists(TEXT, max_size=2),
        "callback": callback,
        "errback": callback,
    }


class LabelledRequest(Request):
    """As the documentation has it: a subclass with attributes of its own."""

    attributes = (*Request.attributes, "label", "extra")

    def __init__(self, *args: Any, label: str = "none", extra: Any = None, **kwargs: Any) -> None:
        self.label = label
        self.extra = extra
        super().__init__(*args, **kwargs)


def build_form(url: str, arguments: dict[str, Any], data: dict[str, Any]) -> Request:
    form = {name: str(len(name)) for name in data}
    return FormRequest(url, formdata=form, **{**arguments, "body": None})


def build_json(url: str, arguments: dict[str, Any], data: dict[str, Any]) -> Request:
    dumps = {"indent": 2, "sort_keys": False, "separators": (",", ": ")}
    return JsonRequest(url, data=list(data), dumps_kwargs=dumps, **{**arguments, "body": None})


def build_xmlrpc(url: str, arguments: dict[str, Any], data: dict[str, Any]) -> Request:
    arguments.pop("body", None)
    return XmlRpcRequest(url, params=(len(data),), methodname="count", **arguments)


def build_labelled(url: str, arguments: dict[str, Any], data: dict[str, Any]) -> Request:
    return LabelledRequest(url, label="own", extra=data, **arguments)


BUILDERS: list[Callable[..., Request]] = [build_form, build_json, build_xmlrpc, build_labelled]


def attributes(request: Request) -> dict[str, Any]:
    return {
        **{name: getattr(request, name) for name in type(request).attributes},
        "class": type(request),
        "headers": dict(request.headers),
        "header encoding": request.headers.encoding,
    }
