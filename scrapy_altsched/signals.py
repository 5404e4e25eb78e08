"""Signals around a commit, for synchronous handlers: connect them as for Scrapy's own signals."""

from __future__ import annotations

#: Sent before a commit, with ``spider``.  A component must now write out all data that it buffers:
#: after the commit the pages that the data came from are not fetched again.  A handler that raises
#: postpones the commit.
frontier_committing = object()

#: Sent after a commit, with ``spider`` and ``commit`` (int, its number).  All requests that were
#: accepted before now survive the death of the process: a feeder may acknowledge them.
frontier_committed = object()
