"""START HERE.  The frontier of many workers, on one Redis or Valkey server.

:mod:`.opening` joins a crawl.  :mod:`.frontier` has the transitions, :mod:`.stream` the numbered
batches in which they are sent, ``shared.lua`` what the server makes of a batch; its head has the
keys.  Nothing but :mod:`.exchange` waits for the network, on a thread of its own.

:mod:`.options` is what a crawl may choose, :mod:`.connection` makes a client from scrapy-redis's
settings and turns its errors into ours, :mod:`.server` looks at the server before a crawl uses it.
This module imports none of them: all but the options need packages that are optional.
"""
