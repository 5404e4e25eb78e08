"""Lua that a server runs."""

from __future__ import annotations

from importlib.resources import files

#: How scripts know the time, in ms: from the server's clock.
CLOCK = """local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""


def read_script(package: str, name: str) -> str:
    """The script in a package's file *name*, which can call ``clock()``."""
    return CLOCK + (files(package) / name).read_text(encoding="utf-8")
