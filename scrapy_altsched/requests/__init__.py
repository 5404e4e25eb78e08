"""START HERE.  Scrapy's requests as this package knows them.

:mod:`.fingerprint` tells which ones mean the same page, :mod:`.recent` does so faster for most;
:mod:`.codec` encodes and decodes requests, :mod:`.portable` does so for a server that others can
write to, by way of :mod:`.values`; :mod:`.entries` combines the first two for a frontier.
"""
