"""Words that go with a number: one request, two requests."""

from __future__ import annotations


def inflect(count: int, one: str, many: str | None = None) -> str:
    """*one* where *count* is 1, else *many*; where that is not given, *one* with an s."""
    if count == 1:
        return one
    return f"{one}s" if many is None else many
