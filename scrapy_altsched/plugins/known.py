"""The plugins that are known to keep a record of their own: what a kill does to each."""

from __future__ import annotations

from typing import NamedTuple

_ROOM = __package__ or ""
DELTAFETCH = f"{_ROOM}.deltafetch.DeltaFetch"
FILES_PIPELINE = f"{_ROOM}.files.FilesPipeline"
IMAGES_PIPELINE = f"{_ROOM}.files.ImagesPipeline"
CACHE = f"{_ROOM}.httpcache.FilesystemCacheStorage"

#: A class of Scrapy's or of a plugin, by each path that settings name it by -> ours in its place.
SAFE = {
    "scrapy_deltafetch.DeltaFetch": DELTAFETCH,
    "scrapy_deltafetch.middleware.DeltaFetch": DELTAFETCH,
    "scrapy.pipelines.files.FilesPipeline": FILES_PIPELINE,
    "scrapy.pipelines.images.ImagesPipeline": IMAGES_PIPELINE,
    "scrapy.extensions.httpcache.FilesystemCacheStorage": CACHE,
}


class Plugin(NamedTuple):
    """What a warning says of a plugin.

    :ivar harm: what a kill does, as the end of a sentence.
    :ivar recipe: what to do instead, as sentences.
    """

    harm: str
    recipe: str


#: The class that keeps a record, by its full name.  What is derived from it is known as well.
KNOWN = {
    "scrapy_deltafetch.middleware.DeltaFetch": Plugin(
        "its record has pages whose items and links are not saved yet, and skips them when they"
        " are found again",
        f"Use {DELTAFETCH!r} in its place, or as the base of your class.",
    ),
    "scrapy.pipelines.files.FSFilesStore": Plugin(
        "a file that is being written stays empty or cut short, and counts as up to date after"
        " that",
        f"Use {FILES_PIPELINE!r} or {IMAGES_PIPELINE!r} in its place or as the base of your class,"
        " or set your class's STORE_SCHEMES to theirs.",
    ),
    "scrapy.pipelines.files.FTPFilesStore": Plugin(
        "a file that is being uploaded stays cut short on the server, and counts as up to date"
        " after that",
        "Store files in a local directory, and upload them when the job is finished.",
    ),
    "scrapy.extensions.httpcache.FilesystemCacheStorage": Plugin(
        "a response that is being stored is cut short, and served like that after the resume",
        f"Set HTTPCACHE_STORAGE = {CACHE!r}, or derive your class from it.",
    ),
    "scrapy.extensions.httpcache.DbmCacheStorage": Plugin(
        "its database, unless it is one of dbm.sqlite3, is not safe against a kill: it may serve"
        " damaged responses after the resume, or not open",
        f"Set HTTPCACHE_STORAGE = {CACHE!r}.",
    ),
}
