"""Where settings may still look for the fingerprinter, which is in :mod:`.requests.fingerprint`."""

from __future__ import annotations

from .requests.fingerprint import RequestFingerprinter

__all__ = ["RequestFingerprinter"]
