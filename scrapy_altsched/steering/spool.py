"""The spool of a job directory: actions on their way to the crawl that runs there.

An action is a file: a line with what is asked for, and a line for each of the requests, URLs or
keys that it is about.  Names are in the order in which the files came.  A file gets its name when
it is whole, and goes when the action was applied; the answer, a file as well, is there before that.

The directory is its owner's alone, and nothing that another user wrote is read: who may write here
has the crawl request what they like.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from ..disk import force_name, write_whole
from ..errors import InvalidActionError, SpoolError
from .actions import Action, Effect, parse_action

NAME = "altsched.actions"
FORMAT = 1
#: Bytes of a file, and of a line of it: nothing longer is read.
MOST_BYTES, MOST_LINE = 4 * 1024**3, 64 * 1024**2
_ACTION, _ANSWER = ".action", ".answer"
_is_id = re.compile("[0-9a-f]{32}").fullmatch
#: Seconds after which an answer that was not fetched goes.
_KEPT = 86_400.0


@dataclass(frozen=True, slots=True)
class Sent:
    """An action that was sent.

    :ivar id: its own, of hexadecimal digits; *path*: its file.
    """

    id: str
    path: Path


class Spool:
    """The spool of the job in *jobdir*; what it cannot read or write raises SpoolError."""

    def __init__(self, jobdir: Path) -> None:
        self.directory = jobdir / NAME

    # The sender

    def send(self, action: Action) -> Sent:
        """Have an action wait for the crawl, whole or not at all."""
        directory, name = self.directory, uuid.uuid4().hex
        with _explained(directory, "written"):
            directory.mkdir(mode=0o700, exist_ok=True)
            self._check_owner()
            partial = directory / f"{name}.partial"
            try:
                with partial.open("x", encoding="utf-8") as file:
                    partial.chmod(0o600)
                    head = {"format": FORMAT, "id": name, "verb": action.verb}
                    _write(file, {**head, "arguments": action.arguments()})
                    for line in action.lines():
                        _write(file, line)
                    file.flush()
                    os.fsync(file.fileno())
                path = directory / f"{time.time_ns():020}-{name}{_ACTION}"
                partial.rename(path)
            except BaseException:  # nothing is to be left of it, whatever has ended it
                partial.unlink(missing_ok=True)
                raise
            force_name(path.absolute())
        return Sent(name, path)

    def take_answer(self, sent: Sent) -> Effect | None:
        """What the action has come to; ``None``: it was not applied yet."""
        path = self.directory / f"{sent.id}{_ANSWER}"
        with _explained(path, "read"):
            try:
                with self._open(path) as file:
                    effect = Effect(**json.loads(file.read()))
            except FileNotFoundError:
                return None
            path.unlink(missing_ok=True)
            return effect

    def withdraw(self, sent: Sent) -> bool:
        """Take an action back; whether it was still there, and so had not been applied wholly."""
        with _explained(sent.path, "deleted"):
            try:
                sent.path.unlink()
            except FileNotFoundError:
                return False
            return True

    # The receiver

    def waiting(self) -> list[Path]:
        """The files of actions that wait, in the order in which they came."""
        try:
            paths = sorted(it for it in self.directory.iterdir() if it.suffix == _ACTION)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(self.directory, "read", error) from error
        if paths:
            self._check_owner()
        return paths

    def open(self, path: Path) -> Received | None:
        """Begin to read an action; ``None``: it was withdrawn.

        :raises InvalidActionError: it is not valid, or another user's; SpoolError: try again later.
        """
        with _explained(path, "read"):
            try:
                file = self._open(path)
            except FileNotFoundError:
                return None
            try:
                return Received(path, file)
            except BaseException:  # nothing else would close it
                file.close()
                raise

    def answer(self, action_id: str, path: Path, effect: Effect) -> None:
        """Tell the sender what an action has come to, and be done with it."""
        with _explained(path, "written"):
            text = json.dumps(asdict(effect)).encode()
            write_whole(self.directory / f"{action_id}{_ANSWER}", text)
            path.unlink(missing_ok=True)

    def refuse(self, path: Path) -> None:
        """Rename a file that is not a valid action, so that it is not read again."""
        with _explained(path, "renamed"):
            path.rename(path.with_suffix(".refused"))

    def clear(self) -> None:
        """Delete answers that were not fetched, and what was never whole, after a day."""
        with suppress(OSError):
            for path in self.directory.iterdir():
                is_old = time.time() - path.lstat().st_mtime > _KEPT
                if is_old and path.suffix in (_ANSWER, ".partial"):
                    path.unlink(missing_ok=True)

    def _check_owner(self) -> None:
        found = self.directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise SpoolError(
                f"{self.directory} is no directory of user {os.geteuid()}, as which this process"
                " runs: nothing in it is read. Act on a crawl as the user that it runs as; or"
                " delete it, and it is made anew."
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            self.directory.chmod(0o700)

    def _open(self, path: Path) -> IO[bytes]:
        # Another user's, a link, or a pipe on which to wait for ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise InvalidActionError(f"{path} is a link, and was not followed.") from error
            raise
        found = os.fstat(descriptor)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not is_own or found.st_size > MOST_BYTES:
            os.close(descriptor)
            raise InvalidActionError(
                f"{path} is not a file of user {os.geteuid()} with at most {MOST_BYTES:,} bytes,"
                " and was not read. Act on a crawl by `scrapy altsched`, as the user that it runs"
                " as."
            )
        return os.fdopen(descriptor, "rb")


class Received:
    """An action that is read, a line at a time.

    :ivar id: as its sender has named it.
    :raises InvalidActionError: its first line is not that of an action.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        try:
            head = json.loads(file.readline(MOST_LINE))
            if head["format"] > FORMAT:
                raise ValueError("it was sent by a newer scrapy_altsched: upgrade this one")
            self.id = str(head["id"])
            if not _is_id(self.id):
                raise ValueError("its id is not valid")
            self._verb, self._arguments = str(head["verb"]), dict(head["arguments"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidActionError(
                f"{path} is not a valid action ({error!r}): it is renamed, and skipped."
            ) from error

    def is_withdrawn(self) -> bool:
        """Whether its sender has deleted it."""
        return not os.fstat(self._file.fileno()).st_nlink

    def close(self) -> None:
        self._file.close()

    def action(self, skipped: int = 0) -> Action:
        """What is asked for, from a line on; InvalidActionError: that is not known here.

        :param skipped: how many of the lines that it is about were taken already.
        """
        try:
            return parse_action(self._verb, self._arguments, self._lines(skipped))
        except ValueError as error:
            raise InvalidActionError(f"{self._path} cannot be applied: {error}.") from error

    def _lines(self, skipped: int) -> Iterator[Any]:
        """InvalidActionError: a line is no JSON."""
        for number in count(1):
            with _explained(self._path, "read"):
                text = self._file.readline(MOST_LINE)
            if not text:
                return
            if number <= skipped:
                continue
            try:
                yield json.loads(text)
            except (ValueError, RecursionError) as error:
                what = f"line {number + 1:,} of {self._path} is no JSON ({error})"
                raise InvalidActionError(f"Not all of it was applied: {what}.") from error


def _write(file: IO[str], value: Any) -> None:
    file.write(f"{json.dumps(value)}\n")


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, what, error) from error


def _unusable(path: Path, what: str, error: OSError) -> SpoolError:
    advice = "Check the space on its disk, and whose it is."
    return SpoolError(f"{path} cannot be {what} ({error.strerror or error}). {advice}")
