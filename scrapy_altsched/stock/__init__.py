"""START HERE.  A JOBDIR that Scrapy's own scheduler has written, or a crawl of scrapy-redis.

:mod:`.files` reads the former's files, :mod:`.job` decides which of them can be trusted, and
:mod:`.report` tells the user.  :mod:`scrapy_altsched.maintenance.importing` writes the store.
"""
