"""What all tests share."""

from __future__ import annotations

from scrapy.utils.reactor import install_reactor, is_reactor_installed

# Crawlers in this process want it; the crawls proper run in processes of their own.
if not is_reactor_installed():
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
