"""How polite the workers of a shared crawl are together: ``python -m benchmarks.politeness``.

Real workers crawl a site on loopback that has many hosts (:mod:`..site`), through a Redis server of
their own (:mod:`.crawl`).  :mod:`.cases` has what is tried, :mod:`.figures` what is made of it.

What is measured is what a host sees.  A request has *arrived* when the site has read all of its
headers; it is *open* from then on until the site begins to answer.  A *gap* is the time between
two requests that arrived at one host, one after the other, whichever workers sent them.  All hosts
have the address of one process, so that all times are of one clock.

A worker waits between the moments at which it starts requests.  From there to the arrival it takes
the time of its event loop, and of a new connection where it has none that is open.  Connections
are kept alive, so that only the first requests of each worker to a host need one, which takes less
than a millisecond on loopback; names are resolved without a look-up.  A busy machine adds more:
:data:`.figures.TOLERANCE` is for that.  With Scrapy's defaults a delay is between half and one and
a half of DOWNLOAD_DELAY, by chance, so that no gap may be much shorter than half of it.  The median
of one worker's gaps is longer than DOWNLOAD_DELAY, as Scrapy chooses anew after it has waited.

A suspended worker is stopped for a time in which its leases stay valid: when it goes on, it does
not know how much time has passed.  A killed worker is not replaced; others fetch its pages once its
leases have expired, so that there are long gaps, too.
"""
