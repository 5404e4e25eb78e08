"""What a worker keeps on its own disk, if it has a job directory: the requests are on the server.

Tokens by which the server knows this worker, which has its leases back at once when it is started
again; what it had in flight, which tells what may have killed it; notes of feeds and
``spider.state``.

The server and a directory cannot be written in one step.  Notes are written before the endings
that they belong to are sent: what a note counts as done may be done again, never the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import JobdirMismatchError
from ..contract import JobInfo
from ..store.job_run import JobRun, MemoryRun
from ..store.journal import Journal
from ..store.lease_log import Evidence
from ..store.rows import Rows

#: Names of notes: the shared crawl that a job directory takes part in, its id, and tokens.
CRAWL, _ID, _TOKENS = "shared crawl", "shared crawl id", "shared tokens"
_TOKEN_BYTES = 16


def crawl_of(rows: Rows) -> str | None:
    """The shared crawl that a worker's job directory takes part in; ``None``: it is no worker's."""
    name = rows.note(CRAWL)
    return None if name is None else name.decode()


#: What to do instead, where a crawl can be named.
NAME_CRAWL = "Name the crawl with --shared KEY instead of the JOBDIR."


def refuse_worker(rows: Rows, path: Path, remedy: str) -> None:
    """Refuse the job directory of a worker to what handles crawls of one machine.

    :param remedy: what to do instead, in a sentence.
    :raises JobdirMismatchError: it is one.
    """
    refuse_worker_of(crawl_of(rows), path, remedy)


def refuse_worker_of(name: str | None, path: Path, remedy: str) -> None:
    """The same, if the *name* of the worker's crawl is known otherwise."""
    if name is not None:
        raise JobdirMismatchError(
            f"JOBDIR {path} belongs to a worker of the shared crawl {name}, which has all requests."
            f" {remedy}"
        )


class Record:
    """What a worker keeps on its own.

    :param name: the crawl's name, and where its server is.
    :ivar crawl: id of the crawl that it took part in; empty: of none.
    :ivar tokens: those by which the server may know it.
    """

    def __init__(self, run: JobRun | MemoryRun, name: str = "") -> None:
        self.run = run
        self._name = name.encode()
        self.crawl, joined = run.note(_ID) or b"", run.note(_TOKENS) or b""
        places = range(0, len(joined), _TOKEN_BYTES)
        self.tokens: Sequence[bytes] = [joined[at : at + _TOKEN_BYTES] for at in places]
        self.evidence = run.evidence
        # What is said of a run that has died finished is true only of jobs that one process does.
        self.job: JobInfo = replace(
            run.job,
            died_finished=False,
            durable=True,
            exclusive=False,
            starts_in_turns=True,
            stored_here=False,
        )

    def leave_crawl(self) -> None:
        """Forget the crawl that it took part in: there is another one."""
        self.crawl, self.tokens, self.evidence = b"", (), Evidence()
        self.job = replace(self.job, resumed=False)

    def note_tokens(self, tokens: Sequence[bytes], crawl: bytes) -> None:
        self.run.write_notes({_TOKENS: b"".join(tokens), _ID: crawl, CRAWL: self._name})


def open_record(journal: Journal, name: str) -> Record:
    """The record in a job directory; nothing there is changed.

    :raises JobdirMismatchError: the directory is another crawl's.
    :raises StoreError: it cannot be read.
    """
    path = journal.jobdir.path
    if journal.counters().accepted:
        raise JobdirMismatchError(
            f"JOBDIR {path} holds a crawl of one machine. Set another JOBDIR for this worker of"
            f" the shared crawl {name}, or unset ALTSCHED_SHARED to go on with it."
        )
    known = crawl_of(journal) or name
    if known != name:
        raise JobdirMismatchError(
            f"JOBDIR {path} belongs to a worker of the shared crawl {known}, not of {name}. Set"
            " another JOBDIR for this worker."
        )
    return Record(JobRun(journal), name)
