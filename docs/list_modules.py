"""Writes the tables of modules in architecture.rst, from the first sentences of their docstrings.

Run it after a module was added, moved or described in another way.  With ``--check`` it changes
nothing, and fails if there would be something to change.

A table stands between the comments ``.. modules: PATHS`` and ``.. end of modules``.  A path is a
module, a room (its folder), or ``rest`` for the other modules outside of rooms.  A room's own
docstring is in no table, since the text above the table says what the room is.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PACKAGE = PROJECT / "scrapy_altsched"
PAGE = PROJECT / "docs" / "architecture.rst"
WIDTH = 100  # characters
TABLE = re.compile(
    r"(?<=^\.\. modules: )([^\n]+)\n(.*?)(?=^\.\. end of modules$)", re.MULTILINE | re.DOTALL
)
HEAD = """
.. list-table::
    :header-rows: 1
    :widths: 32 68

    * - Module
      - What is in it
"""


def first_sentence(source: str) -> str:
    """What a module says of itself, as reStructuredText without roles."""
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    sentence = re.match(r"(?:START HERE\. )?(.+?\.)(?= |$)", text)
    return re.sub(r":\w+:`~?\.?([^`]+)`", r"``\1``", sentence[1]) if sentence else ""


def describe(package: Path) -> dict[str, str]:
    """The first sentence of every module of *package*, by path.

    :raises ValueError: a module has none.
    """
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        found[name] = first_sentence(path.read_text(encoding="utf-8"))
        if not found[name]:
            raise ValueError(f"{name} has no docstring that begins with a sentence")
    return found


def with_tables(page: str, modules: dict[str, str]) -> str:
    """*page* with the tables that it should have.

    :raises ValueError: it has no table for a module, or one for a module that is not there.
    """
    waiting = {name for name in modules if not name.endswith("/__init__.py")}

    def table(match: re.Match[str]) -> str:
        lines = []
        for path in match[1].split():
            if path.endswith("/"):
                names = {name for name in waiting if name.rpartition("/")[0] == path[:-1]}
            elif path == "rest":
                names = {name for name in waiting if "/" not in name}
            else:
                names = {path} & waiting
            if not names:
                raise ValueError(f"there is no module {path!r} to list, or it is listed twice")
            waiting.difference_update(names)
            for name in sorted(names):
                lines.append(f"    * - ``{name}``")
                lines += textwrap.wrap(
                    modules[name],
                    WIDTH,
                    initial_indent="      - ",
                    subsequent_indent="        ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        return f"{match[1]}\n{HEAD}" + "\n".join(lines) + "\n\n"

    page = TABLE.sub(table, page)
    if waiting:
        raise ValueError(
            f"no table for {', '.join(sorted(waiting))}: give the room a section with the comments"
            " '.. modules: ROOM/' and '.. end of modules'"
        )
    return page


def main() -> str | None:
    """Write the page, or check it; what is wrong, if anything."""
    parser = argparse.ArgumentParser(description="Write the tables of modules.")
    parser.add_argument("--check", action="store_true", help="only say whether they are current")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    try:
        after = with_tables(before, describe(PACKAGE))
    except ValueError as error:
        return f"{PAGE.relative_to(PROJECT)}: {error}"
    if arguments.check and after != before:
        return f"{PAGE.relative_to(PROJECT)} is not current: run python docs/list_modules.py"
    if not arguments.check:
        PAGE.write_text(after, encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
