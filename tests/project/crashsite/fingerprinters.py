"""Request fingerprinters of a project's own."""

from __future__ import annotations

import hashlib


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
