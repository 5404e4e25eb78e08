"""What becomes of a job whose files were damaged, and what is kept of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from scrapy import Request, Spider
from scrapy.settings import Settings

from scrapy_altsched.command import check
from scrapy_altsched.command.project import Project
from scrapy_altsched.errors import JobdirError, StoreDamagedError
from scrapy_altsched.frontier import Entry, Options, Order
from scrapy_altsched.frontier.local.frontier import LocalFrontier
from scrapy_altsched.frontier.store.database import RowBatch
from scrapy_altsched.frontier.store.engines import Choice
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.records import Batch
from scrapy_altsched.frontier.store.seen import digest_of, encode_run, run_of
from scrapy_altsched.frontier.store.states import PENDING, decode_value
from scrapy_altsched.frontier.store.view import View
from scrapy_altsched.maintenance.audit import audit
from scrapy_altsched.maintenance.opening import open_frontier
from scrapy_altsched.maintenance.repair import Repair, accept_loss, repair
from scrapy_altsched.maintenance.rewriter import CHUNK
from scrapy_altsched.requests.codec import encode_request, is_whole, locate, url_of

from ..crawls import altsched
from ..damage import (
    DAMAGE,
    ENGINES,
    FILES,
    flip_at,
    keep_from_opening,
    largest_table,
    overwrite_requests,
    remove,
    targets,
)
from ..frontier.test_jobdir import listing as listing_of_all
from ..frontiers import OWNER, journal_of, stored, take, work_off
from ..frontiers import problems_of as stored_problems_of

FIFO = Options(order=Order("slots", "fifo"), memory_requests=50)
SPIDER = Spider(OWNER)


def page(number: int) -> Entry:
    request = Request(f"http://host{number % 3}.example/{number}/{'x' * 40}")
    payload = encode_request(request, SPIDER)
    return Entry(f"{number:020}".encode(), f"host{number % 3}.example", payload=payload)


def open_job(path: Path, engine: Choice = "auto") -> LocalFrontier:
    return open_frontier(path, OWNER, replace(FIFO, store=engine))


@dataclass(frozen=True)
class State:
    """What a job held at a commit."""

    pending: frozenset[bytes]
    done: int


@dataclass(frozen=True)
class Job:
    """A job that died.

    :ivar states: number of each commit -> what the job held then.
    """

    path: Path
    states: dict[int, State]

    @property
    def store(self) -> Path:
        return self.path / "frontier"

    @property
    def last(self) -> int:
        return max(self.states)


class Builder:
    """Crawls an endless site."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}
        self._pending: set[bytes] = set()
        self._number = self._done = 0

    def crawl(self, frontier: LocalFrontier, rounds: int, adds: int, ends: int) -> None:
        self._note(frontier)
        for _ in range(rounds):
            for _ in range(adds):
                self._pending.add(page(self._number).fingerprint)
                frontier.add(page(self._number))
                self._number += 1
            for _ in range(ends):
                lease = take(frontier)
                self._pending.discard(lease.entry.fingerprint)
                frontier.finish(lease)
                self._done += 1
            assert frontier.commit(), "one batch is to be enough"
            self._note(frontier)

    def _note(self, frontier: LocalFrontier) -> None:
        self.states[frontier.run.commit_number] = State(frozenset(self._pending), self._done)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Choice:
    choice: Choice = request.param
    return choice


@pytest.fixture(scope="session")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Choice], Job]:
    """Makes a job of an engine once, with tables and a log, killed in its second run."""

    @cache
    def die(engine: Choice) -> Job:
        path = tmp_path_factory.mktemp("died") / "job"
        builder = Builder()
        frontier = open_job(path, engine)
        builder.crawl(frontier, 10, 150, 30)
        frontier.close()
        builder.states[max(builder.states) + 1] = builder.states[max(builder.states)]
        frontier = open_job(path)
        builder.crawl(frontier, 6, 30, 20)
        image = path.with_name("image")
        shutil.copytree(path, image)
        frontier.abandon()
        return Job(image, builder.states)

    return die


@pytest.fixture
def died(deaths: Callable[[Choice], Job], engine: Choice) -> Job:
    return deaths(engine)


@pytest.fixture
def job(died: Job, tmp_path: Path) -> Job:
    """A copy of it, to be damaged."""
    shutil.copytree(died.path, tmp_path / "job")
    return replace(died, path=tmp_path / "job")


@contextmanager
def damaged(job: Job, name: str, damage: Callable[[Path], None]) -> Iterator[Path]:
    """A copy of the job directory with a damaged file in its store."""
    copy = job.path.with_name(f"{damage.__name__} {name}")
    shutil.copytree(job.path, copy)
    damage(copy / "frontier" / name)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def listing(path: Path) -> dict[str, tuple[int, bytes | None]]:
    """All files, but what SQLite has there while a store is open, and leaves behind."""
    found = listing_of_all(path).items()
    return {
        name: file
        for name, file in found
        if file[1] is not None and not name.endswith("-shm") and (file[1] or "-wal" not in name)
    }


def problems_of(path: Path) -> list[str]:
    """What `scrapy altsched check` finds."""
    options = dict.fromkeys(("repair", "accept_loss", "finished", "json"), False)
    arguments = Namespace(jobdir=path, shared=None, spider=None, **options)
    code = check.run(arguments, Project(Settings()))
    try:
        with View(path / "frontier") as view:
            found = audit(view)
    except StoreDamagedError as error:
        found = [str(error)]
    return found or (["something beside the rows"] if code else [])


def refusal_of(path: Path) -> str | None:
    """Why a job cannot be opened; ``None``: it can."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    try:
        open_job(copy).abandon()
    except (StoreDamagedError, JobdirError) as error:
        return str(error).replace(str(copy), str(path))
    finally:
        shutil.rmtree(copy)
    return None


def state_of(frontier: LocalFrontier) -> tuple[State | None, str | None]:
    """What a job holds, or why not all of it can be read."""
    journal = journal_of(frontier)
    try:
        pending = frozenset(decode_value(value).fingerprint for _, value in journal.pending())
        for _ in journal.seen():
            pass
    except StoreDamagedError as error:
        return None, str(error)
    return State(pending, journal.counters().done), None


# A job whose files are damaged


def test_a_damaged_store_can_be_reopened_while_its_error_is_at_hand(job: Job) -> None:
    overwrite_requests(largest_table(job.store))
    frontier = open_job(job.path)
    journal = journal_of(frontier)
    for read in (
        lambda: list(journal.pending()),
        lambda: journal.database.read("pending", b"", b"", 9**9, 9**9),
    ):
        try:
            read()
        except StoreDamagedError:
            journal.reopen()
        else:
            pytest.fail("the damage was not met")
    frontier.abandon()


@pytest.mark.long
@pytest.mark.parametrize(("engine", "kind"), FILES, indirect=["engine"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_job_goes_on_from_a_state_it_was_in_and_says_so_or_is_refused(
    job: Job, kind: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    for name in targets(job.store, kind):
        with damaged(job, name, damage) as path:
            refusal = refusal_of(path)
            if refusal is not None:
                assert str(path / "frontier") in refusal
                assert f"scrapy altsched check {path} --repair" in refusal
                continue
            caplog.clear()
            frontier = open_job(path)
            # The commit before the one that opened it.
            commit = frontier.run.commit_number - 1
            state, failure = state_of(frontier)
            if failure is None:
                assert state == job.states[commit]
            else:
                # It is met when it is read, and never passed over.
                assert str(path / "frontier") in failure
                assert frontier.counts().unaccounted == 0
            if commit < job.last:
                [warning] = [text for text in caplog.messages if "is rolled back" in text]
                assert f"from commit {job.last} to {commit}" in warning
                lost = job.states[job.last].done - job.states[commit].done
                assert f"done: {lost})" in warning
                assert frontier.job.rolled_back == job.last - commit
            else:
                assert frontier.job.rolled_back == 0
            frontier.abandon()


@pytest.mark.long
def test_a_log_that_is_cut_anywhere_leaves_a_whole_state(job: Job) -> None:
    """What a kill in the middle of a write leaves: the log, cut at any byte."""
    [name] = targets(job.store, "log")
    size = (job.path / "frontier" / name).stat().st_size
    reached = set()
    for length in range(0, size, max(1, size // 150)):
        with damaged(job, name, lambda path, length=length: os.truncate(path, length)) as path:  # type: ignore[misc]
            frontier = open_job(path)
            commit = frontier.run.commit_number - 1
            reached.add(commit)
            assert state_of(frontier) == (job.states[commit], None)
            assert stored_problems_of(frontier) == []
            assert frontier.job.rolled_back == job.last - commit
            frontier.abandon()
    assert len(reached) >= 6


def test_the_log_of_a_job_without_its_note_of_the_last_commit_is_not_missed(job: Job) -> None:
    (job.path / "altsched.commit").unlink()
    frontier = open_job(job.path)
    assert frontier.job.rolled_back == 0
    assert state_of(frontier) == (job.states[job.last], None)
    frontier.close()


@pytest.mark.parametrize("content", [b"", b"garbage\xff", b"a b c d"])
def test_a_damaged_note_of_the_last_commit_harms_nothing(job: Job, content: bytes) -> None:
    (job.path / "altsched.commit").write_bytes(content)
    frontier = open_job(job.path)
    assert frontier.job.rolled_back == 0
    frontier.close()
    assert problems_of(job.path) == []


def test_a_setback_is_said_once(job: Job) -> None:
    [name] = targets(job.store, "log")
    remove(job.store / name)
    frontier = open_job(job.path)
    assert frontier.job.rolled_back
    frontier.close()
    frontier = open_job(job.path)
    assert frontier.job.rolled_back == 0
    frontier.close()


def test_a_new_job_in_an_old_place_is_not_taken_for_a_setback(job: Job) -> None:
    shutil.rmtree(job.path / "frontier")
    (job.path / "altsched.json").unlink()
    frontier = open_job(job.path)
    assert frontier.job.rolled_back == 0
    frontier.close()


def test_what_was_lost_with_the_log_can_be_added_again(job: Job) -> None:
    [name] = targets(job.store, "log")
    remove(job.store / name)
    frontier = open_job(job.path)
    known = 1500  # of the first run
    assert frontier.add(page(known - 1)).value == "seen"
    assert frontier.add(page(known)).value == "added"
    frontier.close()


# The check


@pytest.mark.long
@pytest.mark.parametrize(("engine", "kind"), FILES, indirect=["engine"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_the_check_finds_every_damage_and_changes_nothing(
    job: Job, kind: str, damage: Callable[[Path], None]
) -> None:
    for name in targets(job.store, kind):
        with damaged(job, name, damage) as path:
            before = listing(path)
            found = problems_of(path)
            assert listing(path) == before
            if refusal_of(path) is not None:
                assert found, name
                continue
            frontier = open_job(path)
            _, failure = state_of(frontier)
            if frontier.job.rolled_back or failure is not None:
                assert found, name
            frontier.abandon()


def test_a_good_job_is_good(job: Job) -> None:
    before = listing(job.path)
    assert problems_of(job.path) == []
    assert listing(job.path) == before


CRAWLER = """
import sys
from pathlib import Path
from tests.frontiers import journal_of
from tests.maintenance.test_repair import Builder, open_job

frontier = open_job(Path(sys.argv[1]), sys.argv[2])
print("open", flush=True)
builder = Builder()
while True:
    builder.crawl(frontier, 25, 200, 190)
    # Tables are written and merged while others look.
    journal_of(frontier).database.flush()
"""


def test_a_job_can_be_checked_while_a_crawl_is_at_work_on_it(
    tmp_path: Path, engine: Choice
) -> None:
    path = tmp_path / "job"
    crawler = subprocess.Popen(
        [sys.executable, "-c", CRAWLER, path, engine], stdout=subprocess.PIPE
    )
    try:
        assert crawler.stdout is not None
        assert crawler.stdout.readline() == b"open\n"
        commits = set()
        while len(commits) < 8:
            with View(path / "frontier") as view:
                assert audit(view) == []
                commits.add(view.stored_commit())
            assert crawler.poll() is None
    finally:
        crawler.kill()
        crawler.wait()


@pytest.mark.rocksdb
def test_a_table_that_has_come_and_gone_while_a_job_is_looked_into_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontier = open_job(tmp_path / "job", "rocksdb")
    builder = Builder()
    builder.crawl(frontier, 2, 10, 5)
    store = tmp_path / "job" / "frontier"
    journal_of(frontier).database.flush()
    before = tmp_path / "before"
    shutil.copytree(store, before)
    builder.crawl(frontier, 2, 10, 5)
    journal_of(frontier).database.flush()
    [manifest] = store.glob("MANIFEST-*")
    later = manifest.read_bytes()
    frontier.abandon()
    # Its list of tables names some that are not there; their names tell nothing of that.
    earlier = (before / manifest.name).read_bytes()
    (before / manifest.name).write_bytes(later)

    attempts = 0
    from scrapy_altsched.frontier.store.rocksdb.database import RocksDatabase

    class Interrupted(RocksDatabase):
        def open_read_only(
            self, place: Path, families: Sequence[str] | None = None
        ) -> StoreDamagedError | None:
            nonlocal attempts
            attempts += 1
            try:
                return super().open_read_only(place, families)
            except StoreDamagedError:
                (before / manifest.name).write_bytes(earlier)
                raise

    monkeypatch.setattr("scrapy_altsched.frontier.store.rocksdb.database.ENGINE", Interrupted)
    with View(before) as view:
        assert attempts == 2
        assert audit(view) == []


def test_the_command_says_what_is_good_and_what_is_not(job: Job) -> None:
    run = altsched("check", job.path)
    assert run.returncode == 0, run.stderr
    assert "good" in run.stdout
    assert f"{len(job.states[job.last].pending):,} pending" in run.stdout
    overwrite_requests(largest_table(job.store))
    run = altsched("check", job.path)
    assert run.returncode == 1
    assert "Not all of 'pending' can be read" in run.stdout
    run = altsched("check", "--repair", job.path)
    assert run.returncode == 1
    assert "could not be read" in run.stdout
    assert (job.path / "frontier.damaged-1").is_dir()
    run = altsched("check", "--accept-loss", job.path)
    assert run.returncode == 0, run.stdout
    assert "given up" in run.stdout
    assert altsched("check", "--repair", job.path).returncode == 0
    assert not (job.path / "frontier.damaged-2").exists()


@pytest.mark.parametrize("arguments", [(), ("--repair",), ("--accept-loss",)])
def test_the_command_refuses_what_is_no_job(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = altsched("check", tmp_path, *arguments)
    assert run.returncode == 1
    assert "holds no job of scrapy_altsched" in run.stderr
    assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_does_not_say_whose_it_is_can_be_checked_and_repaired(job: Job) -> None:
    (job.path / "altsched.json").unlink()
    keep_from_opening(job.store)
    run = altsched("check", "--repair", job.path)
    assert run.returncode == 1
    assert "--spider NAME" in run.stderr
    run = altsched("check", "--repair", job.path, "--spider", OWNER)
    assert run.returncode == 0, run.stdout + run.stderr
    frontier = open_job(job.path)
    assert state_of(frontier) == (job.states[job.last], None)
    frontier.close()


# The repair


def mend(path: Path) -> Repair:
    return repair(path, OWNER, is_whole, locate)


@pytest.mark.long
@pytest.mark.parametrize(("engine", "kind"), FILES, indirect=["engine"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_repair_keeps_what_can_be_read_and_says_what_it_could_not(
    job: Job, kind: str, damage: Callable[[Path], None]
) -> None:
    every = frozenset().union(*(state.pending for state in job.states.values()))
    for name in targets(job.store, kind):
        with damaged(job, name, damage) as path:
            result = mend(path)
            with View(path / "frontier") as view:
                problems = audit(view)
                pending = {decode_value(value).fingerprint for _, value in view.pending()}
                counters = view.counters()
            # Of a fingerprint itself a bit may be flipped.
            assert len(pending - every) <= 1
            frontier = open_job(path)
            assert frontier.job.rolled_back == 0
            counts = frontier.counts()
            assert counts.unaccounted >= 0
            if result.damage:
                assert frontier.job.damage is not None
                assert result.damage in frontier.job.damage
                assert result.losses
            else:
                assert problems == []
                assert frontier.job.damage is None
                # All of a state that the job was in, and perhaps what was done since.
                [state] = {s for s in job.states.values() if s.done == counters.done}
                assert len(pending) == len(state.pending)
                assert len(pending - state.pending) <= 1
            assert len(work_off(frontier)) == len(pending)
            frontier.abandon()


def test_one_damaged_place_costs_no_more_than_its_block(job: Job) -> None:
    everything = urls(job.path)
    lost = []
    table = largest_table(job.store).name
    for damage in (overwrite_requests, *(flip_at(part / 20) for part in range(1, 20, 4))):
        with damaged(job, table, damage) as path:
            result = mend(path)
            kept = urls(path)
            assert kept <= everything
            lost.append(len(everything - kept))
            if lost[-1]:
                assert (
                    f"{lost[-1]} request{'s' * (lost[-1] > 1)} could not be read" in result.damage
                )
    print(f"of {len(everything)} requests are lost: {lost}")
    # A block has four kilobytes, compressed, and a request more than a hundred bytes.
    assert 0 < lost[0] < 150
    assert max(lost) < 150
    # Where only a bit is wrong, most of the block's requests are whole.
    assert sum(count < 10 for count in lost) >= 2


#: A length as RocksDB writes it, 8 bytes short of four gigabytes: together with that of the key,
#: which is more than 8, it is small again in 32 bits.
TOO_LONG = b"\xf8\xff\xff\xff\x0f"


def write_uncompressed(store: Path, family: str) -> None:
    """Have tables of RocksDB be as earlier versions wrote them."""
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    families = dict.fromkeys(rocksdict.Rdict.list_cf(str(store), options), options)
    families[family] = rocksdict.Options(raw_mode=True)
    families[family].set_compression_type(rocksdict.DBCompressionType.none())
    database = rocksdict.Rdict(str(store), options, column_families=families)
    rows = database.get_column_family(family)
    for key, value in list(rows.items()):
        rows[key] = value
    rows.flush()
    rows.compact_range(None, None)
    rows.close()
    database.close()


@pytest.mark.parametrize("engine", ENGINES[:1], indirect=True)
def test_a_length_that_leads_rocksdb_out_of_a_block_costs_no_more_than_its_block(job: Job) -> None:
    everything = urls(job.path)
    write_uncompressed(job.store, PENDING.family)
    with View(job.path / "frontier") as view:
        keys = [key for key, _ in view.pending()]
    table = largest_table(job.store)
    content = bytearray(table.read_bytes())
    # A row begins with three lengths, here in a byte each: of what its key shares with the one
    # before, of the rest of the key, which follows, and of the value.  Few keys are there whole.
    whole = [place for key in keys if (place := content.find(key)) > 0]
    place = whole[len(whole) // 2]
    row = place + content[place - 2] + content[place - 1]
    length, rest = row + 2, content[row + 3 : row + 3 + content[row + 1]]
    content[length : length + len(TOO_LONG) + len(rest)] = TOO_LONG + rest
    table.write_bytes(content)
    run = altsched("check", "--repair", job.path)
    assert run.returncode == 1, run.stderr
    kept = urls(job.path)
    assert kept < everything
    assert f"{len(everything - kept)} requests could not be read" in run.stdout
    assert len(everything - kept) < 150


@pytest.mark.rocksdb
def test_a_list_of_files_whose_end_is_torn_costs_nothing(tmp_path: Path) -> None:
    """As by a power cut while a store is opened: of young jobs, some rows are in its log only."""
    frontier = open_job(tmp_path / "job", "rocksdb")
    for number in range(3):
        frontier.add(page(number))
    frontier.commit()
    died = tmp_path / "died"
    shutil.copytree(tmp_path / "job", died)
    frontier.close()
    (manifest,) = (died / "frontier").glob("MANIFEST-*")
    with manifest.open("ab") as file:
        # The head of an edit, and what was to follow.
        file.write(b"\1\2\3\4\x60\0\1" + bytes(200))
    # One that was being written, as no list of files names it.
    (died / "frontier" / "000099.sst").write_bytes(bytes(1_000))
    # A family whose name cannot be read, and which has nothing in the log.
    content = manifest.read_bytes()
    assert content.count(b"\xc9\x01\x06failed") == 1
    manifest.write_bytes(content.replace(b"\xc9\x01\x06failed", b"\xc9\x01\x06fai?ed"))
    # Nothing forces it to the disk.
    (died / "altsched.commit").unlink()
    assert refusal_of(died) is not None
    result = mend(died)
    assert (result.damage, problems_of(died)) == ("", [])
    assert urls(died) == {url_of(page(number).payload or b"") for number in range(3)}


@pytest.mark.rocksdb
def test_a_log_that_comes_after_a_lost_end_of_another_is_dropped(tmp_path: Path) -> None:
    frontier = open_job(tmp_path / "job", "rocksdb")
    for number in range(4):
        frontier.add(page(number))
        frontier.commit()
    last = frontier.run.commit_number
    died = tmp_path / "died"
    shutil.copytree(tmp_path / "job", died)
    frontier.close()
    # One record says how it is compressed, and one is for each commit: checksum, size, kind, and
    # what it says.
    (log,) = (path for path in (died / "frontier").glob("*.log") if path.stat().st_size)
    content, records = log.read_bytes(), []
    while content:
        size = 7 + int.from_bytes(content[4:6], "little")
        records.append(content[:size])
        content = content[size:]
    log.write_bytes(b"".join(records[:-2]))
    torn = tmp_path / "torn"
    log.with_name(f"{int(log.stem) + 20:06}.log").write_bytes(records[0] + records[-1])
    shutil.copytree(died, torn)
    # Refused, it is as it was: what a repair needs is still there.
    with pytest.raises(StoreDamagedError) as caught:
        open_job(died)
    assert f"lacks commits {last - 1} to {last - 1}, though it has later ones" in str(caught.value)
    result = mend(died)
    assert result.losses == [f"Commit {last - 1} is lost: all after it was dropped."]
    assert (result.damage, problems_of(died)) == ("", [])
    assert urls(died) == {url_of(page(number).payload or b"") for number in range(2)}
    # Where the record itself is torn, to open the job is enough.
    with (torn / "frontier" / log.name).open("ab") as file:
        file.write(records[-2][:-3])
    open_job(torn).close()
    assert (problems_of(torn), urls(torn)) == ([], urls(died))


def urls(path: Path) -> set[str | None]:
    with View(path / "frontier") as view:
        return {url_of(decode_value(value).payload or b"") for _, value in view.pending()}


def test_what_a_repair_could_not_keep_keeps_the_job_from_being_finished(job: Job) -> None:
    overwrite_requests(largest_table(job.store))
    assert mend(job.path).damage
    frontier = open_job(job.path)
    missing = frontier.counts().unaccounted
    assert missing
    work_off(frontier)
    frontier.close()
    assert accept_loss(job.path, OWNER) == missing
    frontier = open_job(job.path)
    assert frontier.job.damage is None
    assert frontier.counts().unaccounted == 0
    frontier.close()


def test_a_repair_brings_the_numbers_into_line(job: Job) -> None:
    journal = Journal(job.path, OWNER)
    key, _ = next(journal.pending())
    (first, count, name), *_, (last, _, _) = journal.slots()
    wrong = [(first.to_bytes(8, "big"), count + 7, name), (last.to_bytes(8, "big"), 0, "")]
    seen = journal.counters().seen
    batch = stored(replace(journal.counters(), dead=5, seen=10_000), removed=[key])
    batch.slots += wrong
    journal.write(batch)
    journal.close()
    sentence = f"The number of seen fingerprints is {seen}, not 10000."
    assert sentence in str(problems_of(job.path))
    result = mend(job.path)
    assert "1 request could not be read" in result.damage
    accept_loss(job.path, OWNER)
    assert problems_of(job.path) == []
    frontier = open_job(job.path)
    assert frontier.counts().seen == seen
    assert len(work_off(frontier)) == len(job.states[job.last].pending) - 1
    frontier.close()


def test_a_slot_whose_row_is_cut_short_loses_its_name_and_no_request(job: Job) -> None:
    journal = Journal(job.path, OWNER)
    database = journal.database
    (first, _, _), *_ = journal.slots()
    rows = RowBatch()
    rows.put("slots", [(first.to_bytes(8, "big"), b"cut")])
    database.write(rows, wait=True)
    journal.close()
    mend(job.path)
    assert problems_of(job.path) == []
    frontier = open_job(job.path)
    assert len(work_off(frontier)) == len(job.states[job.last].pending)
    frontier.close()


def test_the_order_goes_on_after_a_repair(job: Job, tmp_path: Path) -> None:
    shutil.copytree(job.path, tmp_path / "good")
    good = open_job(tmp_path / "good")
    keep_from_opening(job.store)
    mend(job.path)
    frontier = open_job(job.path)
    assert work_off(frontier) == work_off(good)
    good.close()
    frontier.close()


def test_a_slot_whose_name_cannot_be_read_is_named_again(job: Job) -> None:
    journal = Journal(job.path, OWNER)
    slot_id, _, _ = next(journal.slots())
    rows = RowBatch()
    rows.put("slots", [(slot_id.to_bytes(8, "big"), bytes(8) + b"\xff")])
    journal.database.write(rows, wait=True)
    journal.close()
    (problem,) = problems_of(job.path)
    assert "Not all of 'slots' can be read." in problem.sentence
    assert f"The name of slot {slot_id} cannot be read." in mend(job.path).losses
    assert problems_of(job.path) == []
    frontier = open_job(job.path)
    assert len(work_off(frontier)) == len(job.states[job.last].pending)
    frontier.close()


REPAIRER = """
import os, signal, sys
from pathlib import Path
from scrapy_altsched.maintenance.repair import repair

calls = int(sys.argv[2])

def count(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.mkdir", "os.truncate", "shutil.rmtree"):
        calls -= 1
        if not calls:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
repair(Path(sys.argv[1]), "spider", lambda payload: True)
"""


def test_a_repair_that_is_killed_anywhere_can_be_done_again(job: Job, tmp_path: Path) -> None:
    keep_from_opening(job.store)
    killed = 0
    for step in range(1, 300):
        path = tmp_path / str(step)
        shutil.copytree(job.path, path)
        command = [sys.executable, "-c", REPAIRER, path, str(step)]
        if subprocess.run(command, check=False).returncode != -signal.SIGKILL:
            break
        killed += 1
        # It is the damaged store or the repaired one, and never none.
        if refusal_of(path) is not None:
            mend(path)
        frontier = open_job(path)
        assert state_of(frontier) == (job.states[job.last], None)
        frontier.abandon()
        shutil.rmtree(path)
    assert 10 <= killed < 299


def test_a_running_crawls_job_is_not_repaired(job: Job) -> None:
    frontier = open_job(job.path)
    run = altsched("check", "--accept-loss", job.path)
    assert run.returncode == 1
    assert "in use by a running crawl" in run.stderr
    frontier.close()


def test_repair_keeps_in_which_run_a_fingerprint_was_seen(tmp_path: Path, engine: Choice) -> None:
    path = tmp_path / "job"
    journal = Journal(path, OWNER, engine=engine)
    runs = {b"%020d" % number: number % 4 for number in range(CHUNK + 10)}
    for run in range(4):
        seen = [digest_of(fingerprint) for fingerprint, of in runs.items() if of == run]
        journal.write(Batch(journal.counters(), seen=seen, seen_value=encode_run(run)))
    journal.close()
    repaired = repair(path, OWNER, lambda _: True)
    assert repaired.kept["seen"] == len(runs)
    journal = Journal(path, OWNER)
    expected = {digest_of(fingerprint): run for fingerprint, run in runs.items()}
    assert {key: run_of(value) for key, value in journal.seen()} == expected
    journal.close()


def test_a_damaged_number_of_a_run_is_not_taken_for_one() -> None:
    with pytest.raises(ValueError, match="0102 does not say what is known of a page"):
        run_of(b"\1\2")
