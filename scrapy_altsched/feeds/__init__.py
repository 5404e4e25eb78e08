"""START HERE: the rows of pages, on their way into feeds.

A page must not be stored as done while its rows are only in memory.  So every feed file of a job is
written out before each commit, and a commit waits for a file that cannot be written.

``storage`` is Scrapy's interface to all of it, ``job_feeds`` what the scheduler opens and closes;
``archive`` writes lines of its own in the same way.
"""

from __future__ import annotations

from .archive import Archive, find_part
from .configured import find_files, name_archive, warn_of_unsafe_feeds
from .job_feeds import JobFeeds
from .locks import check_files
from .storage import FileFeedStorage as FileStorage

__all__ = [
    "Archive",
    "FileStorage",
    "JobFeeds",
    "check_files",
    "find_files",
    "find_part",
    "name_archive",
    "warn_of_unsafe_feeds",
]
