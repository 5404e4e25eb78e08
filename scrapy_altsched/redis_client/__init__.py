"""START HERE.  The connection to a Redis or Valkey server, for all that talks with one.

:mod:`.connection` makes a client from scrapy-redis's settings and turns its errors into ours,
:mod:`.server` looks at the server before a crawl uses it.  This module imports neither: they need a
package that is optional.
"""

from __future__ import annotations

from importlib.resources import files

#: Settings that scrapy-redis puts above REDIS_PARAMS: ``REDIS_`` and a parameter in capitals.
ABOVE_PARAMS = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_ENCODING")
#: All settings that :func:`.connection.connect` reads.
SETTINGS = (*ABOVE_PARAMS, "REDIS_PARAMS")
#: How scripts know the time, in ms: from the server's clock.
CLOCK = """local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""


#: How they know whether the server was started again.
RUN_ID = """local function run_id()
    return redis.call('INFO', 'server'):match('run_id:(%x+)')
end
"""


def read_script(package: str, *paths: str) -> str:
    """The Lua in files of a package, one after the other, which can call both functions."""
    parts = ((files(package) / path).read_text("utf-8") for path in paths)
    return CLOCK + RUN_ID + "".join(parts)
