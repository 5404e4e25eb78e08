"""The scripts that the server runs."""

from __future__ import annotations

from importlib.resources import files

#: How the script knows the time, in ms: from the server's clock.
_CLOCK = """local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""


def read_script(clock: str = _CLOCK) -> str:
    """The script of an exchange.

    :param clock: Lua that defines ``clock()``; tests have a time of their own.
    """
    return clock + _read("shared.lua")


def read_requeue() -> str:
    """The script that makes dead letters pending again."""
    return _read("requeue.lua")


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
