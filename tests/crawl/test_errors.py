"""All errors are in one module, and each of them is for something."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import scrapy_altsched
from scrapy_altsched import errors
from scrapy_altsched.errors import AltschedError

from ..stores import INSTALLED

PACKAGE = Path(scrapy_altsched.__file__).parent
CLASSES = {
    name: item
    for name, item in vars(errors).items()
    if isinstance(item, type) and issubclass(item, Exception)
}


def test_every_error_of_the_package_is_in_the_module() -> None:
    found = set()
    for module in pkgutil.walk_packages([str(PACKAGE)], "scrapy_altsched."):
        if "rocksdb" in module.name.split(".") and "rocksdb" not in INSTALLED:
            continue
        for item in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(item, type)
                and issubclass(item, BaseException)
                and item.__module__.startswith("scrapy_altsched.")
            ):
                found.add(item)
    assert found == set(CLASSES.values())
    assert all(issubclass(item, AltschedError) for item in found)


def names_in_use(node: ast.AST) -> Iterator[str]:
    """Names that stand where a value is made of them: not imports, annotations, except clauses."""
    for name, child in ast.iter_fields(node):
        if name in {"annotation", "returns", "bases"} or (
            isinstance(node, ast.ExceptHandler) and name == "type"
        ):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.Call) and getattr(item.func, "id", "") == "isinstance":
                continue
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load):
                yield item.id
            elif isinstance(item, ast.AST):
                yield from names_in_use(item)


def test_every_error_is_raised_somewhere() -> None:
    used = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in names_in_use(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert set(CLASSES) - used == {"AltschedError"}  # the base, and no error by itself


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_says_what_it_is(name: str) -> None:
    doc = CLASSES[name].__doc__
    assert doc is not None
    assert re.fullmatch(r"[A-Z].*\.", doc)


def test_the_base_is_a_public_name_of_the_package() -> None:
    assert scrapy_altsched.AltschedError is AltschedError
