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
                if not text:
                    continue
                if has_pages:
                    yield from _links_of_page(text)
                else:
                    yield text
    except gzip.BadGzipFile:
        raise InputError(f"{path} is not a gzip file, though its name ends in .gz.") from None
    except (EOFError, zlib.error):
        raise InputError(f"{path} is damaged or truncated.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}, line {number}: this is not UTF-8.") from None
    except ValueError as error:
        raise InputError(f"{path}, line {number}: {error}.") from None


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
