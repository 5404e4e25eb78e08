"""What a job has on disk.

:mod:`.records` says what the rows mean, :mod:`.rows` reads them and :mod:`.store` writes them;
:mod:`.journal` is the store of a crawl, in a :mod:`.jobdir`, with the log of its leases beside it.
"""
