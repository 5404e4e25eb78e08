"""Who is next: :mod:`.order`; and how much of the queue is in memory: :mod:`.window`."""
