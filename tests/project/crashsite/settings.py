BOT_NAME = "crashsite"
SPIDER_MODULES = ["crashsite.spiders"]
ADDONS = {"scrapy_altsched.Addon": 500}
EXTENSIONS = {
    "crashsite.extensions.Killer": 1,
    "crashsite.extensions.Reporter": 2,
    "crashsite.faults.Faults": 3,
}
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"
# A wrong retry shall fail a test and not hide in it.
RETRY_ENABLED = False
