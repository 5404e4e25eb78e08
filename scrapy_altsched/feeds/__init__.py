"""START HERE: the rows of pages, on their way into feeds.

A page must not be done on disk while its rows sit in memory.  So every feed file of a job is
written out before each commit, and a commit waits for a file that cannot be written.

What others may touch: ``FileStorage``, which settings name; ``JobFeeds``, which the scheduler
opens and closes with the job; ``warn_of_unsafe_feeds``.

``storage`` is Scrapy's interface to all of it; ``jobfeeds`` is what a job remembers of its feeds;
``openfiles`` keeps the files that are open or hold rows, ``feedfile`` is one of them; ``unsafe``
warns of feeds that cannot be resumed; ``columns`` and ``rows`` know what is inside of a file, and
``configured`` what the settings say of feeds.
"""

from __future__ import annotations

from .job_feeds import JobFeeds
from .storage import FileFeedStorage as FileStorage
from .unsafe import warn_of_unsafe_feeds

__all__ = ["FileStorage", "JobFeeds", "warn_of_unsafe_feeds"]
