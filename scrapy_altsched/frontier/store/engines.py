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
    if choice == "auto":
        try:
            _load("rocksdb", "")
        except ConfigError:
            _load("sqlite", "A JOBDIR")
            return "sqlite"
        return "rocksdb"
    _load(choice, f"ALTSCHED_STORE = {choice!r}")
    return choice


def engine_of(store: Path) -> str:
    """The engine of the store in a directory."""
    # A log may be all that is left of a damaged one.
    return "sqlite" if any(store.glob("store.sqlite*")) else "rocksdb"


def require(store: Path) -> str:
    """The engine of the store in a directory; ConfigError: it is not installed."""
    database_at(store)
    return engine_of(store)


def database_at(path: Path, engine: str | None = None) -> Database:
    """The database in directory *path*; ConfigError: its engine is not installed.

    :param engine: of one that is to be made.
    """
    if engine is not None:
        return _load(engine, f"A store of {ENGINES[engine][0]}")(path)
    name = engine_of(path)
    return _load(name, f"The store {path}, which is one of {ENGINES[name][0]},", path.parent)(path)


def salvage(store: Path, directory: Path, is_whole: IsWhole) -> Salvage:
    """What can be read of a damaged store: see :class:`Salvage`; ConfigError as well."""
    found: type[Salvage] = import_module(f".{require(store)}.salvage", __package__).SALVAGE
    return found(store, directory, is_whole)


def _load(name: str, user: str, job: Path | None = None) -> Callable[[Path], Database]:
    """The class of databases of an engine.

    :param user: what needs it, in messages; *job*: the directory of the job that has it.
    """
    package = ENGINES[name][1]
    try:
        found: Callable[[Path], Database] = import_module(f".{name}.database", __package__).ENGINE
    except ImportError as error:
        raise ConfigError(
            f"{user} needs the package {package!r}, which cannot be used on this Python,"
            f" {platform.python_version()} ({error}). {_advise(name, job)}"
        ) from None
    return found


def _advise(name: str, job: Path | None) -> str:
    if name == "sqlite":
        return (
            "Use a Python that was built with a newer one; or crawl without a JOBDIR: in memory,"
            " or with ALTSCHED_SHARED on a Redis server."
        )
    install = f"Run `{sys.executable} -m pip install rocksdict`, if this Python has a release of it"
    if job is None:
        return f"{install}; or set ALTSCHED_STORE = 'sqlite', which needs nothing."
    command = f"scrapy altsched convert {quote(str(job))} --store sqlite"
    return (
        f"{install}; or run `{command}` with a Python that has it, after which the job needs it no"
        " more; or set another JOBDIR."
    )
