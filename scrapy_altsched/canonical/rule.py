"""One rule: its keys, and what they may hold."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ..age import MUST_BE, Age
from ..errors import ConfigError
from .globs import check_glob
from .patterns import compile_patterns

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

read_toml = tomllib.loads

#: A value of a key -> what the rule has of it; ValueError: why it cannot be used.
_Check = Callable[[Any], Any]


def _only(is_one: Callable[[Any], bool], what: str) -> _Check:
    def check(value: Any) -> Any:
        if not is_one(value):
            raise ValueError(f"must be {what}")
        return value

    return check


def _some(
    kind: type,
    what: str,
    check_item: Callable[[Any], object] = bool,
    *,
    make: Callable[[Iterable[Any]], Iterable[Any]] = dict.fromkeys,
    may_be_none: bool = False,
) -> _Check:
    """One or several of a *kind*, each once, as a tuple that *make* may still change."""

    def check(value: Any) -> tuple[Any, ...]:
        items = [value] if isinstance(value, kind) else value
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise ValueError(f"must be {what}")
        items = sorted(items, key=repr) if isinstance(items, (set, frozenset)) else list(items)
        for item in items:
            if not isinstance(item, kind) or isinstance(item, bool):
                raise ValueError(f"must be {what}, and {item!r} is not")
            check_item(item)
        if not items and not may_be_none:
            raise ValueError("is an empty list, which does nothing: leave the key out")
        return tuple(make(items))

    return check


def _check_param(name: str) -> None:
    check_glob(name)
    if "=" in name or "&" in name:
        raise ValueError(f"{name!r} is not the name of a parameter: leave out '=' and '&'")
    if re.search(r"%[0-9A-Fa-f]{2}", name):
        raise ValueError(f"{name!r} is encoded: names are compared decoded, write it so")


def _check_header(name: str) -> None:
    # RFC 9110, section 5.6.2: a token.
    if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None:
        raise ValueError(f"{name!r} is not the name of a header")


def _check_preset(name: str) -> None:
    if name not in presets():
        raise ValueError(f"{name!r} is not a preset ({suggest(name, presets())})")


_NAMES = "a name or a list of names"
_patterns = _some(str, "a pattern or a list of patterns", may_be_none=True)
_params = _some(str, _NAMES, _check_param)
_kept = _some(str, _NAMES, _check_param, may_be_none=True)
_headers = _some(
    str,
    "the name of a header or a list of names",
    _check_header,
    make=lambda names: sorted({name.lower() for name in names}),
)
_presets = _some(str, "the name of a preset or a list of names", _check_preset)
_positions = _some(
    int, "a whole number or a list of them", make=lambda items: sorted(dict.fromkeys(items))
)
_flag = _only(lambda value: isinstance(value, bool), "true or false")
_fragment = _only(
    lambda value: isinstance(value, bool) or value == "hashbang", "true, false or 'hashbang'"
)
_text = _only(lambda value: isinstance(value, str) and bool(value.strip()), "a string")


def _age(value: Any) -> Age:
    try:
        return Age.parse(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"it must be {MUST_BE}") from None


def _key(default: Any, check: _Check) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True)
class Rule:
    """What applies to the URLs that some patterns match; see docs/fingerprints.rst for each key.

    A flag of ``None`` leaves the decision to other rules; so does an empty tuple, but for
    *keep_params*, where it keeps none.
    """

    include: tuple[str, ...] = _key((), _patterns)
    exclude: tuple[str, ...] = _key((), _patterns)
    order: int = _key(500, _only(lambda value: type(value) is int, "a whole number"))
    name: str = _key("", _text)
    fallback: bool = _key(False, _flag)
    preset: tuple[str, ...] = _key((), _presets)
    ignore_params: tuple[str, ...] = _key((), _params)
    keep_params: tuple[str, ...] | None = _key(None, _kept)
    sort_query: bool | None = _key(None, _flag)
    keep_fragment: bool | Literal["hashbang"] | None = _key(None, _fragment)
    ignore_path_params: tuple[str, ...] = _key(
        (), lambda given: ("*",) if given is True else _params(given)
    )
    remove_segments: tuple[int, ...] = _key((), _positions)
    ignore_path_case: bool | None = _key(None, _flag)
    ignore_trailing_slash: bool | None = _key(None, _flag)
    ignore_www: bool | None = _key(None, _flag)
    ignore_scheme: bool | None = _key(None, _flag)
    ignore_default_port: bool | None = _key(None, _flag)
    ignore_body: bool | None = _key(None, _flag)
    ignore_body_fields: tuple[str, ...] = _key((), _some(str, _NAMES, check_glob))
    count_headers: tuple[str, ...] = _key((), _headers)
    recrawl_after: Age | None = _key(None, _age)  # noqa: RUF009  (a field)

    @property
    def is_only_of_age(self) -> bool:
        """Whether all that it does is to say how old pages have to be."""
        default = Rule()
        names = _ACTIONS - {"recrawl_after"}
        others = (name for name in names if getattr(self, name) != getattr(default, name))
        return self.recrawl_after is not None and next(others, None) is None

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], place: str, effect: Mapping[str, Any] | None = None
    ) -> Rule:
        """Check a rule; *place*: where it is, for messages.

        :param effect: what the rule does, checked, if *data* does not say that; may be empty.
        :raises ConfigError: it is invalid.
        """
        values: dict[str, Any] = {}
        require_known(data, KEYS, f"{place}: unknown key")
        for key, value in data.items():
            try:
                values[key] = KEYS[key](value)
            except ValueError as error:
                raise ConfigError(f"{place}: {key} = {value!r} cannot be used: {error}.") from None
        for name in values.get("preset", ()):
            for key, names in presets()[name].items():
                values[key] = tuple(dict.fromkeys((*values.get(key, ()), *names)))
        rule = cls(**values, **(effect or {}))
        if rule.keep_params is not None and rule.ignore_params:
            raise ConfigError(
                f"{place}: keep_params and ignore_params{' (of the preset)' * bool(rule.preset)}"
                " cannot be combined: what is not kept is ignored. Use one of them, or two rules."
            )
        if rule.ignore_body and rule.ignore_body_fields:
            raise ConfigError(
                f"{place}: ignore_body and ignore_body_fields cannot be combined. Use one."
            )
        if effect is None and not _ACTIONS & values.keys():
            actions = ", ".join(sorted(_ACTIONS))
            raise ConfigError(f"{place}: the rule does nothing. Add what it should do: {actions}.")
        try:
            compile_patterns(rule.include, rule.exclude)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}.") from None
        return rule


KEYS: dict[str, _Check] = {item.name: item.metadata["check"] for item in fields(Rule)}
_ACTIONS = KEYS.keys() - {"include", "exclude", "order", "name", "fallback"}


def require_known(names: Iterable[object], known: Iterable[str], what: str) -> None:
    """Check names; *what* they are, and where, begins the message.

    :raises ConfigError: one is not *known*.
    """
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{what} {name!r} ({suggest(name, known)}).")


def suggest(name: object, known: Iterable[str]) -> str:
    """For a message: the name that may have been meant, and all that are known."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, 1, 0)[0]
    return f"did you mean {near!r}? Known: {', '.join(names)}"


@cache
def presets() -> dict[str, dict[str, tuple[str, ...]]]:
    """Key -> names, by name of the preset."""
    text = files(__package__).joinpath("presets.toml").read_text(encoding="utf-8")
    return {
        name: {key: tuple(names) for key, names in preset.items() if key != "about"}
        for name, preset in read_toml(text).items()
    }
