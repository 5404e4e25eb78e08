"""START HERE.  The connection to a Redis or Valkey server, for all that talks with one.

:mod:`.connection` makes a client from scrapy-redis's settings and turns its errors into ours,
:mod:`.server` looks at the server before a crawl uses it, :mod:`.scripts` has it run Lua.  This
module imports none of them: they need a package that is optional.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Settings that scrapy-redis puts above REDIS_PARAMS, and the parameters that they are.
ABOVE_PARAMS: Mapping[str, str] = {
    "REDIS_URL": "url",
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
    "REDIS_ENCODING": "encoding",
}
#: All settings that :func:`.connection.connect` reads.
SETTINGS = (*ABOVE_PARAMS, "REDIS_PARAMS")
