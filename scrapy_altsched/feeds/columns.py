"""The columns of a CSV file that is appended to: those of its header line, in its order."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .configured import csv_dialect

#: What a feed's ``fields`` may be: names, or name -> heading.
Fields = Sequence[str] | Mapping[str, str]


def read_header(path: Path, options: dict[str, Any]) -> list[str] | None:
    """The headings in the first line of a CSV feed's file; ``None``: it has none.

    :raises OSError: the file cannot be read.
    """
    encoding = options.get("encoding") or "utf-8"
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        try:
            return next(csv.reader(file, csv_dialect(options)), None) or None
        except csv.Error:
            return None


def fit_fields(given: Fields | None, header: list[str]) -> tuple[Fields, str | None]:
    """The fields to export so that each value is below its heading.

    :param given: the fields that the settings ask for; ``None``: those of the items.
    :return: the fields, and how they differ from *given*, if they do.
    """
    if not given:
        return header, None
    headings = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    wanted = list(headings.values() if isinstance(given, Mapping) else given)
    if wanted == header:
        return given, None
    names = {heading: name for name, heading in headings.items()}
    fields: dict[str, str] = {}
    for number, heading in enumerate(header):
        # A name that no item has leaves the column empty.
        name = names.pop(heading, f"\0{number}")
        fields[name] = heading
    dropped = [heading for heading in wanted if heading not in header]
    empty = [heading for heading in header if heading not in wanted]
    changes = [
        *([f"{_join(dropped)} left out"] if dropped else []),
        *([f"{_join(empty)} left empty"] if empty else []),
    ]
    return fields, " and ".join(changes) or "the order of the fields not changed"


def _join(headings: list[str]) -> str:
    return ", ".join(map(repr, headings))
