"""START HERE.  Requests that others put into a queue on a Redis server while the crawl runs.

:mod:`.mixin` is what spiders inherit.  :mod:`.feeder` decides when entries are taken, hands them to
the spider, and acknowledges them when the requests made from them survive the process's death.
:mod:`.queue` and ``queue.lua`` are the queue on the server; nothing else waits for the network.
"""
