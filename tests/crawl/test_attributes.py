"""How many attributes the objects of an open crawl have, which decides what each access costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..engines import OURS, StandIn
from ..servers import RedisServer

#: "Cheap requests" in docs/architecture.rst says why.
MOST = 29


def attributes_of(thing: object) -> Iterator[Any]:
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        for name in getattr(kind, "__slots__", ()):
            yield getattr(thing, name, None)


def parts_of(thing: object) -> list[Any]:
    """All objects of this package that *thing* leads to, itself among them."""
    found: dict[int, Any] = {}
    left = [thing]
    while left:
        each = left.pop()
        each = getattr(each, "__self__", each)  # of a method
        if type(each).__module__.startswith("scrapy_altsched") and id(each) not in found:
            found[id(each)] = each
            left += attributes_of(each)
    return list(found.values())


@pytest.mark.parametrize("kind", ["memory", "disk", "shared"])
def test_what_requests_pass_has_few_attributes(
    tmp_path: Path, server: RedisServer, kind: str
) -> None:
    settings: dict[str, Any] = {
        "memory": {},
        "disk": {"JOBDIR": str(tmp_path / "job")},
        "shared": {"ALTSCHED_SHARED": 1, "REDIS_PORT": server.port},
    }[kind]
    crawl = StandIn({**OURS, **settings})
    parts = parts_of(crawl.scheduler)
    assert len(parts) > 20
    counts = {type(part).__qualname__: len(getattr(part, "__dict__", ())) for part in parts}
    assert {name: count for name, count in counts.items() if count > MOST} == {}
    crawl.scheduler.close("finished")
