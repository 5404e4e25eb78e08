"""START HERE.  The one door to Scrapy's private parts, in :mod:`.engine`, and to its event loop."""

from .engine import current_scheduler

__all__ = ["current_scheduler"]
