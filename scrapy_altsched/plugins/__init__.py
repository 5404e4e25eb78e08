"""START HERE: plugins with a record of their own, and what a kill does to them.

A record that says "done" before the queue does is ahead of it after a kill: what is crawled again
is then skipped, or served from a file that was cut short.  The scheduler warns of that, and the
addon puts our classes in the place of such plugins.  It does the same with Scrapy's retry
middleware where retries are to wait: see :mod:`.retry`; :mod:`.slots` leaves sites alone that do
not answer, and :mod:`.parents` notes which page a request was found on.
"""

from __future__ import annotations

from .configured import (
    delay_retries,
    keep_parents,
    leave_slots_alone,
    make_safe,
    warn_of_unsafe_plugins,
)

__all__ = [
    "delay_retries",
    "keep_parents",
    "leave_slots_alone",
    "make_safe",
    "warn_of_unsafe_plugins",
]
