"""The engines of stores, and which of them a job has: its files tell."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Literal

from ...errors import ConfigError
from .database import Database
from .salvage import IsWhole, Salvage

#: What a new job may have: the first of the engines that can be imported, or a certain one.
Choice = Literal["auto", "rocksdb", "sqlite"]

#: Name -> what messages call it, and the package that it comes with.
ENGINES = {"rocksdb": ("RocksDB", "rocksdict"), "sqlite": ("SQLite", "sqlite3")}


def choose(choice: Choice) -> str:
    """The engine of a new job; ConfigError: it is not installed."""
    if choice != "auto":
        _load(choice, _advise_setting(choice))
        return choice
    try:
        _load("rocksdb", "")
    except ConfigError:
        _load("sqlite", _advise_setting("rocksdb"))
        return "sqlite"
    return "rocksdb"


def engine_of(store: Path) -> str:
    """The engine of the store in a directory."""
    # A log may be all that is left of a damaged one.
    return "sqlite" if any(store.glob("store.sqlite*")) else "rocksdb"


def require(store: Path) -> str:
    """The engine of the store in a directory; ConfigError: it is not installed."""
    engine = engine_of(store)
    _load(engine, _advise_job(store.parent, engine))
    return engine


def database_at(path: Path, engine: str | None = None) -> Database:
    """The database in directory *path*; ConfigError: its engine is not installed.

    :param engine: of one that is to be made.
    """
    name = engine or engine_of(path)
    return _load(name, _advise_job(path.parent, name))(path)


def salvage(store: Path, directory: Path, is_whole: IsWhole) -> Salvage:
    """What can be read of a damaged store: see :class:`Salvage`; ConfigError as well."""
    found: type[Salvage] = import_module(f".{require(store)}.salvage", __package__).SALVAGE
    return found(store, directory, is_whole)


def _load(name: str, advice: str) -> Callable[[Path], Database]:
    title, package = ENGINES[name]
    try:
        found: Callable[[Path], Database] = import_module(f".{name}.database", __package__).ENGINE
    except ImportError as error:
        raise ConfigError(
            f"A store of {title} needs the package {package!r}, which cannot be used on this"
            f" Python, {platform.python_version()} ({error}). {advice}"
        ) from None
    return found


def _advise_setting(name: str) -> str:
    if name == "rocksdb":
        other = "set ALTSCHED_STORE = 'auto' or 'sqlite'"
        return f"{_advise_package()}; or {other}, and new jobs have a store of SQLite."
    return (
        "Use a Python that was built with it; or crawl without a JOBDIR: in memory, or with"
        " ALTSCHED_SHARED on a Redis server."
    )


def _advise_job(jobdir: Path, name: str) -> str:
    if name == "rocksdb":
        command = f"scrapy altsched convert {quote(str(jobdir))} --store sqlite"
        return (
            f"{_advise_package()}; or run `{command}` with a Python that has it, and the job goes"
            " on without; or set another JOBDIR."
        )
    return "Use a Python that was built with it, or set another JOBDIR."


def _advise_package() -> str:
    return f"Run `{sys.executable} -m pip install rocksdict`, if there is a release for this Python"
