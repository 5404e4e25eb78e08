"""Names with wildcards, as of query parameters and form fields.

``*`` stands for any characters, ``?`` for one.  Brackets are literal, since names such as ``ids[]``
and ``filter[color]`` are common.  A backslash escapes ``*``, ``?``, a bracket and itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_SPECIAL = "*?[]\\"
_MEMO_LIMIT = 10_000  # names


def check_glob(glob: str) -> None:
    """Raise ValueError, with the reason, if a glob is invalid."""
    if not glob:
        raise ValueError("an empty name matches nothing")
    _to_regex(glob)


def escape_glob(name: str) -> str:
    """The glob that matches only *name*."""
    return re.sub(r"[*?\[\]\\]", r"\\\g<0>", name)


def _to_regex(glob: str) -> str:
    parts, is_open = [], False
    for found in re.finditer(r"\\(.?)|.", glob, re.DOTALL):
        char = found[0]
        if char[0] == "\\":
            if not found[1] or found[1] not in _SPECIAL:
                bad = "has a backslash before none of the characters"
                raise ValueError(f"{glob!r} {bad} {_SPECIAL}")
            parts.append(re.escape(found[1]))
            continue
        if char in "[]":
            if is_open == (char == "["):
                raise ValueError(
                    f"{glob!r} has an unmatched bracket: write \\{char} for a literal one"
                )
            is_open = char == "["
            if is_open and re.match(r"\[(?:[!^]|\w-\w)", glob[found.start() :]):
                raise ValueError(
                    f"{glob!r} looks like a set of characters, but brackets are literal:"
                    " list the names, or use * or ?"
                )
        parts.append({"*": ".*", "?": "."}.get(char) or re.escape(char))
    if is_open:
        raise ValueError(f"{glob!r} has an unmatched bracket: write \\[ for a literal one")
    return "".join(parts)


class Globs:
    """A set of globs that names are looked up in."""

    def __init__(self, globs: Iterable[str]) -> None:
        # The last one never matches, so that without globs no name matches, not even an empty one.
        regex = "|".join([*map(_to_regex, globs), r"(?!)"])
        self._match = lru_cache(_MEMO_LIMIT)(re.compile(regex, re.DOTALL).fullmatch)

    def __contains__(self, name: str) -> bool:
        return self._match(name) is not None
