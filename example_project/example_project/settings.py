"""The settings of the example project."""

BOT_NAME = "example_project"

SPIDER_MODULES = ["example_project.spiders"]
NEWSPIDER_MODULE = "example_project.spiders"

# The only line that scrapy_altsched needs: the add-on itself sets the scheduler, the duplicate
# filter and the feed storages, and leaves alone whatever the command line has set.
ADDONS = {"scrapy_altsched.Addon": 500}

# The site is a recorded one, served on loopback: it has no robots.txt to obey, and a proxy named
# in the environment could not reach it.
ROBOTSTXT_OBEY = False
HTTPPROXY_ENABLED = False

# Not needed for so short a crawl, and an open port may be in use already.
TELNETCONSOLE_ENABLED = False
