"""What an operator asks of a crawl: START HERE to add an action.

An action is a class in :mod:`.actions`.  It is applied in one place for a job, wherever it comes
from: :mod:`..crawl.inlet`.  To a crawl that runs in another process it goes through the
:mod:`.spool` of its job directory.
"""
