"""What made the fingerprints of a job, and how that differs from what makes them now."""

from __future__ import annotations

import json
import logging
from shlex import quote
from typing import TYPE_CHECKING

from scrapy.utils.python import global_object_name
from scrapy.utils.request import RequestFingerprinter as ScrapyFingerprinter

from ..canonical import Rules
from ..command_line import given_options
from .fingerprint import RequestFingerprinter

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

logger = logging.getLogger(__name__)

#: Name of the frontier's note about that.
NOTE = "fingerprints"
#: Settings that decide which fingerprint a request has.
_SETTINGS = ("ALTSCHED_URL_RULES", "REQUEST_FINGERPRINTER_CLASS", "DUPEFILTER_CLASS")
_SCRAPYS_OWN = global_object_name(ScrapyFingerprinter)
#: Classes that make nothing but SHA-1 hashes, also where rules or requests change what is hashed.
_SHA1_CLASSES = {_SCRAPYS_OWN, "scrapy_altsched.stock.fingerprints.ScrapyRedisFingerprinter"}


def describe(fingerprinter: RequestFingerprinterProtocol, rules: Rules) -> bytes:
    """The note in a job's store about what makes its fingerprints."""
    kind = type(fingerprinter)
    name = _SCRAPYS_OWN if kind is RequestFingerprinter else global_object_name(kind)
    return json.dumps({"class": name, "rules": rules.digest}).encode()


def are_sha1(note: bytes | str) -> bool:
    """Whether the fingerprints that *note* describes are known to be SHA-1 hashes."""
    return json.loads(note)["class"] in _SHA1_CLASSES


def differences(stored: bytes | None, current: bytes) -> list[str]:
    """How a job's fingerprints differ from those made now, as phrases; ``None``: it has no note."""
    before, now = json.loads(stored or b'{"rules": ""}'), json.loads(current)
    found = []
    if before["rules"] != now["rules"]:
        found.append(
            "other URL rules (ALTSCHED_URL_RULES, url_rules of the spider), or by a version of"
            " scrapy_altsched that applied the same ones in another way"
        )
    if before.get("class", now["class"]) != now["class"]:
        found.append(f"{before['class']} as REQUEST_FINGERPRINTER_CLASS")
    return found


def warn_of_other_fingerprints(
    stored: bytes | None,
    current: bytes,
    jobdir: str,
    spider: Spider | None,
    settings: BaseSettings | None,
) -> None:
    """Warn if the fingerprints of a job were not made as they are made now."""
    if not (found := differences(stored, current)):
        return
    given = () if settings is None else given_options(settings, _SETTINGS)
    logger.warning(
        "The fingerprints in JOBDIR %(jobdir)s were made with %(differences)s: pending and done"
        " requests are not recognized when they are found again, and may be crawled twice. To"
        " recompute those of pending requests, stop this crawl and run: scrapy altsched"
        " refingerprint %(command)s",
        {
            "jobdir": jobdir,
            "differences": " and ".join(found),
            "command": " ".join([quote(jobdir), *given]),
        },
        extra={"spider": spider},
    )
