"""Kept for settings that name this path: the fingerprinter is in :mod:`.requests.fingerprint`."""

from __future__ import annotations

from .requests.fingerprint import RequestFingerprinter

__all__ = ["RequestFingerprinter"]
