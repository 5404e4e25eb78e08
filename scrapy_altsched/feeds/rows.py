"""What is inside of a feed's file: its rows, the torn one at its end, and its columns.

All that reads or writes a file raises OSError if it cannot.
"""

from __future__ import annotations

import codecs
import csv
import io
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.utils.misc import load_object

from ..disk import write_again
from ..inflection import inflect

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

#: What the rows of a file are: lines, or those of CSV, whose values may hold line feeds.
Rows = Literal["lines", "csv"]
#: What a feed's ``fields`` may be: names, or name -> heading.
Fields = Sequence[str] | Mapping[str, str]

_CHUNK = 1024 * 1024  # bytes
#: Those of a CSV feed's ``item_export_kwargs`` that say how rows are written.
_CSV_FORMAT = frozenset(
    {"dialect", "delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting"}
)


def rows_of(options: dict[str, Any], settings: BaseSettings) -> tuple[Rows | None, str]:
    """What a feed's file consists of; or why it cannot be cut after a row and appended to."""
    if options.get("postprocessing"):
        return None, "its post-processing buffers items and cannot be appended to"
    exporter = exporter_class(options, settings)
    rows: Rows
    if exporter is CsvItemExporter:
        rows, ends_show = "csv", _has_even_quotes(options)
    elif is_kind(exporter, JsonLinesItemExporter):
        rows, ends_show = "lines", True
    else:
        return None, f"a file in the format {options['format']} cannot be appended to"
    if ends_show and _is_like_ascii(_encoding(options)):
        return rows, ""
    return None, "its encoding or quoting does not show where a row ends"


def exporter_class(options: dict[str, Any], settings: BaseSettings) -> Any:
    """The exporter of a feed's format, or ``None``."""
    path = settings.getwithbase("FEED_EXPORTERS").get(options["format"])
    return load_object(path) if path is not None else None


def is_kind(made: Any, kind: type) -> bool:
    """Whether *made*, a class or another callable that a setting names, is a subclass of *kind*."""
    return isinstance(made, type) and issubclass(made, kind)


def csv_dialect(options: dict[str, Any]) -> csv.Dialect:
    """How the rows of a CSV feed are written.

    :raises csv.Error: the options are not a valid dialect; so does TypeError.
    """
    kwargs = options.get("item_export_kwargs") or {}
    given = {name: kwargs[name] for name in _CSV_FORMAT.intersection(kwargs)}
    # The stubs know an abstract class of dialects only.
    return csv.writer(io.StringIO(), **given).dialect  # type: ignore[return-value]


def _encoding(options: dict[str, Any]) -> str:
    return options.get("encoding") or "utf-8"


def _is_like_ascii(encoding: str) -> bool:
    """Whether the bytes of line feeds and quotes are ASCII's, and not part of other characters."""
    try:
        name = codecs.lookup(encoding).name
        return '"\n'.encode(encoding).endswith(b'"\n') and not name.startswith(("iso2022", "hz"))
    except LookupError:
        return False


def _has_even_quotes(options: dict[str, Any]) -> bool:
    """Whether each row of a CSV feed has an even number of double quotes, and then a line feed."""
    try:
        dialect = csv_dialect(options)
    except (csv.Error, TypeError):
        return False
    is_quoted = dialect.quotechar == '"' and dialect.quoting != csv.QUOTE_NONE
    return is_quoted and dialect.doublequote and dialect.lineterminator.endswith("\n")


def cut_torn_row(path: Path, rows: Rows, spider: Spider, floor: int = 0) -> int:
    """Cut what follows the last whole row of a file, and log that; how many bytes it was.

    The first zero ends what is whole: a power cut leaves zeros where a disk has the length of a
    file and not its content.

    :param floor: bytes at the beginning that are whole rows, whatever is in them; not looked at.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = position = file.seek(floor)
        is_quoted = False
        for line in iter(lambda: file.readline(_CHUNK), b""):
            if b"\0" in line:
                break
            position += len(line)
            # A line feed is inside quotes, and ends no row, if their number before it is odd.
            is_quoted ^= rows == "csv" and line.count(b'"') % 2 == 1
            if line.endswith(b"\n") and not is_quoted:
                end = position
        if end >= size:
            return 0
        file.truncate(end)
    cut = size - end
    logger.info(
        "%d %s of a torn last row in %s: cut, its page is crawled again",
        cut,
        inflect(cut, "byte"),
        path,
        extra={"spider": spider},
    )
    return cut


def repair(path: Path, size: int, rows: Rows, spider: Spider, *, lost_power: bool) -> None:
    """Cut the torn row of a file whose writer has died, and warn if rows are missing.

    :param size: bytes of the file at the job's last commit: what came after may be torn.
    :param lost_power: whether the disk may not have got all of them.
    """
    found = path.stat().st_size if path.exists() else None
    if lost_power and found and (zeros := _find_zeros(path, size)) is not None:
        logger.warning(
            "The feed %s has zeros instead of rows at byte %d: a power cut took what was not on the"
            " disk. Items of pages that are done may be missing in it. Remove the torn rows;"
            " ALTSCHED_SYNC prevents this.",
            path,
            zeros,
            extra={"spider": spider},
        )
    if (found or 0) < size:
        logger.warning(
            "The feed %s has %s, but had %d at the last commit of this job: it was changed or"
            " moved, its disk is not mounted, or a power cut took its end. Items of pages that are"
            " done may be missing in it.",
            path,
            "0 bytes (the file is gone)" if found is None else f"{found} bytes",
            size,
            extra={"spider": spider},
        )
    elif found:
        cut_torn_row(path, rows, spider, floor=size)
        # The next commit forgets up to where the file was known.
        write_again(path, size)


def _find_zeros(path: Path, end: int) -> int | None:
    """Position of the first zero byte before *end*; no row has one."""
    with path.open("rb") as file:
        for start in range(0, end, _CHUNK):
            if (found := file.read(min(_CHUNK, end - start)).find(b"\0")) >= 0:
                return start + found
    return None


def ends_a_line(path: Path) -> bool:
    """Whether the end of a file, which is not empty, is that of a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def read_header(path: Path, options: dict[str, Any]) -> list[str] | None:
    """The headings in the first line of a CSV feed's file, if it has any."""
    with path.open(encoding=_encoding(options), errors="replace", newline="") as file:
        try:
            return next(csv.reader(file, csv_dialect(options)), None) or None
        except csv.Error:
            return None


def fit_fields(given: Fields | None, header: list[str]) -> tuple[Fields, str]:
    """The fields to export to have each value below its heading, and how they differ from *given*.

    :param given: the fields that the settings ask for; ``None``: those of the items.
    """
    if not given:
        return header, ""
    headings = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    wanted = list(headings.values() if isinstance(given, Mapping) else given)
    if wanted == header:
        return given, ""
    names = {heading: name for name, heading in headings.items()}
    # A name that no item has leaves the column empty.
    fields = {names.pop(heading, f"\0{at}"): heading for at, heading in enumerate(header)}
    changes = {
        "left out": [heading for heading in wanted if heading not in header],
        "left empty": [heading for heading in header if heading not in wanted],
    }
    told = [f"{', '.join(map(repr, some))} {how}" for how, some in changes.items() if some]
    return fields, " and ".join(told) or "the order of the fields not changed"
