"""Lua that a server runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import redis

#: How scripts know the time, in ms: from the server's clock.
CLOCK = """local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""


def read_script(package: str, name: str) -> str:
    """The script in a package's file *name*, which can call ``clock()``."""
    return CLOCK + (files(package) / name).read_text(encoding="utf-8")


class Script:
    """A script on a server."""

    def __init__(self, client: redis.Redis, text: str) -> None:
        self._client = client
        self._text = text
        self._sha = ""

    def run(self, keys: Sequence[str | bytes], *arguments: bytes) -> Any:
        """Run it once.

        :raises redis.RedisError: there was no answer; it may have run.
        """
        everything: list[Any] = [len(keys), *keys, *arguments]
        try:
            if not self._sha:
                self._sha = str(self._client.script_load(self._text))
            return self._client.evalsha(self._sha, *everything)
        except redis.exceptions.NoScriptError:
            # The server was restarted, or another one has taken its place.
            return self._client.eval(self._text, *everything)
