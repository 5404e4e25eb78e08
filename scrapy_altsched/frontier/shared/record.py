"""What a worker keeps on its own disk, if it has a job directory.

The requests are on the server.  Here are the tokens by which it knows this worker, so that a worker
that is started again has its leases back at once; what it had in flight, which tells who may have
killed it; and the notes of feeds and ``spider.state``.

The server and a directory cannot be written in one step.  Notes are written before the endings
that they belong to are sent: what a note counts as done may be done again, never the reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ...errors import JobdirMismatchError, StoreError
from ..contract import JobInfo
from ..store.journal import Journal
from ..store.lease_log import Evidence, LeaseLog, NullLeaseLog
from ..store.records import Batch
from ..store.rows import Rows

#: Names of notes: the shared crawl that a job directory takes part in, its id, and tokens.
CRAWL = "shared crawl"
_ID = "shared crawl id"
_TOKENS = "shared tokens"
_TOKEN_BYTES = 16


def crawl_of(rows: Rows) -> str | None:
    """The shared crawl that a worker's job directory takes part in; ``None``: it is no worker's.

    :raises StoreError: it cannot be read.
    """
    name = rows.note(CRAWL)
    return None if name is None else name.decode()


def refuse_worker(rows: Rows, path: Path, remedy: str) -> None:
    """Refuse the job directory of a worker to what handles crawls of one machine.

    :param path: the job directory.
    :param remedy: what to do instead, in a sentence.
    :raises JobdirMismatchError: it is one.
    :raises StoreError: it cannot be read.
    """
    name = crawl_of(rows)
    if name is not None:
        raise JobdirMismatchError(
            f"JOBDIR {path} belongs to a worker of the shared crawl {name}, which has all requests."
            f" {remedy}"
        )


class Record(Protocol):
    """What a worker keeps on its own.

    :ivar crawl: id of the crawl that it took part in; empty: of none.
    :ivar tokens: those by which the server may know it.
    :ivar evidence: what is known of how it died.
    :ivar leases: where leases are recorded.
    :ivar job: what is known of its job.
    """

    crawl: bytes
    tokens: Sequence[bytes]
    evidence: Evidence
    leases: LeaseLog | NullLeaseLog
    job: JobInfo

    def leave_crawl(self) -> None:
        """Forget the crawl that it took part in: there is another one."""

    def note_tokens(self, tokens: Sequence[bytes], crawl: bytes) -> None:
        """Write by which tokens the server may know this worker.

        :raises StoreError: it could not be written.
        """

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]]) -> None:
        """Begin the log of leases again: see :meth:`~..store.lease_log.LeaseLog.restart`."""

    def note(self, name: str) -> bytes | None:
        """A note as it was last written."""

    def has_changed(self, notes: Mapping[str, bytes]) -> bool:
        """Whether any of these notes is not written yet."""

    def write(self, notes: Mapping[str, bytes]) -> None:
        """Write notes.

        :raises StoreError: it failed.
        """

    def sync(self) -> None:
        """Make what was written survive the death of the machine."""

    def recover(self) -> None:
        """Reopen after a failed write.

        :raises StoreError: it cannot be.
        """

    def finish(self, *, finished: bool) -> None:
        """Note that this run has ended, and whether the crawl is *finished*.

        :raises StoreError: it could not be written.
        """

    def abandon(self, *, hold: bool) -> None:
        """Free every resource; *hold*: but the directory, until :meth:`end`."""

    def end(self) -> None:
        """Let others have the directory."""


class NoRecord:
    """For a worker without a job directory: see :class:`Record`."""

    crawl = b""
    tokens: Sequence[bytes] = ()

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.leases: LeaseLog | NullLeaseLog = NullLeaseLog()
        self.job = JobInfo(durable=True, exclusive=False, starts_in_turns=True, stored_here=False)

    def leave_crawl(self) -> None:
        pass

    def note_tokens(self, tokens: Sequence[bytes], crawl: bytes) -> None:
        pass

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]]) -> None:
        pass

    def note(self, _: str) -> bytes | None:
        return None

    def has_changed(self, _: Mapping[str, bytes]) -> bool:
        return False

    def write(self, notes: Mapping[str, bytes]) -> None:
        pass

    def sync(self) -> None:
        pass

    def recover(self) -> None:
        pass

    def finish(self, *, finished: bool) -> None:
        pass

    def abandon(self, *, hold: bool) -> None:
        pass

    def end(self) -> None:
        pass


class JobRecord:
    """A :class:`Record` in a job directory.

    :param journal: an open one, of no local crawl.
    :param key: the crawl's name.
    :param address: where its server is.
    :raises JobdirMismatchError: the directory is another crawl's; nothing in it was changed.
    :raises StoreError: it cannot be read.
    """

    def __init__(self, journal: Journal, key: str, address: str) -> None:
        self._journal = journal
        name = f"{key!r} on the Redis server at {address}"
        counters = journal.counters()
        known = (journal.note(CRAWL) or b"").decode()
        path = journal.jobdir.path
        if counters.accepted:
            raise JobdirMismatchError(
                f"JOBDIR {path} holds a crawl of one machine. Set another JOBDIR for this worker of"
                f" the shared crawl {name}, or unset ALTSCHED_SHARED to go on with it."
            )
        if known and known != name:
            raise JobdirMismatchError(
                f"JOBDIR {path} belongs to a worker of the shared crawl {known}, not of {name}. Set"
                " another JOBDIR for this worker."
            )
        tokens = journal.note(_TOKENS) or b""
        self.crawl = journal.note(_ID) or b""
        self.tokens: Sequence[bytes] = [
            tokens[at : at + _TOKEN_BYTES] for at in range(0, len(tokens), _TOKEN_BYTES)
        ]
        self.evidence = journal.leases.read(counters.run)
        self.leases: LeaseLog | NullLeaseLog = journal.leases
        resumed = counters.run > 0 and not counters.finished
        self._counters = replace(counters, run=counters.run + 1, finished=False)
        self._written: dict[str, bytes] = {CRAWL: name.encode()}
        self._is_held = False
        self.job = JobInfo(
            run=self._counters.run,
            resumed=resumed,
            durable=True,
            exclusive=False,
            starts_in_turns=True,
            stored_here=False,
            path=journal.path,
            place=journal.jobdir.place,
            rolled_back=journal.rolled_back,
        )

    def leave_crawl(self) -> None:
        self.crawl, self.tokens, self.evidence = b"", (), Evidence()
        self.job = replace(self.job, resumed=False)

    def note_tokens(self, tokens: Sequence[bytes], crawl: bytes) -> None:
        notes = {_TOKENS: b"".join(tokens), _ID: crawl, CRAWL: self._written[CRAWL]}
        self._journal.write(Batch(self._counters, notes=notes), wait=True)

    def restart_leases(self, held: Iterable[tuple[bytes, bool, bool]]) -> None:
        with suppress(OSError):
            self._journal.leases.restart(self._counters.run, held)

    def note(self, name: str) -> bytes | None:
        return self._journal.note(name)

    def has_changed(self, notes: Mapping[str, bytes]) -> bool:
        return any(self._written.get(name) != note for name, note in notes.items())

    def write(self, notes: Mapping[str, bytes]) -> None:
        changed = {name: note for name, note in notes.items() if self._written.get(name) != note}
        if changed:
            self._journal.write(Batch(self._counters, notes=changed), wait=True)
            self._written.update(changed)

    def sync(self) -> None:
        self._journal.sync()

    def recover(self) -> None:
        self._journal.reopen()

    def finish(self, *, finished: bool) -> None:
        self._journal.write(Batch(replace(self._counters, finished=finished)), wait=True)
        self.restart_leases(())
        self._journal.sync()

    def abandon(self, *, hold: bool) -> None:
        self._is_held = hold
        with suppress(StoreError):
            self._journal.close(hold=hold)

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._journal.jobdir.release()
