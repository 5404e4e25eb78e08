"""Words that go with a number: one request, two requests."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """*count*, and the word that goes with it."""
    return f"{count:,} {inflect(count, one, many)}"


def inflect(count: int, one: str, many: str | None = None) -> str:
    """*one* if *count* is 1, else *many*; by default, *one* with an s."""
    if count == 1:
        return one
    return f"{one}s" if many is None else many
