import os

BOT_NAME = "crashsite"
SPIDER_MODULES = ["crashsite.spiders"]
ADDONS = {"scrapy_altsched.Addon": 500}
EXTENSIONS = {
    "crashsite.extensions.Killer": 1,
    "crashsite.extensions.Reporter": 2,
    "crashsite.faults.Faults": 3,
    "crashsite.killpoints.KillPoint": 4,
    "crashsite.threads.DyingThread": 5,
    "crashsite.torn.Tear": 6,
    "crashsite.extensions.Announcer": 7,
}
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"
# A wrong retry shall fail a test and not hide in it.
RETRY_ENABLED = False
# Under which reactor all crawls run, if it is not Scrapy's default: see tox.ini.
if (reactor := os.environ.get("REACTOR")) == "none":
    TWISTED_REACTOR_ENABLED = False
elif reactor:
    TWISTED_REACTOR = reactor
