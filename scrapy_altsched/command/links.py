"""Files of links, to try rules on before a crawl."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

from ..errors import InputError


def read_links(path: Path) -> Iterator[str]:
    """Every link in a file, as an absolute URL where the file says what it is relative to.

    A name that ends in ``.jsonl`` holds the pages of a crawl, a line each: ``[url, [hrefs]]``; both
    the page and its links are returned.  Any other file holds a URL a line; empty lines do not
    count.  Either may be compressed, with a name that ends in ``.gz``.

    :raises InputError: the file cannot be read, or a line is not what it should be.
    """
    is_compressed = path.suffix == ".gz"
    has_pages = (path.with_suffix("") if is_compressed else path).suffix == ".jsonl"
    number = 0
    try:
        with gzip.open(path) if is_compressed else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text and has_pages:
                    yield from _links_of_page(text)
                elif text:
                    yield text
    except gzip.BadGzipFile:
        problem = " is not a gzip file, though its name ends in .gz"
    except (EOFError, zlib.error):
        problem = " is damaged or truncated"
    except OSError as error:
        problem = f" cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        problem = f", line {number}: this is not UTF-8"
    except ValueError as error:
        problem = f", line {number}: {error}"
    else:
        return
    raise InputError(f"{path}{problem}.")


def _links_of_page(text: str) -> Iterator[str]:
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        page = None
    match page:
        case [str(url), list(hrefs)] if all(isinstance(href, str) for href in hrefs):
            yield url
            for href in hrefs:
                try:
                    yield urljoin(url, href)
                except ValueError:
                    yield href  # as it is: the caller says that it is not a URL
        case _:
            raise ValueError("this is not a page, as in [url, [hrefs]]")
