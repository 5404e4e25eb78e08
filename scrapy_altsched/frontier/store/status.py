"""``altsched.status``: how a job stands, for those who look in without opening its store.

It is overwritten in place with each commit, and never forced to the disk: a reader may find
parts of two contents in that moment.  So it is one block of one size, which begins with a checksum.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import JobdirError
from ..contract import Standing
from ..entry import Counts

NAME = "altsched.status"
#: Version of what is in the file.
FORMAT = 1
#: Bytes of the file: two pages of memory.
SIZE = 8_192
#: Before the text: its checksum and its length.
_HEAD = 18
#: Longer names of slots are cut: each character takes up to 12 bytes.
_NAME_LENGTH = 200
#: How often a file that is being written is read, and seconds between two of these: a writer may be
#: interrupted, and where files are in memory, each of its two pages is read as it is just then.
_TRIES, _PAUSE = 20, 0.001
_match_head = re.compile(rb"([0-9a-f]{8}) +([0-9]+)\n").match
_NUMBERS = tuple(Counts.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What ``altsched.status`` says.

    :ivar state: "running", "closing", "stopped", "finished"; or "unsaved": its end could not be.
    :ivar holder: the process that has the job open: see :class:`.holder.Holder`.
    :ivar commit: number of the last commit.
    :ivar lasted: until when the run is known to have lasted, in seconds since the epoch, if a
        command has changed the job since.
    """

    store_id: str
    state: str
    holder: str
    run: int
    commit: int
    standing: Standing
    lasted: float | None = None

    def encode(self) -> bytes:
        """The whole file."""
        standing = self.standing
        busiest = [(name[:_NAME_LENGTH], count) for name, count in standing.busiest]
        held = [(name and name[:_NAME_LENGTH], until) for name, until in standing.held]
        while True:
            text = json.dumps(
                {
                    "format": FORMAT,
                    "store_id": self.store_id,
                    "state": self.state,
                    "spider": standing.spider,
                    "shared": standing.shared,
                    "holder": self.holder,
                    "run": self.run,
                    "commit": self.commit,
                    "lasted": self.lasted,
                    "began": standing.began,
                    "at": standing.at,
                    "counts": {name: getattr(standing.counts, name) for name in _NUMBERS},
                    "duplicates": standing.duplicates,
                    "found_rate": standing.found_rate,
                    "ended_rate": standing.ended_rate,
                    "held": held,
                    "busiest": busiest,
                    "paused": standing.paused,
                }
            ).encode("ascii")
            if len(text) <= SIZE - _HEAD - 1 or not (busiest or held):
                break
            # Names that take more than a byte for each character.
            busiest, held = busiest[: len(busiest) // 2], held[: len(held) // 2]
        head = b"%08x %8d\n" % (zlib.crc32(text), len(text))
        return (head + text).ljust(SIZE - 1) + b"\n"

    @classmethod
    def parse(cls, block: bytes) -> JobStatus:
        """The inverse of :meth:`encode`; ValueError: it is torn, damaged, or of a newer format."""
        head = _match_head(block)
        text = block[_HEAD : _HEAD + int(head[2])] if head else b""
        if head is None or int(head[1], 16) != zlib.crc32(text):
            raise ValueError("it is damaged")
        known: dict[str, Any] = json.loads(text)
        if known["format"] > FORMAT:
            raise ValueError("it was written by a newer scrapy_altsched: upgrade this one")
        standing = Standing(
            spider=known["spider"],
            shared=known["shared"],
            began=known["began"],
            at=known["at"],
            counts=Counts(**known["counts"]),
            duplicates=known["duplicates"],
            found_rate=known["found_rate"],
            ended_rate=known["ended_rate"],
            held=[(name, until) for name, until in known["held"]],
            busiest=[(name, count) for name, count in known["busiest"]],
            paused=known.get("paused"),
        )
        own = ("store_id", "state", "holder", "run", "commit")
        lasted = known.get("lasted")
        return cls(**{name: known[name] for name in own}, standing=standing, lasted=lasted)


def read_status(jobdir: Path) -> JobStatus | None:
    """The status in *jobdir*; ``None``: no run has written one; JobdirError: it is unreadable."""
    path = jobdir / NAME
    why: Exception | None = None
    for _ in range(_TRIES):
        try:
            return JobStatus.parse(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            why = error
            break
        except (ValueError, KeyError, TypeError) as error:
            why = error  # most often it is being written right now
            time.sleep(_PAUSE)
    reason = getattr(why, "strerror", None) or why
    raise JobdirError(
        f"{path} cannot be read ({reason}). A run of the job writes it again with its next commit;"
        " until then, `scrapy altsched check` reads the job itself."
    )
