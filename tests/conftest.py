"""What all tests share."""

from __future__ import annotations

import os

from scrapy.utils.reactor import install_reactor, is_reactor_installed

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

# Crawlers in this process want it; the crawls proper run in processes of their own.  Which one it
# is for both, tox.ini says.
if (reactor := os.environ.get("REACTOR", ASYNCIO)) != "none" and not is_reactor_installed():
    install_reactor(reactor)
