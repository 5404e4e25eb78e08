"""START HERE.  A JOBDIR that Scrapy's own scheduler has written.

:mod:`.files` reads its files, :mod:`.job` decides what of them can be believed, and :mod:`.report`
tells the user.  What is read there is written in :mod:`scrapy_altsched.maintenance.importing`.
"""
