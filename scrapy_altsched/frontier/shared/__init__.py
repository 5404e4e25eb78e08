"""START HERE.  The frontier of many workers, on one Redis or Valkey server.

:mod:`.opening` joins a crawl.  :mod:`.frontier` has the transitions, :mod:`.stream` the numbered
batches in which they are sent, the scripts in ``batch`` what the server makes of one; the first,
``entering.lua``, names the keys.  Nothing but :mod:`.exchange` waits for the network, on a thread
of its own.

This module imports none of them: they need packages that are optional.
"""
