"""START HERE.  The connection to a Redis or Valkey server, for all that talks with one.

:mod:`.connection` makes a client from scrapy-redis's settings and turns its errors into ours,
:mod:`.server` looks at the server before a crawl uses it.  This module imports neither: both need a
package that is optional.
"""
