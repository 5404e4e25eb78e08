"""Request fingerprinters of a project's own."""

from __future__ import annotations

import hashlib
import zlib


class Short:
    """Four bytes."""

    def fingerprint(self, request):
        return hashlib.sha1(request.url.encode(), usedforsecurity=False).digest()[:4]


class Huge:
    """More than a file's buffer takes: what was seen is written at once."""

    def fingerprint(self, request):
        return b"x" * 9000 + request.url.encode()


class Long:
    """300 bytes and more, of which only the last ones differ."""

    def fingerprint(self, request):
        return b"x" * 300 + request.url.encode()


class Sized:
    """As many bytes as the setting FINGERPRINT_BYTES says, of which only the last four differ."""

    def __init__(self, size):
        self.size = size

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings.getint("FINGERPRINT_BYTES"))

    def fingerprint(self, request):
        return zlib.crc32(request.url.encode()).to_bytes(self.size, "big")


class Hashed(Sized):
    """The same, with all bytes of a hash."""

    def fingerprint(self, request):
        return hashlib.blake2b(request.url.encode(), digest_size=self.size).digest()
