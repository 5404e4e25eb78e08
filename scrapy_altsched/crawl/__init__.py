"""START HERE.  One running crawl: what it hands out, when it commits, what it reports.

:mod:`.committer` decides when changes become durable, :mod:`.in_progress` which requests are done,
:mod:`.outcome` how a job ended, and :mod:`.reports` logs all of it.  :mod:`.session` puts them
together.
"""
