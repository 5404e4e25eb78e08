"""START HERE: the rows of pages, on their way into feeds.

A page must not be stored as done while its rows are only in memory.  So every feed file of a job is
written out before each commit, and a commit waits for a file that cannot be written.

The interface: ``FileStorage``, which settings name; ``JobFeeds``, which the scheduler
opens and closes with the job; ``find_files``, which names the files that it locks, and
``check_files``, which looks at them first; ``warn_of_unsafe_feeds``.

``storage`` is Scrapy's interface to all of it; ``job_feeds`` is what a job records about its feeds;
``open_files`` keeps the files that are open or hold rows, ``feed_file`` is one of them; ``unsafe``
warns about feeds that cannot be resumed; ``columns`` and ``rows`` know what is inside a file, and
``configured`` what the settings say about feeds; ``locks`` keeps other crawls from a file, and
``paths`` tells at the start which files that will be.
"""

from __future__ import annotations

from .job_feeds import JobFeeds
from .paths import check_files, find_files
from .storage import FileFeedStorage as FileStorage
from .unsafe import warn_of_unsafe_feeds

__all__ = ["FileStorage", "JobFeeds", "check_files", "find_files", "warn_of_unsafe_feeds"]
