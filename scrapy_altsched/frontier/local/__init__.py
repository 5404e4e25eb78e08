"""START HERE.  The frontier of one process.

:mod:`.frontier` has the transitions.  :mod:`.persistence` (or :mod:`.in_memory`) keeps them:
:mod:`.uncommitted` is the list of changes that no commit has written, :mod:`.batches` what a commit
makes of it, :mod:`.start_claims` which start requests earlier runs accepted.  :mod:`.suspects` says
which requests may have killed the process.
"""
