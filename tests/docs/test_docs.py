"""The documentation says what the code says."""

from __future__ import annotations

import ast
import builtins
import configparser
import dataclasses
import importlib
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

import benchmarks.__main__ as benchmarks
import scrapy_altsched
from scrapy_altsched import DupeFilter, Scheduler, errors, signals
from scrapy_altsched.command import SUBCOMMANDS
from scrapy_altsched.feeds import FileStorage
from scrapy_altsched.frontier.store.jobdir import FORMAT
from scrapy_altsched.settings import PREFIX, Config

from .test_imports import LAYERS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "scrapy_altsched"
README = ROOT / "README.rst"
CONTRIBUTING = ROOT / "CONTRIBUTING.rst"
LISTER = ROOT / "docs" / "list_modules.py"
PAGES = {path.name: path for path in [README, CONTRIBUTING, *sorted((ROOT / "docs").glob("*.rst"))]}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
ALL_TEXT = "\n".join(TEXTS.values())
SOURCES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def read(path: Path) -> tuple[nodes.document, str]:
    """A page, and what docutils complains of."""
    complaints = io.StringIO()
    settings = {
        "report_level": 2,  # warning
        "halt_level": 5,  # never
        "warning_stream": complaints,
        "syntax_highlight": "none",
        "_disable_config": True,
    }
    text = path.read_text(encoding="utf-8")
    document = publish_doctree(text, source_path=str(path), settings_overrides=settings)
    return document, complaints.getvalue()


def page(name: str) -> nodes.document:
    return read(PAGES[name])[0]


def section(name: str, title: str) -> nodes.section:
    """A section of a page, by its title."""
    for found in page(name).findall(nodes.section):
        if found.next_node(nodes.title).astext() == title:
            return found
    pytest.fail(f"{name} has no section {title!r}")


def rows(node: nodes.Element) -> list[list[nodes.entry]]:
    """The rows of all tables below *node*, without their headings."""
    return [
        [cell for cell in row.children if isinstance(cell, nodes.entry)]
        for body in node.findall(nodes.tbody)
        for row in body.findall(nodes.row)
    ]


def literals(node: nodes.Element) -> list[str]:
    return [literal.astext() for literal in node.findall(nodes.literal)]


def first_column(name: str, title: str) -> list[str]:
    """The literals in the first cells of the tables in a section."""
    return [text for row in rows(section(name, title)) for text in literals(row[0])]


def code_blocks(name: str, language: str) -> list[str]:
    return [
        block.astext()
        for block in page(name).findall(nodes.literal_block)
        if language in block["classes"]
    ]


# Form


@pytest.mark.parametrize("path", [*PAGES.values(), ROOT / "CHANGES.rst"], ids=attrgetter("name"))
def test_the_page_is_valid_without_sphinx(path: Path) -> None:
    assert read(path)[1] == ""


@pytest.mark.parametrize("name", PAGES)
def test_the_files_that_a_page_links_to_exist(name: str) -> None:
    uris = [str(link["refuri"]) for link in page(name).findall(nodes.reference) if "refuri" in link]
    for uri in uris:
        assert "://" in uri or (PAGES[name].parent / uri).is_file(), uri


def test_the_changes_of_this_version_are_listed() -> None:
    document, _ = read(ROOT / "CHANGES.rst")
    titles = [title.astext() for title in document.findall(nodes.title)]
    version = scrapy_altsched.__version__
    assert any(title == "Unreleased" or title.split()[0] == version for title in titles)


# Settings


FIELDS = {
    PREFIX + field.name.upper(): field
    for field in dataclasses.fields(Config)
    if "check" in field.metadata
}


def test_every_setting_is_in_the_reference_with_its_default_and_unit() -> None:
    reference = section("settings.rst", "Settings of this package")
    table = {literals(row[0])[0]: row for row in rows(reference)}
    assert table.keys() == FIELDS.keys()
    for name, field in FIELDS.items():
        assert table[name][1].astext() == repr(field.default), name
        # As in "a whole number of seconds, 1 or more" and "True or False".
        unit = field.metadata["must_be"].partition(" of ")[2] or "flag"
        assert table[name][2].astext() == unit, name


@pytest.mark.parametrize("name", [*PAGES, "CHANGES.rst"])
def test_every_setting_that_is_named_exists(name: str) -> None:
    text = TEXTS.get(name) or (ROOT / name).read_text(encoding="utf-8")
    assert set(re.findall(rf"{PREFIX}[A-Z]\w*", text)) <= FIELDS.keys()


def test_every_setting_of_scrapys_that_is_read_is_in_the_reference() -> None:
    documented = set(first_column("settings.rst", "Settings of Scrapy that are honoured"))
    # Not every Scrapy has a default for each.
    known = set(Settings()) | documented
    read_by_us = {
        text for tree in SOURCES.values() for text in _constants(tree) if text in known
    } | {
        template.replace("{medium}", medium)
        for tree in SOURCES.values()
        for template in _templates(tree)
        if "{medium}" in template
        for medium in ("DISK", "MEMORY")
        if template.replace("{medium}", medium) in known
    }
    read_by_scrapy_for_us = {
        "ADDONS",
        "REQUEST_FINGERPRINTER_CLASS",
        "DOWNLOAD_DELAY_JITTER",
        "DOWNLOAD_SLOTS",
    }
    set_for_our_own_command = {"LOG_LEVEL"}
    assert documented == read_by_us - set_for_our_own_command | read_by_scrapy_for_us


def _constants(tree: ast.AST) -> Iterator[str]:
    """All texts of a module that are not parts of f-strings."""
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.value


def _templates(tree: ast.AST) -> Iterator[str]:
    """All f-strings of a module, with the names of their variables in braces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield ast.unparse(node)[2:-1]


# Stats and signals


STAT = re.compile(r"(?:altsched|scheduler|dupefilter)/[a-z_/]+")


def stat_keys(node: ast.AST, values: dict[str, list[str]]) -> set[str]:
    """The texts that an expression can be.

    :param values: loop variable -> the texts that it takes.
    """
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.IfExp):
        return stat_keys(node.body, values) | stat_keys(node.orelse, values)
    if isinstance(node, ast.FormattedValue):
        return stat_keys(node.value, values)
    if isinstance(node, ast.Name):
        return set(values.get(node.id, [f"{{{node.id}}}"]))
    if isinstance(node, ast.JoinedStr):
        keys = {""}
        for part in node.values:
            keys = {key + more for key in keys for more in stat_keys(part, values)}
        return keys
    raise AssertionError(f"This test cannot tell which stat {ast.unparse(node)!r} is.")


@cache
def stats_in_code() -> set[str]:
    """Every key that the package counts or sets."""
    found: set[str] = set()
    for tree in SOURCES.values():
        loops: dict[str, list[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
                items = [item.value for item in node.iter.elts if isinstance(item, ast.Constant)]
                loops.setdefault(ast.unparse(node.target), []).extend(map(str, items))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"inc_value", "set_value", "max_value", "min_value"}
            ):
                found |= stat_keys(node.args[0], loops)
        # Also those that get there in another way.
        found |= {text for text in _constants(tree) if STAT.fullmatch(text)}
    return found


def test_every_stat_is_in_the_reference_and_the_other_way_round() -> None:
    documented = first_column("settings.rst", "Stats")
    assert sorted(documented) == sorted(stats_in_code())


@pytest.mark.parametrize("name", PAGES)
def test_every_stat_that_is_named_exists(name: str) -> None:
    named = {text for text in literals(page(name)) if STAT.fullmatch(text)}
    assert named <= stats_in_code()


def test_every_signal_is_in_the_reference_and_the_other_way_round() -> None:
    defined = {
        name
        for name, value in vars(signals).items()
        if type(value) is object  # as Scrapy's are
    }
    terms = section("settings.rst", "Signals").findall(nodes.term)
    assert sorted(term.astext() for term in terms) == sorted(defined)
    assert set(re.findall(r"``(frontier_\w+)``", ALL_TEXT)) == defined


def test_what_feeders_call_exists() -> None:
    section("settings.rst", "Scheduler.checkpoint()")
    assert callable(Scheduler.checkpoint)


# Errors, modules and tests


def test_every_error_is_named_and_the_other_way_round() -> None:
    named = set(re.findall(r"``(?:scrapy_altsched\.)?(\w+Error)``", ALL_TEXT))
    # All are there: tests/crawl/test_errors.py.
    ours = {name for name, item in vars(errors).items() if isinstance(item, type)}
    assert {name for name in named if not hasattr(builtins, name)} == ours


@pytest.mark.smoke
def test_the_tables_of_modules_are_those_of_the_docstrings() -> None:
    assert run_lister("--check") == ""


@pytest.mark.smoke
def test_a_module_without_a_table_or_a_sentence_is_noticed(tmp_path: Path) -> None:
    for folder in ("docs", "scrapy_altsched/room"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(LISTER, tmp_path / "docs")
    page, module = tmp_path / "docs" / "architecture.rst", tmp_path / "scrapy_altsched/room/new.py"
    page.write_text(".. modules: room/\n.. end of modules\n", encoding="utf-8")
    module.write_text("", encoding="utf-8")
    assert "room/new.py has no docstring" in run_lister(project=tmp_path)
    module.write_text('"""START HERE.  Of :mod:`.x`\nall.  More."""', encoding="utf-8")
    assert "is not current: run python" in run_lister("--check", project=tmp_path)
    assert run_lister(project=tmp_path) == run_lister("--check", project=tmp_path) == ""
    assert "    * - ``room/new.py``\n      - Of ``x`` all.\n" in page.read_text(encoding="utf-8")
    (module.parent.parent / "other.py").write_text('"""A sentence."""', encoding="utf-8")
    assert "no table for other.py" in run_lister(project=tmp_path)


def run_lister(*arguments: str, project: Path = ROOT) -> str:
    command = [sys.executable, str(project / "docs" / LISTER.name), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_the_layers_in_the_architecture_are_those_that_imports_keep() -> None:
    *layers, _ = (tuple(literals(row[1])) for row in rows(section("architecture.rst", "Layers")))
    named = [tuple(name for name in layer if name != "__init__.py") for layer in layers]
    assert named == list(LAYERS)


@pytest.mark.parametrize("name", PAGES)
def test_every_file_of_the_project_that_is_named_exists(name: str) -> None:
    for path in re.findall(r"``((?:[\w-]+/)*\w+\.(?:py|rst|cfg|toml))(?:::\w+)?``", TEXTS[name]):
        # A module of the package, a test, or a path from the project's folder.
        places = [PACKAGE / path, ROOT / "tests" / path, ROOT / path]
        is_users = path in {"settings.py", "rules.toml"}
        assert is_users or any(place.is_file() for place in places), path


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"(tests/(?:\w+/)*test_\w+\.py)::(\w+)", ALL_TEXT)
    assert named
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(ROOT / path)]
    assert missing == []


def test_each_fault_has_one_row_and_each_row_a_test_that_exists() -> None:
    faults = []
    for table in page("guarantees.rst").findall(nodes.table):
        heading = table.next_node(nodes.thead).astext().split("\n\n")
        assert heading[0] in {"What happens", "Feed", "Error"}
        assert heading[-1] == "Shown by"
        for first, *_, last in rows(table):
            faults.append(first.astext())
            assert literals(last), f"No test shows: {first.astext()}"
            for name in literals(last):
                path, _, function = name.partition("::")
                assert function in functions_of(ROOT / path), name
    assert len(faults) > 60
    assert sorted(faults) == sorted(set(faults))


@cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


# The README


SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
REQUIREMENTS = dict(
    re.split(r"\s*>=\s*", line) for line in SETUP["options"]["install_requires"].split("\n") if line
)


def test_every_dependency_is_accounted_for() -> None:
    items = section("dependencies.rst", "Python packages").findall(nodes.list_item)
    named = [text for item in items for text in literals(item)]
    assert set(REQUIREMENTS) <= set(named)


@pytest.mark.parametrize(
    ("name", "title"), [("README.rst", "Requirements"), ("dependencies.rst", "Platform")]
)
def test_the_supported_versions_are_those_of_the_package(name: str, title: str) -> None:
    text = section(name, title).astext()
    assert f"Scrapy {REQUIREMENTS['scrapy']} or newer" in text
    python = SETUP["options"]["python_requires"].removeprefix(">=")
    assert f"Python {python} or newer" in text


SETTINGS_EXAMPLES = code_blocks("README.rst", "python")


@pytest.mark.parametrize("code", SETTINGS_EXAMPLES)
def test_each_settings_example_turns_everything_on(code: str) -> None:
    given: dict[str, Any] = {}
    exec(compile(code, "settings.py", "exec"), given)
    del given["__builtins__"]
    assert given
    assert all(name.isupper() for name in given)
    settings = get_crawler(Spider, given).settings
    assert load_object(settings["SCHEDULER"]) is Scheduler
    assert load_object(settings["DUPEFILTER_CLASS"]) is DupeFilter
    storages = settings.getwithbase("FEED_STORAGES")
    assert load_object(storages[""]) is FileStorage
    assert load_object(storages["file"]) is FileStorage
    # What is not local is Scrapy's own still.
    assert storages["stdout"] == Settings()["FEED_STORAGES_BASE"]["stdout"]


def test_the_format_of_a_job_is_the_present_one() -> None:
    assert f"The present format is {FORMAT}." in TEXTS["guarantees.rst"]


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(TEXTS["README.rst"].splitlines()) <= 150


def test_the_readme_has_both_settings_examples() -> None:
    assert len(SETTINGS_EXAMPLES) == 2


def commands() -> list[list[str]]:
    blocks = [block for name in PAGES for block in code_blocks(name, "bash")]
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line]


def test_every_command_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    seen = set()
    for program, verb, *arguments in commands():
        seen.add((program, verb))
        if program == "make":
            assert verb in targets
            assert not arguments
        elif program == "pip":
            (package,) = arguments
            name, _, extra = package.rstrip("]").partition("[")
            assert (verb, name) == ("install", SETUP["metadata"]["name"])
            assert not extra or extra in SETUP["options.extras_require"]
        elif program == "scrapy":
            if verb == "altsched":
                assert arguments[0] in SUBCOMMANDS
            else:
                assert importlib.util.find_spec(f"scrapy.commands.{verb}") is not None
            for name in re.findall(r"-s (\w+)=", shlex.join(arguments)):
                assert name in Settings() or name in FIELDS
        elif program == "python":
            assert (verb, arguments[0]) == ("-m", "benchmarks")
            if arguments[1:] != ["--help"]:
                benchmarks.parser().parse_args(arguments[1:])
        else:
            pytest.fail(f"This test does not know the command {program}.")
    assert {("make", "demo"), ("make", "test"), ("pip", "install"), ("scrapy", "crawl")} <= seen


# The other pages


@pytest.mark.parametrize("name", [name for name in PAGES if name != "README.rst"])
def test_every_example_is_python_that_runs(name: str) -> None:
    for code in code_blocks(name, "python"):
        exec(compile(code, name, "exec"), {})


def test_the_example_of_a_pipeline_writes_before_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = (code for code in code_blocks("settings.rst", "python") if "Pipeline" in code)
    names: dict[str, Any] = {}
    exec(compile(code, "settings.rst", "exec"), names)
    crawler = get_crawler(Spider)
    pipeline = names["BulkPipeline"].from_crawler(crawler)
    pipeline.process_item({"page": 1})
    for _ in range(2):
        crawler.signals.send_catch_log(signals.frontier_committing, spider=None)
    assert Path("rows.txt").read_text() == "{'page': 1}\n"
