"""Which tests start a process of their own, read from the sources.

What a test reaches is all that its function names, fixtures included, and what that names in turn,
within the modules of these tests.  A class is reached with all of its methods.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent
#: What starts a process.
STARTERS = frozenset({"Popen", "Process", "fork", "run_command", "sync_playwright"})
#: A server, or a file system, that a test in this process talks with.
EXEMPT = frozenset({"tests.servers", "tests.disks", "tests.proxy"})

Place = tuple[str, str]


def module_name(path: Path) -> str:
    parts = ("tests", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Module:
    """The definitions of a module, and where the names that it imports come from."""

    def __init__(self, path: Path) -> None:
        self.name = module_name(path)
        self.definitions: dict[str, ast.AST] = {}
        self.imported: dict[str, Place] = {}
        package = self.name if path.name == "__init__.py" else self.name.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.definitions[target.id] = node.value
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (base, alias.name)


@cache
def modules() -> dict[str, Module]:
    found = (Module(path) for path in sorted(ROOT.rglob("*.py")))
    return {module.name: module for module in found}


@cache
def names_in(node: ast.AST) -> frozenset[str]:
    return frozenset(_walk(node))


def _walk(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.arg):
            yield part.arg  # perhaps a fixture
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value  # a fixture in usefixtures


@cache
def starts_process(module: str, name: str) -> bool:
    """Whether what is called *name* in *module* may start a process."""
    seen: set[Place] = set()
    waiting = [(module, name)]
    while waiting:
        place = waiting.pop()
        if place in seen or place[0] in EXEMPT:
            continue
        seen.add(place)
        where = modules().get(place[0])
        node = where.definitions.get(place[1]) if where else None
        if where is None or node is None:
            continue
        names = names_in(node)
        if names & STARTERS or "subprocess" in names:
            return True
        for used in names:
            waiting.append(where.imported.get(used, (where.name, used)))
            # Fixtures may stand in a conftest above it.
            package = where.name
            while package:
                package = package.rpartition(".")[0]
                waiting.append((f"{package}.conftest", used))
    return False
