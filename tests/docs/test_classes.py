"""What holds of every class of the package, read from the sources."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from .test_imports import TREES


def methods_of(node: ast.ClassDef) -> set[str]:
    return {item.name for item in node.body if isinstance(item, ast.FunctionDef)}


CLASSES = {
    f"{module}.{node.name}": node
    for module, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


@pytest.mark.parametrize(
    "name", [name for name, node in CLASSES.items() if "__len__" in methods_of(node)]
)
def test_only_a_collection_may_be_false_because_it_is_empty(name: str) -> None:
    """``x or y`` would drop an *x* that is there and has nothing to do."""
    methods = methods_of(CLASSES[name])
    assert methods & {"__iter__", "__getitem__", "__bool__"}, f"give {name} a __bool__"


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    names = Counter(name.rpartition(".")[2] for name in CLASSES)
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []
