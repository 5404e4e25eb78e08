"""The page: one file of HTML that holds all that it needs, also the library that draws its charts.

URLs and the texts of exceptions are hostile: the template escapes all values, and the policy of the
page (https://www.w3.org/TR/CSP3/) has a browser run its own scripts only, and ask no other host.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .charts import Chart

if TYPE_CHECKING:
    from jinja2 import Template

#: What a page of ours has near its beginning.
MARK = '<meta name="generator" content="scrapy_altsched report">'
_HEAD = 512  # bytes


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One number, as text; *note*: what else is to be said of it; *alarms*: it is bad news."""

    name: str
    text: str
    note: str = ""
    alarms: bool = False


@dataclass(frozen=True, slots=True)
class StopReason:
    """Requests that have stopped for one reason; *advice*: a command, or why there is none."""

    title: str
    text: str
    example: str | None
    last: str | None
    advice: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts, as long as the names of the columns; *note*: a sentence below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What is on the page.

    :ivar state: a word; *sentence*: more of it.
    :ivar refresh: after how many seconds it is loaded again; ``None``: never.
    :ivar stops: what failed and dead requests there are; *stops_note*: a sentence below.
    """

    spider: str
    target: str
    state: str
    sentence: str
    written: str
    refresh: int | None
    figures: Sequence[KeyFigure]
    charts: Sequence[Chart]
    charts_note: str
    stops: Sequence[StopReason]
    stops_note: str
    tables: Sequence[Table] = field(default=())


def render(page: Page) -> str:
    """The whole file; ConfigError: a package that this needs is not installed."""
    template, library = _load()
    return template.render(page=page, mark=MARK, nonce=secrets.token_urlsafe(16), library=library)


@cache
def _load() -> tuple[Template, str]:
    """The page's template, and the library that draws its charts: each page has both."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise ConfigError(
            f"A report needs the package {package}, which is not installed: run"
            f" `{sys.executable} -m pip install scrapy-altsched[report]`"
        ) from error
    environment = Environment(
        loader=PackageLoader("scrapy_altsched", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html"), get_plotlyjs()


def is_page(path: Path) -> bool:
    """Whether a file is a page that was made here; OSError: it cannot be read."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(_HEAD)
