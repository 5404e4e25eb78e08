"""What may import what, read from the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scrapy.utils.misc import load_object

import scrapy_altsched
import scrapy_altsched.frontier

ROOT = Path(scrapy_altsched.__file__).parent
PACKAGE = ROOT.name


def module_name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def statements(tree: ast.AST, *, also_inside: bool) -> Iterator[ast.AST]:
    """All nodes that run; *also_inside*: the bodies of functions as well."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            continue
        yield node
        if also_inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(node, also_inside=also_inside)


def imports(name: str, *, also_inside: bool) -> set[str]:
    """Full names of the modules that module *name* imports, ours and others'."""
    package = name if SOURCES[name].name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in statements(TREES[name], also_inside=also_inside):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            submodules = {f"{base}.{alias.name}" for alias in node.names} & SOURCES.keys()
            found.update(submodules or {base})
    return found


def reachable(name: str) -> set[str]:
    """All that is imported when module *name* and what it imports of ours is used."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for imported in imports(waiting.pop(), also_inside=True) - found:
            found.add(imported)
            if imported in SOURCES:
                waiting.append(imported)
    return found


def top_level(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


PURE = [name for name in SOURCES if name.startswith(f"{PACKAGE}.frontier")]
PURE += [name for name in SOURCES if name.startswith(f"{PACKAGE}.canonical")]


def test_the_sources_are_found() -> None:
    local = f"{PACKAGE}.frontier.local.frontier"
    assert {local, f"{PACKAGE}.frontier.store.journal"} <= set(PURE)
    assert imports(local, also_inside=False) >= {
        f"{PACKAGE}.errors",
        f"{PACKAGE}.frontier.store.journal",
    }
    assert "scrapy" in top_level(reachable(f"{PACKAGE}.scheduler"))


@pytest.mark.parametrize("name", PURE)
def test_the_frontier_knows_neither_scrapy_nor_twisted(name: str) -> None:
    assert top_level(reachable(name)) & {"scrapy", "twisted", "scrapy_redis"} == set()


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: imports(name, also_inside=False) & SOURCES.keys() for name in SOURCES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for imported in graph[name]:
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert done == set(SOURCES)


#: The rooms, from top to bottom: a module imports from its own layer and from those below it.
#: Modules that are in none of them are the ground, below all.
LAYERS = (
    ("command", "feeding"),
    ("scheduler", "dupefilter", "addon", "fingerprint"),
    ("crawl",),
    ("stock", "feeds", "resume", "plugins", "report"),
    ("requests", "maintenance", "steering"),
    ("settings",),
    ("frontier",),
    ("canonical", "redis_client"),
    ("engine",),
)
#: The same inside of the frontier, as its docstring has it.
FRONTIER_LAYERS = tuple(
    tuple(re.findall(r":mod:`\.(\w+)`", line))
    for line in re.findall(r"^\d\. (.+)$", scrapy_altsched.frontier.__doc__ or "", re.MULTILINE)
)


def room_of(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.").partition(".")[0]


def depth(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    """How far down *name* is: the number of its layer, or for the ground, that of all layers."""
    return next((at for at, layer in enumerate(layers) if name in layer), len(layers))


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(name) for name, path in SOURCES.items() if path.parent != ROOT}
    named = {name for layer in LAYERS for name in layer}
    assert rooms <= named
    assert {room_of(name) for name in SOURCES} >= named
    inside = {name for layer in FRONTIER_LAYERS for name in layer}
    assert {path.stem for path in (ROOT / "frontier").iterdir()} >= inside
    assert {"local", "shared", "queue", "store"} <= inside


@pytest.mark.parametrize("name", [name for name in SOURCES if name != PACKAGE])
def test_imports_run_downward(name: str) -> None:
    for imported in imports(name, also_inside=True) & SOURCES.keys() - {PACKAGE}:
        message = f"{name} imports {imported}, above it"
        assert depth(room_of(imported), LAYERS) >= depth(room_of(name), LAYERS), message
        frontier = f"{PACKAGE}.frontier."
        if name.startswith(frontier) and imported.startswith(frontier):
            inner, outer = imported.removeprefix(frontier), name.removeprefix(frontier)
            below = depth(room_of(inner), FRONTIER_LAYERS)
            assert below >= depth(room_of(outer), FRONTIER_LAYERS), message


def test_no_two_rooms_import_from_each_other() -> None:
    arrows = {
        (room_of(name), room_of(imported))
        for name in SOURCES.keys() - {PACKAGE}
        for imported in imports(name, also_inside=True) & SOURCES.keys() - {PACKAGE}
    }
    assert [(a, b) for a, b in arrows if a < b and (b, a) in arrows] == []


@pytest.mark.smoke
def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"scrapy", "twisted", "rocksdict", "redis", "sortedcontainers"}
    script = f"import sys, {PACKAGE}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert PACKAGE in loaded
    assert loaded & heavy == set()


@pytest.mark.smoke
@pytest.mark.parametrize(
    "path",
    [
        "scrapy_altsched.RequestFingerprinter",
        "scrapy_altsched.requests.fingerprint.RequestFingerprinter",
        "scrapy_altsched.fingerprint.RequestFingerprinter",
    ],
)
def test_naming_the_fingerprinter_loads_neither_a_store_nor_a_server(path: str) -> None:
    unneeded = {"rocksdict", "redis", "msgpack", "sortedcontainers"}
    rooms = {
        f"{PACKAGE}.{room}" for room in ("frontier", "maintenance", "redis_client", "settings")
    }
    script = (
        "import sys; from scrapy.utils.misc import load_object;"
        f" load_object({path!r}).from_crawler; print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert f"{PACKAGE}.requests.fingerprint" in loaded
    assert loaded & (unneeded | rooms) == set()


@pytest.mark.parametrize("name", scrapy_altsched.__all__)
def test_each_public_name_is_there_when_it_is_asked_for(name: str) -> None:
    assert getattr(scrapy_altsched, name).__name__ == name


#: What the documentation of earlier versions has named, for settings, spiders and extensions.
PATHS = (
    "scrapy_altsched.addon.Addon",
    "scrapy_altsched.dupefilter.DupeFilter",
    "scrapy_altsched.engine.current_scheduler",
    "scrapy_altsched.errors.AltschedError",
    "scrapy_altsched.feeds.FileStorage",
    "scrapy_altsched.fingerprint.RequestFingerprinter",
    "scrapy_altsched.plugins.deltafetch.DeltaFetch",
    "scrapy_altsched.plugins.files.FilesPipeline",
    "scrapy_altsched.plugins.files.ImagesPipeline",
    "scrapy_altsched.plugins.httpcache.FilesystemCacheStorage",
    "scrapy_altsched.scheduler.Scheduler",
    "scrapy_altsched.signals.frontier_committed",
    "scrapy_altsched.signals.frontier_committing",
)


@pytest.mark.parametrize("path", PATHS)
def test_what_a_project_may_name_stays_where_it_is(path: str) -> None:
    assert load_object(path) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        scrapy_altsched.Nothing  # noqa: B018


# Private parts


def defined_names(tree: ast.AST) -> set[str]:
    """Names that our own code gives to attributes, methods, functions and variables."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.endswith("__")


def foreign_private_parts(tree: ast.AST) -> list[str]:
    """Accesses to ``x._name``, or ``getattr(x, "_name")``, for names that are not this module's."""
    own = defined_names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if is_private(node.attr) and not of_self and node.attr not in own:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("name", [name for name in SOURCES if name != f"{PACKAGE}.engine.engine"])
def test_private_parts_of_others_are_touched_in_one_module_only(name: str) -> None:
    assert foreign_private_parts(TREES[name]) == []


def test_private_parts_are_recognized() -> None:
    assert foreign_private_parts(TREES[f"{PACKAGE}.engine.engine"])
    source = "self._own = 1; x._own; engine._slot.inprogress; x.__class__; getattr(x, '_start')"
    assert sorted(foreign_private_parts(ast.parse(source))) == [
        "engine._slot",
        "getattr(x, '_start')",
    ]
