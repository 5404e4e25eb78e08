"""``spider.state``, checkpointed with the frontier.

Scrapy's SpiderState extension (scrapy/extensions/spiderstate.py) reads the file ``spider.state``
when a spider opens and writes it after the scheduler has closed.  A crawl that dies never writes
it; what is restored then is what the last commit held, put into that very file, so that the
extension finds it.
"""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import JobdirError
from .frontier.jobdir import write_whole

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

#: Names of the notes in a commit.
STATE = "spider.state"
FILE = "spider.state.file"


class SpiderStateCheckpoint:
    """The state of one spider's crawl.

    :param jobdir: the directory that Scrapy's extension keeps its file in.
    """

    def __init__(self, jobdir: str, spider: Spider) -> None:
        self._path = Path(jobdir, "spider.state")
        self._spider = spider
        self._warned = False
        self._last: bytes | None = None

    def restore(self, state: bytes | None, file: bytes | None) -> None:
        """Put the committed *state* into Scrapy's file, unless that is newer.

        It is newer if it is readable and not the *file* that was there at the commit.

        :raises JobdirError: the file cannot be written.
        """
        if state is None or (self._is_readable() and file != self._describe_file()):
            return
        try:
            write_whole(self._path, state)
        except OSError as error:
            raise JobdirError(
                f"{self._path} cannot be written ({error}), so the spider's state cannot be"
                " restored. See that its disk has space and that this user may write to it."
            ) from error

    def notes(self) -> dict[str, bytes]:
        """What a commit is to store, if the spider has a state that can be pickled."""
        state = getattr(self._spider, "state", None)
        if state is None:
            return {}
        try:
            self._last = pickle.dumps(state, protocol=4)
        except Exception as error:  # pickling runs code of whatever the state holds
            if not self._warned:
                self._warned = True
                logger.warning(
                    "spider.state cannot be pickled (%(error)s): after a crash the spider gets the"
                    " last state that could be. Keep only plain data in it.",
                    {"error": error},
                    extra={"spider": self._spider},
                )
        if self._last is None:
            return {}
        return {STATE: self._last, FILE: self._describe_file()}

    def _describe_file(self) -> bytes:
        """The file's time of change (ns) and size (bytes), to tell whether it was written since."""
        try:
            status = self._path.stat()
        except OSError:
            return b"null"
        return json.dumps([status.st_mtime_ns, status.st_size]).encode()

    def _is_readable(self) -> bool:
        try:
            with self._path.open("rb") as file:
                pickle.load(file)
        except Exception:  # whatever the reason is, Scrapy's extension would meet it too
            return False
        return True
