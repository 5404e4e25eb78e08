"""The page about answers in JSON names the keys that subcommands write."""

from __future__ import annotations

import ast

import pytest

from scrapy_altsched.command import SUBCOMMANDS

from ..crawls import altsched
from .test_docs import SOURCES, TEXTS, first_column

#: Section -> the modules that make its keys; those of explain are in two sections.
MODULES = {
    ("status",): ("standing",),
    ("check",): ("check",),
    ("peek",): ("peek",),
    ("requeue",): ("requeue", "selection"),
    ("failed",): ("failed", "groups", "selection"),
    ("explain", "explain --links"): ("explain", "places"),
}
#: Why others have no such option: the page says the same.
WRITES = {"export", "report"}


def keys_of(module: str) -> set[str]:
    """All keys of dictionaries that a module writes down."""
    found = set()
    for node in ast.walk(SOURCES[f"command/{module}.py"]):
        match node:
            case ast.Dict(keys=keys):
                constants = [it.value for it in keys if isinstance(it, ast.Constant)]
            case ast.Subscript(slice=ast.Constant(value=value), ctx=ast.Store()):
                constants = [value]
            case _:
                continue
        found.update(it for it in constants if isinstance(it, str))
    return found


@pytest.mark.parametrize("sections", MODULES, ids=lambda names: names[0])
def test_each_key_is_documented(sections: tuple[str, ...]) -> None:
    paths = [path for section in sections for path in first_column("json.rst", section)]
    parts = {part.removesuffix("[]") for path in paths for part in path.split(".")}
    written = set().union(*map(keys_of, MODULES[sections]))
    assert parts == written


def test_the_page_has_a_section_for_each_subcommand_that_has_the_option() -> None:
    with_json = {name for name in SUBCOMMANDS if "--json" in altsched(name, "--help").stdout}
    assert with_json == {names[0] for names in MODULES}
    for name in WRITES:
        assert f"``{name}`` writes" in TEXTS["json.rst"]
