"""What a scheduler costs, beside its peers: ``python -m benchmarks``.

Read :mod:`.engine` for how a scheduler is driven without a network, :mod:`.contenders` for whom,
:mod:`.workloads` for what they are given.  Each run of one workload by one contender has a process
of its own (:mod:`.runner`); :mod:`.report`, :mod:`.goals` and :mod:`.plot` show the medians.
"""
