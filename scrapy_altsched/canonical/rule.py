"""One rule: its keys, and what they may hold."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ..errors import ConfigError
from .globs import check_glob
from .patterns import compile_patterns
from .toml import tomllib

#: What `order` is if a rule does not say.
DEFAULT_ORDER = 500


def _check_list(value: Any, kind: type, what: str) -> tuple[Any, ...]:
    """One or several of a kind, each once, as a tuple; ValueError if it is something else."""
    items = [value] if isinstance(value, kind) else value
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise ValueError(f"must be {what}")
    items = sorted(items, key=repr) if isinstance(items, (set, frozenset)) else list(items)
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise ValueError(f"must be {what}, and {item!r} is not")
    return tuple(dict.fromkeys(items))


def _check_not_empty(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if not items:
        raise ValueError("is an empty list, which does nothing: leave the key out")
    return items


def _check_patterns(value: Any) -> tuple[str, ...]:
    return _check_list(value, str, "a pattern or a list of patterns")


def _check_field_names(value: Any) -> tuple[str, ...]:
    names = _check_not_empty(_check_list(value, str, "a name or a list of names"))
    for name in names:
        check_glob(name)
    return names


def _check_names(value: Any) -> tuple[str, ...]:
    names = _check_list(value, str, "a name or a list of names")
    for name in names:
        check_glob(name)
        if "=" in name or "&" in name:
            raise ValueError(f"{name!r} is not the name of a parameter: leave out '=' and '&'")
        if re.search(r"%[0-9A-Fa-f]{2}", name):
            raise ValueError(f"{name!r} is encoded: names are compared decoded, write it so")
    return names


def _check_param_names(value: Any) -> tuple[str, ...]:
    return _check_not_empty(_check_names(value))


def _check_path_params(value: Any) -> tuple[str, ...]:
    if value is True:
        return ("*",)
    return _check_not_empty(_check_names(value))


def _check_positions(value: Any) -> tuple[int, ...]:
    return tuple(
        sorted(_check_not_empty(_check_list(value, int, "a whole number or a list of them")))
    )


def _check_headers(value: Any) -> tuple[str, ...]:
    names = _check_not_empty(_check_list(value, str, "the name of a header or a list of names"))
    for name in names:
        # RFC 9110, section 5.6.2: a token.
        if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None:
            raise ValueError(f"{name!r} is not the name of a header")
    return tuple(dict.fromkeys(sorted(name.lower() for name in names)))


def _check_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _check_fragment(value: Any) -> bool | Literal["hashbang"]:
    if isinstance(value, bool):
        return value
    if value == "hashbang":
        return "hashbang"
    raise ValueError("must be true, false or 'hashbang'")


def _check_order(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _check_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a string")
    return value


def _check_preset(value: Any) -> tuple[str, ...]:
    names = _check_not_empty(_check_list(value, str, "the name of a preset or a list of names"))
    for name in names:
        if name not in presets():
            raise ValueError(f"{name!r} is not a preset ({suggest(name, presets())})")
    return names


def _key(default: Any, check: Callable[[Any], Any], *, acts: bool = True) -> Any:
    return field(default=default, metadata={"check": check, "acts": acts})


@dataclass(frozen=True, slots=True)
class Rule:
    """What applies to the URLs that some patterns match; see docs/fingerprints.rst for each key.

    A flag of ``None`` leaves the decision to other rules; so does an empty tuple.

    :ivar ignore_params: globs; ``keep_params`` likewise, where ``()`` keeps none.
    :ivar keep_fragment: "hashbang" keeps those that begin with ``!``.
    :ivar remove_segments: positions, from 0; negative ones count from the end.
    :ivar count_headers: names, in lower case.
    """

    include: tuple[str, ...] = _key((), _check_patterns, acts=False)
    exclude: tuple[str, ...] = _key((), _check_patterns, acts=False)
    order: int = _key(DEFAULT_ORDER, _check_order, acts=False)
    name: str = _key("", _check_text, acts=False)
    fallback: bool = _key(False, _check_flag, acts=False)
    preset: tuple[str, ...] = _key((), _check_preset)
    ignore_params: tuple[str, ...] = _key((), _check_param_names)
    keep_params: tuple[str, ...] | None = _key(None, _check_names)
    sort_query: bool | None = _key(None, _check_flag)
    keep_fragment: bool | Literal["hashbang"] | None = _key(None, _check_fragment)
    ignore_path_params: tuple[str, ...] = _key((), _check_path_params)
    remove_segments: tuple[int, ...] = _key((), _check_positions)
    ignore_path_case: bool | None = _key(None, _check_flag)
    ignore_trailing_slash: bool | None = _key(None, _check_flag)
    ignore_www: bool | None = _key(None, _check_flag)
    ignore_scheme: bool | None = _key(None, _check_flag)
    ignore_default_port: bool | None = _key(None, _check_flag)
    ignore_body: bool | None = _key(None, _check_flag)
    ignore_body_fields: tuple[str, ...] = _key((), _check_field_names)
    count_headers: tuple[str, ...] = _key((), _check_headers)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], place: str, effect: Mapping[str, Any] | None = None
    ) -> Rule:
        """Check a rule.

        :param place: where it is, for messages.
        :param effect: fields with what the rule does, if *data* does not say that; they were
            checked, and may be empty.
        :raises ConfigError: it is invalid.
        """
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key not in KEYS:
                raise ConfigError(f"{place}: unknown key {key!r} ({suggest(key, KEYS)}).")
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
            raise ConfigError(
                f"{place}: the rule does nothing. Add what it should do:"
                f" {', '.join(sorted(_ACTIONS))}."
            )
        try:
            compile_patterns(rule.include, rule.exclude)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}.") from None
        return rule


KEYS: dict[str, Callable[[Any], Any]] = {item.name: item.metadata["check"] for item in fields(Rule)}
_ACTIONS = {item.name for item in fields(Rule) if item.metadata["acts"]}


def suggest(name: object, names: Iterable[str]) -> str:
    """A question for a message: whether the nearest of the names was intended."""
    near = difflib.get_close_matches(str(name), list(names), 1, 0)[0]
    return f"did you mean {near!r}?"


@cache
def presets() -> dict[str, dict[str, tuple[str, ...]]]:
    """Key -> names, by name of the preset."""
    text = files(__package__).joinpath("presets.toml").read_text(encoding="utf-8")
    return {
        name: {key: tuple(names) for key, names in preset.items() if key != "about"}
        for name, preset in tomllib.loads(text).items()
    }
