"""START HERE.  One running crawl: what it hands out, when it commits, what it reports.

:mod:`.session` puts the parts together.
"""
