"""Who is next in a slot: priorities, LIFO and FIFO in one sortable key.

The order is that of Scrapy's own ``ScrapyPriorityQueue`` (scrapy/pqueues.py): the highest priority
first, then other requests before start requests, then LIFO or FIFO.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Direction = Literal["lifo", "fifo"]
Policy = Literal["slots", "one"]

_SEQUENCE_MAX = (1 << 64) - 1
_NORMAL, _START = 0, 1
#: Longest priority, in bytes, whose length fits the first byte of its encoding.
_SHORT = 0x7E


@dataclass(frozen=True, slots=True)
class Order:
    """The order a crawl wants.

    :ivar policy: ``slots``: between download slots, the least busy one; ``one``: one queue.
    :ivar normal: direction among requests of equal priority; *start*: the same for start requests,
        or ``None`` if they are as all others.
    """

    policy: Policy = "slots"
    normal: Direction = "lifo"
    start: Direction | None = "fifo"

    def slot_of(self, name: str) -> str:
        """The name of the queue that requests of download slot *name* wait in."""
        return name if self.policy == "slots" else ""

    def encode(self, priority: int, start: bool, sequence: int) -> bytes:
        """The key under which a request waits in its slot; smaller is sooner."""
        prefix, inverted = _level(self.normal, self.start, priority, start)
        return prefix + (_SEQUENCE_MAX - sequence if inverted else sequence).to_bytes(8, "big")

    def level(self, priority: int, start: bool) -> tuple[bytes, bool]:
        """The beginning of the keys of a priority in a queue; whether the sequence is inverted."""
        return _level(self.normal, self.start, priority, start)

    def decode(self, key: bytes) -> tuple[int, bool, int]:
        """Priority, whether in the start requests' own queue, and sequence of a key."""
        return -decode_int(key[:-9]), key[-9] == _START, self.sequence_of(key)

    def sequence_of(self, key: bytes) -> int:
        """The sequence number of a key."""
        sequence = int.from_bytes(key[-8:], "big")
        direction = self.start if key[-9] == _START else self.normal
        return _SEQUENCE_MAX - sequence if direction == "lifo" else sequence

    def __str__(self) -> str:
        return f"{self.policy}/{self.normal}/{self.start or 'none'}"

    @classmethod
    def parse(cls, text: str) -> Order:
        """The inverse of ``str(order)``."""
        policy, normal, start = text.split("/")
        # They are what str() has written.
        return cls(policy, normal, None if start == "none" else start)  # type: ignore[arg-type]


DEFAULT_ORDER = Order()


@lru_cache(maxsize=4096)
def _level(
    normal: Direction, start: Direction | None, priority: int, is_start: bool
) -> tuple[bytes, bool]:
    own = is_start and start is not None
    direction = start if own else normal
    return encode_int(-priority) + bytes((_START if own else _NORMAL,)), direction == "lifo"


def encode_int(number: int) -> bytes:
    """Any int as bytes that compare as the ints do, none of them a prefix of another's."""
    if number < 0:
        return bytes(255 - byte for byte in encode_int(-1 - number))
    length = (number.bit_length() + 7) // 8
    body = number.to_bytes(length, "big")
    if length < _SHORT:
        return bytes((0x80 + length,)) + body
    return b"\xff" + length.to_bytes(8, "big") + body


def size_of_int(data: bytes) -> int:
    """How many bytes an int takes that *data* begins with, or IndexError."""
    head, length = data[0], data[1:9]
    if 0 < head < 0xFF:
        return 1 + (head - 0x80 if head >= 0x80 else 0x7F - head)
    if not head:
        length = bytes(255 - byte for byte in length)
    return 9 + int.from_bytes(length, "big")


def decode_int(data: bytes) -> int:
    """The inverse of :func:`encode_int`."""
    if data[0] < 0x80:
        return -1 - decode_int(bytes(255 - byte for byte in data))
    return int.from_bytes(data[9:] if data[0] == 0xFF else data[1:], "big")
