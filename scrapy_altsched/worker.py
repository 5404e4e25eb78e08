"""The name of a worker: the same in each of its runs, another one for each worker of a crawl."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

#: The spider's attribute with the name, and so the parameter of a feed's URI: Scrapy has the
#: attributes of the spider for these, and passes them to the project's FEED_URI_PARAMS as well.
PARAMETER = "altsched_worker"

_UNSAFE = re.compile(r"[^\w.-]+")


def name_worker(given: str | None, jobdir: str | os.PathLike[str] | None) -> str:
    """A name for this process's crawl that can be a part of a file's name.

    :param given: ``ALTSCHED_SHARED_WORKER``; ``None``: host and job directory decide, or without
        one the process id, as nothing is resumed then.
    """
    if given is not None:
        return given
    last = Path(jobdir).absolute().name if jobdir is not None else str(os.getpid())
    return _UNSAFE.sub("_", f"{socket.gethostname() or 'localhost'}-{last}").lstrip(".")


def check_name(value: object) -> str:
    """The name of a worker, which ``ALTSCHED_SHARED_WORKER`` gives; ValueError: it is none."""
    name = str(value)
    is_text = isinstance(value, str | int) and not isinstance(value, bool)
    if not (is_text and name) or name.startswith((".", "-")) or _UNSAFE.search(name):
        raise ValueError
    return name
