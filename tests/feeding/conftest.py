"""A server and a site for spiders that are fed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..sites import Page, Site

#: Two parts that are not linked with each other.
PAGES = {
    "/0": Page(["/1", "/2"]),
    "/1": Page(["/2"]),
    "/2": Page(["/0"]),
    "/8": Page(["/9"]),
    "/9": Page(),
}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(PAGES) as site:
        yield site
