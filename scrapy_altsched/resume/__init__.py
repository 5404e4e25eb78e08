"""START HERE.  Other state that a resumed crawl gets back, one module each."""
