"""START HERE.  The frontier of one process.

:mod:`.frontier` has the transitions.  :mod:`.persistence` keeps them, or not; :mod:`.uncommitted`
is the list of changes that no commit has written, and makes batches of them.
"""
