"""Requests as a frontier keeps them, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, TypeAlias

from scrapy.utils.misc import load_object

from ..age import MUST_BE, Age
from ..canonical import Rules
from ..engine.engine import Engine
from ..errors import CodecError
from ..frontier import Entry
from . import DELAY, NOT_BEFORE, RECRAWL_AFTER
from .codec import PickleCodec
from .delays import take_delay

if TYPE_CHECKING:
    from scrapy import Request, Spider

    from ..settings import Config
    from .portable import PortableCodec

    Codec: TypeAlias = PickleCodec | PortableCodec

#: What ``sys.getrefcount`` says of an object that only one local variable refers to.
_OURS = 2


def codec_of(config: Config, spider: Spider) -> Codec:
    """The codec of a spider's job or shared crawl."""
    if not config.shared:
        return PickleCodec(spider)
    # What it needs is optional.
    from .portable import PortableCodec

    classes = [load_object(path) for path in config.shared_request_classes]
    return PortableCodec(spider, classes, pickle=config.shared_pickle)


#: Whether a request's meta says nothing about when it is to be crawled, or its page again.
_has_no_times = frozenset((DELAY, NOT_BEFORE, RECRAWL_AFTER)).isdisjoint
_NO_AGES = "when pages are finished is recorded only with the setting ALTSCHED_RECRAWL_AFTER"


class Entries:
    """Turns requests of a crawl into entries, and entries into requests.

    :param codec: ``None``: requests do not survive the process.
    :param tally: name of a stat -> by how much to increase it.
    :param rules: those for URLs, which may say how old pages have to be.
    :ivar by_slot: whether requests wait in the queues of their download slots.
    :ivar on_unserializable: called with each entry whose request cannot be encoded, and why.
    :ivar on_bad_delay: called with a request, a key of its meta that asks for a delay in vain, the
        value, and what is wrong with it.
    :ivar records_ages: whether the age that a request asks for can be told.
    """

    def __init__(
        self,
        codec: Codec | None,
        engine: Engine,
        tally: MutableMapping[str, int],
        rules: Rules,
        *,
        by_slot: bool,
    ) -> None:
        self._codec = codec
        self._engine = engine
        # Until a crawl is open.
        self.on_unserializable: Callable[[Entry, CodecError], object] = lambda _, __: None
        self.on_bad_delay: Callable[[Request, str, object, str], object] = lambda *_: None
        self.records_ages = True
        self._tally = tally
        self.by_slot = by_slot
        self._rules = rules

    def encode(self, entry: RequestEntry) -> None:
        """See :meth:`Entry.encode`."""
        request: Request = entry.request
        if self.by_slot:
            name = self._engine.slot_key(request)
            entry.slot = name if isinstance(name, str) else str(name)
        meta = request.meta
        if len(meta) > 1 or "depth" not in meta:  # most links have that and nothing else
            entry.start = bool(meta.get("is_start_request"))
            if not _has_no_times(meta):
                self._read_times(entry, request)
        if (codec := self._codec) is not None:
            try:
                entry.payload = codec.encode(request)
            except CodecError as error:
                self.on_unserializable(entry, error)
        if entry.payload is None:
            self._tally["scheduler/enqueued/memory"] += 1
        else:
            self._tally["scheduler/enqueued/disk"] += 1

    def _read_times(self, entry: RequestEntry, request: Request) -> None:
        if RECRAWL_AFTER in request.meta and not self.records_ages:
            value = request.meta[RECRAWL_AFTER]
            self.on_bad_delay(request, RECRAWL_AFTER, value, _NO_AGES)

        def complain(key: str, value: object, why: str) -> None:
            self.on_bad_delay(request, key, value, why)

        entry.delay = take_delay(request.meta, complain)
        if entry.delay is not None and not self.by_slot:
            # By the time it is due, requests may wait in the queues of their slots.
            entry.slot = self.slot_of(request)

    def find_age(self, request: Request) -> Age | None:
        """How old the page of a request has to be, if its meta, or a rule, says so."""
        if (value := request.meta.get(RECRAWL_AFTER)) is not None:
            try:
                return Age.parse(value)
            except (ValueError, TypeError, OverflowError):
                self.on_bad_delay(request, RECRAWL_AFTER, value, f"it must be {MUST_BE}")
        return self._rules.find_age(request.url)

    def slot_of(self, request: Request) -> str:
        """The download slot of a request."""
        return str(self._engine.slot_key(request))

    def uncount(self, entry: Entry) -> None:
        """Have an entry that was encoded, but not accepted, not count as enqueued."""
        where = "memory" if entry.payload is None else "disk"
        self._tally[f"scheduler/enqueued/{where}"] -= 1

    def restore(self, entry: Entry) -> Request:
        """The request of *entry*: a copy as it was when it was added.

        If nothing else refers to the object, that is as good, and saves creating another.

        :raises CodecError: it cannot be restored from its bytes.
        """
        request: Request | None = entry.request
        if (payload := entry.payload) is None:
            assert request is not None
            self._tally["scheduler/dequeued/memory"] += 1
        else:
            entry.request = None
            if (
                request is None
                or sys.getrefcount(request) != _OURS
                or not self._codec.is_as_encoded(request, payload)  # type: ignore[union-attr]
            ):
                request = self.decode(payload)
                if entry.again:
                    request.meta.pop("retry_times", None)
            self._tally["scheduler/dequeued/disk"] += 1
        return request

    def copy_of(self, entry: Entry) -> Request:
        """A copy of the request of *entry*, which stays as it is.

        :raises CodecError: as :meth:`restore`.
        """
        if entry.payload is not None:
            return self.decode(entry.payload)
        request: Request = entry.request
        return request.copy()

    def check(self, request: Request) -> None:
        """CodecError: the request could not be stored, and so would end with the process."""
        if self._codec is not None:
            self._codec.encode(request)

    def decode(self, payload: bytes) -> Request:
        """See :func:`.codec.decode_request`."""
        assert self._codec is not None
        return self._codec.decode(payload)

    def url_of(self, payload: bytes) -> str | None:
        """The URL of a stored request; ``None``: it cannot be read."""
        return None if self._codec is None else self._codec.url_of(payload)

    def locate(self, payload: bytes) -> tuple[str, bool]:
        """Slot of the request in *payload*, and whether it is a start request."""
        request = self.decode(payload)
        return self._engine.slot_key(request), bool(request.meta.get("is_start_request"))


class RequestEntry(Entry):
    """An entry that is encoded, by *entries*, only if it is accepted."""

    __slots__ = ("_entries",)
    _entries: Entries | None

    def __init__(
        self, fingerprint: bytes, request: Request, unique: bool, from_start: bool, entries: Entries
    ) -> None:
        # As in Entry, which is not called: every request takes this path.
        self.fingerprint = fingerprint
        self.slot = ""
        self.priority = request.priority
        self.start = False
        self.payload = None
        self.request = request
        self.unique = unique
        self.from_start = from_start
        self.delay = None
        self.again = False
        self._entries = entries

    def find_age(self) -> Age | None:
        return None if self._entries is None else self._entries.find_age(self.request)

    def find_slot(self) -> str:
        return self.slot if self._entries is None else self._entries.slot_of(self.request)

    def encode(self) -> None:
        entries, self._entries = self._entries, None
        if entries is not None:  # not encoded yet
            entries.encode(self)
