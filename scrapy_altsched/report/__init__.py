"""START HERE for the page that ``scrapy altsched report`` writes: :mod:`.page` makes it.

It knows neither stores nor servers: :mod:`scrapy_altsched.command.report` asks them.
"""
