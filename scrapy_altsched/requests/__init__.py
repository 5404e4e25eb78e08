"""START HERE.  Scrapy's requests as this package knows them.

:mod:`.fingerprint` tells which ones mean the same page, :mod:`.recent` does so faster for most;
:mod:`.codec` encodes and decodes requests; :mod:`.entries` combines both for a frontier.
"""
