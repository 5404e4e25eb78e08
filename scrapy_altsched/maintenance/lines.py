"""A crawl as lines of JSON, and back.

The first line tells format and version, and what is known of the crawl as a whole.  Then there is
a line for each part, and the last one says how many lines came before it: a file that was cut short
lacks it.  Requests are as :mod:`scrapy_altsched.requests.plain` has them.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from ..errors import CodecError, InputError
from ..frontier.content import (
    Claim,
    Content,
    Head,
    Part,
    SeenPage,
    SlotBudget,
    StoredRequest,
    Suspect,
)
from ..frontier.entry import Cause, DeadLetter, Entry, PageFailure, Reason
from ..frontier.queue.order import Order
from ..frontier.store.records import Counters, Suspicion
from ..frontier.store.seen import FINGERPRINTS, KEY_MAKERS
from ..frontier.store.states import DEAD, DELAYED, FAILED, STATES
from ..requests.carrying import NEEDS_TRUST, STORED, from_json, slot_in, to_json, url_in
from ..requests.plain import from_plain, to_plain
from .exporting import is_moved

FORMAT, VERSION = "scrapy_altsched crawl", 1
#: Bytes that the first line of a file has at the most, to be taken for that of an export.
_HEAD = 16 * 1024 * 1024
#: Counters that are of a place, and not of what is in it.
_OF_PLACE = ("next_slot", "delayed_queue", "seen")
_COUNTERS = {
    name: type(value) for name, value in asdict(Counters()).items() if name not in _OF_PLACE
}
_STATES = {state.family: state for state in STATES}
#: What the time of a request is called.
_TIMES = {DELAYED: "due", FAILED: "failed_at"}
_PICKLE = b"\x80"
#: Past all times and numbers that there can be.
_MOST = 1 << 51
#: What values that are wrong lead to.
_BAD = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)


def to_lines(content: Content, *, as_stored: bool) -> Iterator[str]:
    """The lines of a crawl, with their ends.

    :param as_stored: whether what JSON cannot carry is written as it is stored, in Base64.
    :raises InputError: there is such a request, and it is not.
    """
    count = 0
    for line in _all_lines(content, as_stored=as_stored):
        count += 1
        yield json.dumps(line) + "\n"
    yield json.dumps({"lines": count}) + "\n"


def _all_lines(content: Content, *, as_stored: bool) -> Iterator[dict[str, Any]]:
    head = content.head
    counters = asdict(head.counters)
    for name in _OF_PLACE:
        del counters[name]
    yield {
        "format": FORMAT,
        "version": VERSION,
        "spider": head.spider,
        "order": str(head.order),
        "seen": head.keys.decode() or "fingerprints",
        "counters": counters,
        "notes": {
            name: _note_line(name, note, as_stored=as_stored)
            for name, note in sorted(head.notes.items())
        },
    }
    for part in content.parts:
        match part:
            case StoredRequest():
                yield _request_line(part, as_stored=as_stored, trusted=content.trusted)
            case SeenPage():
                line = {"seen": part.key.hex()}
                yield {**line, "row": part.row.hex()} if part.row else line
            case Claim():
                yield {"claim": part.key.hex(), "run": part.run}
            case Suspect():
                yield {"suspect": part.fingerprint.hex(), "held": list(astuple(part.suspicion))}
            case SlotBudget():
                yield {"budget": part.slot, "accepted": part.accepted}


def _note_line(name: str, note: bytes, *, as_stored: bool) -> Any:
    if not note.startswith(_PICKLE):
        return note.decode()
    try:
        return to_plain(pickle.loads(note))
    except Exception as error:  # unpickling runs code of whatever is in it
        if as_stored:
            return {STORED: base64.b64encode(note).decode("ascii")}
        raise InputError(_refusal(name, error)) from error


def _request_line(part: StoredRequest, *, as_stored: bool, trusted: bool) -> dict[str, Any]:
    entry, why, payload = part.entry, part.why, part.entry.payload or b""
    try:
        request = to_json(payload, as_stored=as_stored, trusted=trusted)
    except CodecError as error:
        url = url_in(payload, trusted=trusted)
        name = f"The {part.state.noun} {url or entry.fingerprint.hex()}"
        raise InputError(_refusal(name, error)) from error
    line: dict[str, Any] = {
        "state": part.state.family,
        "request": request,
        "fingerprint": entry.fingerprint.hex(),
        "slot": slot_in(payload, trusted=trusted) if part.slot is None else part.slot,
        "priority": entry.priority,
        "start": entry.start,
        "unique": entry.unique,
        "sequence": part.sequence,
    }
    if entry.again:
        line["again"] = True
    if part.at:
        line[_TIMES[part.state]] = part.at / 1000
    if isinstance(why, PageFailure):
        line.update(reason=why.reason.name, text=why.text, status=why.status, tries=why.tries)
    elif why is not None:
        line.update(cause=why.cause.name, text=why.text)
    return line


def _refusal(name: str, error: Exception) -> str:
    return (
        f"{name} cannot be written as JSON ({error}), so nothing was exported. With --pickle it is"
        " written as it is stored, and so are all others like it: to import that takes trust in it,"
        " as pickles can execute code."
    )


def from_lines(
    lines: Iterable[bytes], name: str, notes: Sequence[str], pickled: str, *, trusted: bool
) -> Content:
    """The crawl of these lines; InputError, now or when its parts are gone through: it is none.

    :param name: where they are from, for messages.
    :param notes: names of those that there may be, as :func:`.exporting.read_job` has read them.
    :param pickled: the name of the one that is a pickle, and no text.
    :param trusted: whether pickles in it may be loaded, and any notes be taken over.
    """
    reader = _Reader(name, notes, pickled, trusted=trusted)
    rest = iter(lines)
    # Those that may not be loaded are refused, and the others are made here of plain data.
    return Content(reader.head(next(rest, b"")), reader.parts(rest), trusted=True)


def is_export(path: Path) -> bool:
    """Whether a file begins as one that was written here; OSError: it cannot be read."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            return bool(json.loads(file.readline(_HEAD))["format"] == FORMAT)
        except (*_BAD, EOFError, zlib.error, gzip.BadGzipFile):
            return False


class _Reader:
    def __init__(self, name: str, notes: Sequence[str], pickled: str, *, trusted: bool) -> None:
        self._name, self._trusted = name, trusted
        self._notes, self._pickled = notes, pickled
        self._number = 1

    def head(self, text: bytes) -> Head:
        try:
            line = json.loads(text)
            version = line["version"] if line["format"] == FORMAT else None
        except _BAD:
            version = None
        if type(version) is not int:
            raise InputError(
                f"{self._name} is no exported crawl: its first line does not say so. A crawl is"
                " exported by: scrapy altsched export JOBDIR -o FILE"
            )
        if version > VERSION:
            raise InputError(
                f"{self._name} was exported by a newer version of scrapy_altsched (version"
                f" {version} of the format; this one reads up to {VERSION}). Upgrade it to import"
                " this crawl."
            )
        try:
            keys = str(line["seen"]).encode()
            keys = FINGERPRINTS if keys == b"fingerprints" else keys
            if keys not in KEY_MAKERS:
                raise ValueError(f"it has an unknown kind of keys, {line['seen']!r}")
            numbers = line["counters"]
            counters = {name: _typed(numbers, name, kind) for name, kind in _COUNTERS.items()}
            return Head(
                _typed(line, "spider", str),
                Order.parse(line["order"]),
                keys,
                Counters(**counters),
                {note: self._note(note, value) for note, value in line["notes"].items()},
            )
        except _BAD as error:
            raise self._bad(error) from error

    def _note(self, name: str, value: Any) -> bytes:
        if not self._trusted and not is_moved(name, self._notes):
            raise CodecError(
                f"{name!r} is no note of an exported crawl: to trust it, add --trust-pickle"
            )
        is_text = isinstance(value, str)
        if not is_text and STORED not in value:
            return pickle.dumps(from_plain(value), 4)
        # Pickles of old protocols are texts, too.
        if not self._trusted and (not is_text or name == self._pickled):
            raise CodecError(NEEDS_TRUST)
        return value.encode() if is_text else base64.b64decode(value[STORED], validate=True)

    def parts(self, lines: Iterator[bytes]) -> Iterator[Part]:
        for text in lines:
            self._number += 1
            try:
                line = json.loads(text)
                if "lines" in line:
                    self._check_end(line["lines"], next(lines, None))
                    return
                part = self._part(line)
            except InputError:
                raise
            except _BAD as error:
                raise self._bad(error) from error
            yield part
        raise InputError(
            f"{self._name} was cut short: it ends after line {self._number:,}, and lacks the last"
            " one, which says how many there are. Nothing was imported; export the crawl again."
        )

    def _check_end(self, count: Any, more: bytes | None) -> None:
        if more is not None or count != self._number - 1:
            found = "others come after it" if more is not None else f"it is number {self._number:,}"
            raise InputError(
                f"{self._name} is not as it was exported: its last line says that {count} lines"
                f" come before it, but {found}. Nothing was imported; export the crawl again."
            )

    def _bad(self, error: Exception) -> InputError:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, CodecError):
            text = str(error)
        return InputError(
            f"Line {self._number:,} of {self._name} cannot be read ({text}). Nothing was imported."
        )

    def _part(self, line: dict[str, Any]) -> Part:
        match line:
            case {"state": family, "request": request}:
                return self._request(line, _STATES[family], request)
            case {"seen": key}:
                return SeenPage(bytes.fromhex(key), bytes.fromhex(line.get("row", "")))
            case {"claim": key, "run": run}:
                return Claim(bytes.fromhex(key), run)
            case {"suspect": key, "held": held}:
                return Suspect(bytes.fromhex(key), Suspicion.parse(bytes(held)))
            case {"budget": slot, "accepted": accepted}:
                return SlotBudget(slot, accepted)
        raise ValueError("it is no part of a crawl")

    def _request(self, line: dict[str, Any], state: Any, request: dict[str, Any]) -> StoredRequest:
        entry = Entry(
            bytes.fromhex(line["fingerprint"]),
            priority=_typed(line, "priority", int),
            start=_typed(line, "start", bool),
            payload=from_json(request, trusted=self._trusted),
            unique=_typed(line, "unique", bool),
        )
        entry.again = line.get("again", False)
        at = 0
        if name := _TIMES.get(state):
            at = round(1000 * float(line[name]))
        why: PageFailure | DeadLetter | None = None
        if state is FAILED:
            reason = Reason[line["reason"]]
            why = PageFailure(reason, line["text"], line["status"], line["tries"])
        elif state is DEAD:
            why = DeadLetter(line["text"], Cause[line["cause"]])
        # An empty one was not known where it was exported: a pickle was not loaded there.
        slot, sequence = _typed(line, "slot", str) or None, _typed(line, "sequence", int)
        if not (0 <= at < _MOST and 0 <= sequence < _MOST):
            raise ValueError("its time or its sequence number is none")
        return StoredRequest(state, entry, slot, sequence, at, why)


def _typed(line: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = line[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r}, and must be of type {kind.__name__}")
    return value
