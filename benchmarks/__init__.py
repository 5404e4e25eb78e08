"""What a scheduler costs, compared with its peers: ``python -m benchmarks``.

Read :mod:`.engine` for how a scheduler is driven without a network, :mod:`.contenders` for which
ones, :mod:`.workloads` for what they are given.  Each run of one workload by one contender has its
own process (:mod:`.runner`); :mod:`.report`, :mod:`.goals` and :mod:`.plot` show the medians.
"""
