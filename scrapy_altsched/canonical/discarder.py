"""Rules of duplicate-url-discarder, translated to ours.

As of its version 0.3.0 (https://github.com/zytedata/duplicate-url-discarder), but that names of
parameters are compared decoded: ``%75tm_source`` is ``utm_source``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote_plus

from ..errors import ConfigError
from .globs import escape_glob
from .rule import Rule, require_known

_KEYS = ("urlPattern", "processor", "args", "order")


def read_foreign(data: Mapping[str, Any], place: str) -> Rule:
    """Translate one of their rules; *place*: where it is, for messages.

    :raises ConfigError: it has an unknown processor, argument or key.
    """
    require_known(data, _KEYS, f"{place}: unknown key")
    for key in ("urlPattern", "processor", "order"):
        if key not in data:
            raise ConfigError(
                f"{place}: the rule has no {key!r}, which duplicate-url-discarder needs."
            )
    pattern, processor = data["urlPattern"], data["processor"]
    if not isinstance(pattern, Mapping):
        raise ConfigError(f"{place}: urlPattern = {pattern!r} must hold include and exclude.")
    require_known(pattern, ("include", "exclude"), f"{place}: unknown key of urlPattern")
    require_known([processor], PROCESSORS, f"{place}: unknown processor")
    arguments = data.get("args") or ()
    try:
        if not isinstance(arguments, (list, tuple)):
            raise ValueError("must be a list")
        effect = PROCESSORS[processor](tuple(arguments))
    except ValueError as error:
        raise ConfigError(f"{place}: args = {arguments!r} cannot be used: {error}.") from None
    include = [item for item in pattern.get("include") or () if item]
    exclude = list(pattern.get("exclude") or ())
    given = {"include": include, "exclude": exclude, "order": data["order"]}
    # Those without a pattern apply only if none with a pattern matches.
    return Rule.from_dict({**given, "fallback": not include}, place, effect)


def _parameters(arguments: tuple[Any, ...]) -> tuple[str, ...]:
    for name in arguments:
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not the name of a parameter")
    # One of their published rules has an empty name: that of the field in ``?=1``.
    return tuple(escape_glob(unquote_plus(name)) for name in arguments)


def _subpath_removal(arguments: tuple[Any, ...]) -> dict[str, Any]:
    for position in arguments:
        if type(position) is not int:
            raise ValueError(f"{position!r} is not a whole number")
    # It knows no negative ones.
    return {"remove_segments": tuple(position for position in arguments if position >= 0)}


def _normalizer(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if arguments:
        raise ValueError("the processor normalizer takes none")
    return {"ignore_www": True, "ignore_trailing_slash": True}


PROCESSORS: dict[str, Callable[[tuple[Any, ...]], dict[str, Any]]] = {
    "queryRemoval": lambda names: {"ignore_params": _parameters(names)},
    "queryRemovalExcept": lambda names: {"keep_params": _parameters(names)},
    "subpathRemoval": _subpath_removal,
    "normalizer": _normalizer,
}
