"""A Scrapy project that crawls a recorded documentation site with scrapy_altsched."""
