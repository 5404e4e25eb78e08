"""START HERE.  A JOBDIR that Scrapy's own scheduler has written.

:mod:`.files` reads its files, :mod:`.job` decides which of them can be trusted, and :mod:`.report`
tells the user.  The store is written in :mod:`scrapy_altsched.maintenance.importing`.
"""
