"""START HERE, with :mod:`.session`.  One running crawl: its requests, commits and reports."""
