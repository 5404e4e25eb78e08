"""START HERE.  One crawl that is running: what it hands out, when it commits, what it says.

:mod:`.committer` decides when what happened becomes durable, :mod:`.in_progress` finds out which
requests are over, :mod:`.outcome` what a job is when its crawl ends, and :mod:`.reports` has the
words for all of it.  The scheduler puts them together.
"""
