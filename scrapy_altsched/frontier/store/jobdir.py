"""Whose a job directory is: one crawl at a time, one spider, one format.

All of this is decided before the store is opened: an open that is refused may rewrite files, too.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...disk import CAN_LOCK, Overwritten, force, force_name, identify, lock, write_whole
from ...errors import (
    JobdirError,
    JobdirLockedError,
    JobdirLostError,
    JobdirMismatchError,
    StoreError,
    UnsupportedSystemError,
)
from ..forks import close_in_child
from .database import advise
from .directory import Directory, find, not_reached
from .holder import LOCK, Holder
from .samples import NAME as SAMPLES
from .samples import SampleFile
from .status import NAME as STATUS
from .status import JobStatus

#: Version of everything that is written into a job directory.
FORMAT = 8
#: The oldest one that is brought up to date (see :mod:`.migrations`).
OLDEST = 1

_IDENTITY = "altsched.json"
_LAST_COMMIT = "altsched.commit"
_ENDED = "altsched.ended"
_PROBE = "altsched.probe"
#: Errors of a process, or a machine, that has too many files open.
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
#: Bytes that have to be free for a store to be opened.
_ROOM = 1024 * 1024
_STORE = "frontier"
#: Where a store that is not whole yet is made.
_PARTIAL = "frontier.partial"
#: Where a new store waits until the old one was moved out of its way.
REPAIRED = "frontier.repaired"
#: Where a store is that another one has replaced, until it is deleted.
_REPLACED = "frontier.replaced"


@dataclass(frozen=True, slots=True)
class Identity:
    """What ``altsched.json`` says: readable without opening the store."""

    format: int
    owner: str
    store_id: str

    @classmethod
    def new(cls, owner: str) -> Identity:
        """The identity of a new job of spider *owner*."""
        return cls(FORMAT, owner, secrets.token_hex(16))

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, text: str | bytes) -> Identity:
        """The identity in *text*, JSON, or ValueError; a newer format may say more in it."""
        match json.loads(text):
            case {"format": int(number), "owner": owner, "store_id": store_id}:
                return cls(number, owner, store_id)
            case other:
                raise ValueError(f"it needs a number as format, owner, and store_id: {other!r}")


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What ``altsched.commit`` says: how far the job had come, whatever its store says."""

    store_id: str
    number: int
    accepted: int
    done: int

    def encode(self) -> bytes:
        """One line, of one length: it can be overwritten in place."""
        numbers = f"{self.number:20d} {self.accepted:20d} {self.done:20d}"
        return f"{self.store_id:32} {numbers}\n".encode("ascii")

    @classmethod
    def read(cls, jobdir: Path) -> LastCommit | None:
        """The one noted in *jobdir*; ``None``: there is none, or it cannot be read."""
        with suppress(OSError, ValueError):
            store_id, *numbers = (jobdir / _LAST_COMMIT).read_text(encoding="ascii").split()
            number, accepted, done = map(int, numbers)
            return cls(store_id, number, accepted, done)
        return None


class Jobdir:
    """A job directory that this process holds alone, until :meth:`release`.

    :param path: made if it is not there.
    :param owner: the spider's name.
    :ivar partial: where a store can be made; nothing is there.
    :ivar place: a path to it that stays right if it is moved: see :class:`~.directory.Directory`.
    :ivar last_commit: of earlier runs; ``None``: it is not known.
    :raises UnsupportedSystemError: this operating system cannot lock it.
    :raises JobdirError: a running crawl holds it, it is another spider's, it was written by a newer
        version, or it cannot be read or written; StoreError: whether it has a store is not known.
    """

    def __init__(self, path: str | os.PathLike[str], owner: str) -> None:
        self.path = Path(path).absolute()
        if not CAN_LOCK:
            raise UnsupportedSystemError(
                f"JOBDIR {self.path} cannot be used: this operating system lacks fcntl, with which"
                " scrapy_altsched locks a job directory. Unset JOBDIR to crawl without saving; or"
                " crawl on Linux or macOS, or in WSL."
            )
        self.owner = owner
        self.store = self.path / _STORE
        ensure_directory(self.path)
        self._lock: int | None = None
        self._lock_path = self.path / LOCK
        #: What the lock file says of this process.
        self.holder = Holder.current().encode()
        self._read_identity()
        with using(self.path):
            self._directory = Directory(self.path)
        self.place = self._directory.place
        self.partial = self.place / _PARTIAL
        self._last_commit = Overwritten(self.place / _LAST_COMMIT)
        self._status = Overwritten(self.place / STATUS)
        self._samples = SampleFile(self.place / SAMPLES)
        close_in_child(self.release)
        try:
            self._lock = self._take_lock()
            self._lock_identity = identify(os.fstat(self._lock))
            self.identity = self._read_identity()
            repaired = self.place / REPAIRED
            if find(repaired) is not None and find(self.store) is None:
                repaired.rename(self.place / _STORE)
            # What a death has left.
            for name in (_PARTIAL, REPAIRED, _REPLACED):
                shutil.rmtree(self.place / name, ignore_errors=True)
            self.last_commit = LastCommit.read(self.path)
        except BaseException:
            self.release()
            raise

    def _take_lock(self) -> int:
        with using(self._lock_path):
            # Not truncated: until the lock is ours, the file is another process's.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.place / LOCK, flags, 0o644)
            try:
                if not lock(descriptor):
                    holder = Holder.parse(os.read(descriptor, 1024).decode(errors="replace"))
                    raise JobdirLockedError(_describe_lock(self._lock_path, holder))
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, self.holder, 0)
            except BaseException:  # nothing else would let go of the lock
                os.close(descriptor)
                raise
        return descriptor

    def _read_identity(self) -> Identity | None:
        identity = read_identity(self.path)
        if identity is not None:
            self.check(identity)
            find_store(self.path)
        return identity

    def check(self, identity: Identity) -> None:
        """Raise JobdirMismatchError if a job of this *identity* cannot be resumed."""
        refuse_newer(self.path, identity)
        if identity.format < OLDEST:
            raise JobdirMismatchError(
                f"JOBDIR {self.path} was written by a scrapy_altsched that is too old (format"
                f" {identity.format}; this one reads {OLDEST} to {FORMAT}). Finish this job with"
                " that version, or set another JOBDIR."
            )
        if identity.owner != self.owner:
            raise JobdirMismatchError(
                f"JOBDIR {self.path} belongs to spider {identity.owner!r}, not to"
                f" {self.owner!r}. Set another JOBDIR for this spider."
            )

    def is_held(self) -> bool:
        """Whether the directory has the job that was locked, and no copy; StoreError: unknown."""
        assert self._lock is not None
        found = find(self._lock_path)
        if found is None:  # deleted by hand: whether the rest is there shows elsewhere
            return True
        try:
            is_same = identify(found) == self._lock_identity
            return is_same and os.pread(self._lock, 1024, 0) == self.holder
        except OSError as error:
            raise not_reached(self._lock_path, error) from error

    def write_identity(self, identity: Identity) -> None:
        with using(self.path / _IDENTITY):
            write_whole(self.place / _IDENTITY, identity.encode())
        self.identity = identity

    def replace_store(self, kept: str | None = None) -> None:
        """Put the store at :attr:`partial` in the place of the job's; OSError: it is as it was.

        A death in between leaves a job whose new store is put in place at the next open.

        :param kept: name of a directory for the old one, which is deleted otherwise.
        """
        store, repaired = self.place / _STORE, self.place / REPAIRED
        old = self.place / (kept or _REPLACED)
        self.partial.rename(repaired)
        store.rename(old)
        repaired.rename(store)
        force_name(self.store)
        if kept is None:
            shutil.rmtree(old, ignore_errors=True)

    def note_commit(self, commit: LastCommit) -> None:
        """Note how far the job has come; an older note is harmless: an error here is none.

        RocksDB silently opens at an older commit if the end of its log is gone.
        """
        with suppress(OSError):
            self._last_commit.write(commit.encode())

    def note_status(self, status: JobStatus) -> None:
        """Note how the job stands; an error here is none, either."""
        with suppress(OSError):
            self._status.write(status.encode())
        with suppress(OSError):
            self._samples.note(status)

    def forget_status(self) -> None:
        """Have nothing be known of how the job stands until its next run; no error, either."""
        with suppress(OSError):
            (self.place / STATUS).unlink()

    def note_end(self, run: int) -> None:
        """Note that the process of *run*, which finished the job, has ended as it should."""
        with suppress(OSError, StoreError):  # as if it had died: the safe side
            if self.is_held():
                write_whole(self.place / _ENDED, f"{self.store_id} {run}\n".encode())

    def has_ended(self, run: int) -> bool:
        return has_ended(self.path, self.store_id, run)

    @property
    def store_id(self) -> str:
        """Of the store that is there."""
        assert self.identity is not None
        return self.identity.store_id

    def check_writable(self) -> None:
        """Raise StoreError if there is no room to open a store."""
        path = self.place / _PROBE
        try:
            with path.open("wb") as file:
                file.write(bytes(_ROOM))
                file.flush()
                force(file.fileno())
        except OSError as error:
            raise StoreError(
                f"Nothing can be written to JOBDIR {self.path}: {error.strerror or error}."
                f" {advise(error.strerror)}"
            ) from error
        finally:
            with suppress(OSError):
                path.unlink()

    def release(self) -> None:
        self._last_commit.close()
        self._status.close()
        self._samples.close()
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)
        self._directory.close()


def has_ended(jobdir: Path, store_id: str, run: int) -> bool:
    """Whether the process of *run*, which finished the job, has ended as it should."""
    with suppress(OSError, ValueError):
        return (jobdir / _ENDED).read_text(encoding="ascii") == f"{store_id} {run}\n"
    return False


def _describe_lock(path: Path, holder: Holder | None) -> str:
    jobdir, lives, host, name = path.parent, None, "", "an unknown process"
    then = "Wait for it to end; another crawl needs another JOBDIR."
    if holder is not None:
        lives, name = holder.lives(), f"process {holder.pid}"
        host = f" on host {holder.host}" if holder.host else ""
    if lives:
        return f"JOBDIR {jobdir} is in use by a running crawl ({name}). {then}"
    if lives is None:
        return (
            f"JOBDIR {jobdir} is in use by a crawl ({name}{host}); whether that process is still"
            f" running cannot be determined from here. {then} If it has ended, a process that it"
            f" started still has {path} open: end that one."
        )
    return (
        f"JOBDIR {jobdir} is locked, although the crawl that used it ({name}) has ended: a process"
        f" that it started still has {path} open. Find that process with `fuser {path}` and end it,"
        " then run this command again."
    )


def refuse_newer(jobdir: Path, identity: Identity) -> None:
    """Raise JobdirMismatchError if the job is of a format that is not known yet."""
    if identity.format > FORMAT:
        raise JobdirMismatchError(
            f"JOBDIR {jobdir} was written by a newer scrapy_altsched (format {identity.format};"
            f" this one reads up to {FORMAT}). Upgrade scrapy_altsched to go on with this job, or"
            " set another JOBDIR."
        )


def read_identity(jobdir: Path) -> Identity | None:
    """What ``altsched.json`` says; ``None``: it is not there; JobdirError: it cannot be read."""
    path = jobdir / _IDENTITY
    try:
        return Identity.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _TOO_MANY:
            raise not_writable(path, error) from error
        raise JobdirError(
            f"{path} cannot be read ({error}). It names the job's format and spider; restore"
            " it from a copy, or delete it if you know that the JOBDIR is this spider's: it is"
            " then written again."
        ) from error


def find_present(jobdir: Path) -> Path | None:
    """The job's store, or the repaired one, if there is one; StoreError: unknown."""
    places = (jobdir / _STORE, jobdir / REPAIRED)
    return next((place for place in places if find(place) is not None), None)


def find_store(jobdir: Path) -> Path:
    """The same; JobdirLostError: there is none."""
    if (store := find_present(jobdir)) is not None:
        return store
    raise JobdirLostError(
        f"JOBDIR {jobdir} names a job, but its store {jobdir / _STORE} is not there. Restore it"
        " from a copy, or delete the JOBDIR to start the crawl over."
    )


def ensure_directory(path: Path) -> None:
    """Make *path* and its parents if they are not there, or raise JobdirError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not isinstance(error, (FileExistsError, NotADirectoryError)):
            raise not_writable(path, error) from error
        file = next((name for name in (path, *path.parents) if name.is_file()), path)
        below = "" if file == path else f", and JOBDIR is {path}"
        raise JobdirError(
            f"JOBDIR cannot be used: {file}: Not a directory, but a file{below}."
            " Set JOBDIR to a directory that this user can write to, or move the file away."
        ) from error


@contextmanager
def using(path: Path) -> Iterator[None]:
    """An OSError inside becomes a :class:`JobdirError` about *path*."""
    try:
        yield
    except OSError as error:
        raise not_writable(path, error) from error


def not_writable(path: Path, error: OSError) -> JobdirError:
    """The error for a file of the job directory that cannot be written, or not be opened at all."""
    then = "Set JOBDIR to a directory that this user can write to, on a disk with space left."
    if error.errno in (*_TOO_MANY, errno.ENOLCK):
        then = advise(error.strerror)
    return JobdirError(f"JOBDIR cannot be used: {path}: {error.strerror or error}. {then}")
