"""START HERE.  What else goes on when a crawl is resumed, one module for each state."""
