"""START HERE.  What is done to a stored job as a whole, while no crawl runs.

:mod:`.opening` is what each run begins with.  It, :mod:`.refingerprint`, :mod:`.requeue`,
:mod:`.importing` and :mod:`.repair` write requests by way of a :mod:`.rewriter`, all of them or
none; :mod:`.audit` looks for what is wrong, and :mod:`.salvage` reads around it.
"""
