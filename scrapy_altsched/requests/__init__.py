"""START HERE.  Scrapy's requests as this package knows them.

:mod:`.fingerprint` says which ones mean the same page, :mod:`.recent` answers that sooner for most;
:mod:`.codec` makes bytes of a request and a request of bytes; :mod:`.entries` puts both together
for a frontier.
"""
