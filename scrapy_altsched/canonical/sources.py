"""Reads rules from where they are written: a setting, or files that it names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ConfigError
from .discarder import read_foreign
from .rule import Rule, read_toml, require_known

#: A path, rules as dicts, or a list of both; text that begins with ``[`` is JSON.
Source: TypeAlias = (
    "str | os.PathLike[str] | Sequence[Mapping[str, Any] | str | os.PathLike[str]] | None"
)

#: What to call a rule, its place (with the line that it begins at, if known), and what it says.
_Entry: TypeAlias = "tuple[str, str, Any]"


def read_rules(source: Source, name: str) -> Iterator[tuple[str, Rule]]:
    """Every rule of *source*, checked, with what to call it; otherwise as ``Rules.load``."""
    for label, place, data in _entries(source, name):
        if not isinstance(data, Mapping):
            raise ConfigError(f"{place}: {data!r} is not a rule: it must be a dict.")
        is_foreign = "processor" in data or "urlPattern" in data
        rule = (read_foreign if is_foreign else Rule.from_dict)(data, place)
        yield rule.name or label, rule


def _entries(source: Any, name: str) -> Iterator[_Entry]:
    if source is None or source == "":
        return
    if isinstance(source, str) and source.lstrip().startswith("["):
        yield from _json_entries(source, name)
    elif isinstance(source, (str, os.PathLike)):
        yield from _file_entries(Path(source), name)
    elif isinstance(source, (list, tuple)):
        for position, item in enumerate(source):
            if isinstance(item, (str, os.PathLike)):
                yield from _file_entries(Path(item), name)
            else:
                label = f"{name}[{position}]"
                yield label, label, item
    else:
        hint = " Put it into a list." if isinstance(source, Mapping) else ""
        raise ConfigError(
            f"{name} = {source!r} cannot be used: it must be a list of rules, or the path of a"
            f" file with rules.{hint}"
        )


def _file_entries(path: Path, name: str) -> Iterator[_Entry]:
    readers = {".json": _json_entries, ".toml": _toml_entries}
    if (reader := readers.get(path.suffix.lower())) is None:
        raise ConfigError(
            f"{name}: {str(path)!r} cannot be used: a file with rules ends in .json or .toml."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{name}: the file {str(path)!r} cannot be read: {error.strerror}."
            f" (Looked for from {Path.cwd()}.)"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: the file {str(path)!r} is not UTF-8: byte {error.start} is not."
        ) from None
    yield from reader(text, str(path))


def _json_entries(text: str, name: str) -> Iterator[_Entry]:
    decoder = json.JSONDecoder()
    try:
        rules = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not JSON that can be read: {error}.") from None
    if not isinstance(rules, list):
        raise ConfigError(f"{name}: a JSON file with rules must hold a list of them.")
    # Parse again, one by one, for the line at which each begins.
    position = text.index("[") + 1
    for number, rule in enumerate(rules):
        while text[position] in " \t\r\n,":
            position += 1
        label, line = f"{name}[{number}]", text.count("\n", 0, position) + 1
        yield label, f"{label}, line {line}", rule
        position = decoder.raw_decode(text, position)[1]


def _toml_entries(text: str, name: str) -> Iterator[_Entry]:
    try:
        document = read_toml(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not TOML: {error}.") from None
    require_known(document, ["rules"], f"{name}: unknown table")
    rules = document.get("rules", [])
    if not isinstance(rules, list):
        raise ConfigError(f"{name}: each rule must be a table of its own, below [[rules]].")
    is_head = re.compile(r"\s*\[\[\s*rules\s*\]\]").match
    places = [f", line {at}" for at, line in enumerate(text.splitlines(), 1) if is_head(line)]
    if len(places) != len(rules):  # rules are written inline, or a head is inside a string
        places = [""] * len(rules)
    for position, (place, rule) in enumerate(zip(places, rules, strict=True)):
        label = f"{name}[{position}]"
        yield label, f"{label}{place}", rule
