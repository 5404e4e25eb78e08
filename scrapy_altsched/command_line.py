"""The command that started this process, as a user can paste it to resume a crawl."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.settings import SETTINGS_PRIORITIES

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: Replaces what must not be in a log.
_MASK = "***"
#: Options of the interpreter that take a value; of these, those that name what it runs.
_option_with_value, _TARGETS = re.compile("[cmWX]").search, "cm"
_SCRAPY_MODULES = ("scrapy", "scrapy.cmdline")

#: Names of what must not be in a log.  "key" only as a word of its own, not "keyword" or "monkey",
#: and not where a setting names a key on a Redis server, as ALTSCHED_SHARED_KEY does.
_is_secret = re.compile(
    r"passw|passphrase|passcode|pwd|secret|token|credential|apikey"
    r"|(?<![a-z])(pass|auth|sig|(?<!shared_)(?<!urls_)(?<!queue_)(?<!filter_)key)(?![a-z])|(access|auth|private)[_-]?key"
    r"|authoriz|authent|(http|basic|o)auth|bearer|jwt|session|signature"
    r"|cookie(?!s_(enabled|debug))",  # which are settings
    re.IGNORECASE,
).search
#: ``-a name=value``, ``-aname=value``, ``--name=value``, ``name=value``.
_assignment = re.compile(r"(?P<name>(?:--?set=|-[as](?=\w))?[^\s=/?:]+)=(?P<value>.*)", re.DOTALL)
#: A password may hold a slash that should have been quoted; a port of a site looks like that, too.
_user_info = re.compile(
    r"(?<=://)([^/?#\s\"']*|(?<!http://)(?<!https://)[^/?#\s\"'@:]*:[^\s\"']*"
    r"|[^/?#\s\"'@:]*:(?!\d+[/?#])[^\s\"']*)(?=@)"
)
#: In JSON, or in a dict of Python: ``"name": "value"``.
_pair = re.compile(
    r"(?P<before>(?P<quote>[\"'])(?P<name>[\w.-]+)(?P=quote)\s*:\s*(?P<end>[\"']))"
    r"(?:\\.|(?!(?P=end)).)*(?P<after>(?P=end))",
    re.DOTALL,
)
#: The same of a value without quotes, as of a number.
_bare_pair = re.compile(
    r"(?P<before>(?P<quote>[\"'])(?P<name>[\w.-]+)(?P=quote)\s*:\s*)[^\s,\"'\[\]{}]+(?P<after>)"
)
#: As in a header.
_bearer = re.compile(r"(?<=\bbearer )\s*[\w.~+/=-]{8,}", re.IGNORECASE)
_query_value = re.compile(r"(?<=[?&])(?P<before>(?P<name>[^=&#\s]+)=)[^&#\s\"']*(?P<after>)")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line.

    :ivar scrapy_command: the command of Scrapy's that it runs, as "crawl", if any.
    :ivar is_scrapyd: whether Scrapyd has started it, with what it needs in its environment.
    """

    words: tuple[str, ...]
    scrapy_command: str | None = None
    is_scrapyd: bool = False

    @classmethod
    def current(cls) -> CommandLine | None:
        """That of this process; ``None``: it could not be run again."""
        # Scrapy takes its command's name out of sys.argv.
        return None if hasattr(sys, "ps1") else cls.parse(sys.orig_argv)

    @classmethod
    def parse(cls, argv: Sequence[str]) -> CommandLine | None:
        kind, target, start = _find_target(argv)
        words, arguments = tuple(argv), argv[start:]
        if kind not in ("m", "script") or not argv[0]:
            return None
        name = next((word for word in arguments if not word.startswith("-")), None)
        if kind == "m":
            is_scrapyd = target.partition(".")[0] == "scrapyd"
            return cls(words, name if target in _SCRAPY_MODULES else None, is_scrapyd)
        if Path(target).name == "scrapy":
            return cls((_shortest(target), *arguments), name)
        return cls(words)

    def __str__(self) -> str:
        """The command, quoted for a shell, without secrets."""
        text = shlex.join(_mask(self.words))
        # As every stream can write it: arguments may hold any bytes.
        return text.encode("utf-8", "backslashreplace").decode()

    @property
    def has_secrets(self) -> bool:
        return tuple(_mask(self.words)) != self.words


def resume_command(jobdir: str | None) -> str:
    """A sentence that tells how to resume the job in *jobdir*, or without one, a shared crawl."""
    command = CommandLine.current()
    if command is None and jobdir is None:
        return "Resume it by starting one of its workers again."
    if command is None:
        return f"Resume it by running the same crawl again, with JOBDIR = {jobdir!r}."
    if command.is_scrapyd:
        how = "Resume it by scheduling the same spider again with Scrapyd, with the same arguments"
        return f"{how}." if jobdir is None else f"{how} and setting=JOBDIR={jobdir}"
    how = "with" if command.scrapy_command is not None else "by running the same command again"
    mask = f"  (replace {_MASK} with the secret, which is not logged)"
    return f"Resume it {how}: {command}{mask if command.has_secrets else ''}"


def given_options(
    settings: BaseSettings, names: Sequence[str], least: str = "cmdline"
) -> Iterator[str]:
    """The options that give another command the settings that this one got by its own options.

    :param least: the priority from which on settings are given, by its name.
    """
    priority = SETTINGS_PRIORITIES[least]
    for name in names:
        if (settings.getpriority(name) or 0) >= priority:
            yield f"-s {shlex.quote(_mask_word(f'{name}={settings[name]}'))}"


def _find_target(argv: Sequence[str]) -> tuple[str, str, int]:
    """What the interpreter runs: "c", "m", "script" or ""; its name; where its arguments begin.

    https://docs.python.org/3/using/cmdline.html
    """
    words = iter(enumerate(argv[1:], 2))
    for start, word in words:
        if not word.startswith("-"):
            return "script", word, start
        if word == "-":
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, None)
        elif option := _option_with_value(word):
            value = word[option.end() :]
            if not value:
                start, value = next(words, (start, ""))
            if option[0] in _TARGETS:
                return option[0], value, start
    return "", "", 0


def _shortest(script: str) -> str:
    name = Path(script).name
    found = shutil.which(name)
    with suppress(OSError):
        if found is not None and Path(found).samefile(script):
            return name
    return script


def _mask(words: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        yield _MASK if is_value and not word.startswith("-") else _mask_word(word)
        is_value = word.startswith("--") and "=" not in word and bool(_is_secret(word))


def _mask_word(word: str) -> str:
    assignment = _assignment.fullmatch(word)
    if assignment is not None and _is_secret(assignment["name"]):
        return f"{assignment['name']}={_MASK}"
    word = _bearer.sub(_MASK, _user_info.sub(_MASK, word))
    word = _bare_pair.sub(_mask_value, _pair.sub(_mask_value, word))
    return _query_value.sub(_mask_value, word)


def _mask_value(found: re.Match[str]) -> str:
    return f"{found['before']}{_MASK}{found['after']}" if _is_secret(found["name"]) else found[0]
