"""START HERE.  The one door to Scrapy's private parts and to its event loop.

:mod:`.engine` reads what Scrapy does not publish, :mod:`.start_watch` follows ``Spider.start()``,
:mod:`.event_loop` waits and calls later, whichever reactor runs.
"""

from .engine import current_scheduler

__all__ = ["current_scheduler"]
