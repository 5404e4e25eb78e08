"""What a worker keeps on its own disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrapy_altsched.errors import JobdirLockedError, JobdirMismatchError
from scrapy_altsched.frontier.shared.record import CRAWL, Record, crawl_of
from scrapy_altsched.frontier.shared.record import open_record as open_in
from scrapy_altsched.frontier.store.job_run import JobRun
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.view import View

from ...frontiers import OWNER

TOKENS = [bytes([number]) * 16 for number in (1, 2)]


def open_record(path: Path, key: str = "crawl", address: str = "here") -> Record:
    journal = Journal(path, OWNER)
    try:
        return open_in(journal, f"{key!r} on the Redis server at {address}")
    except BaseException:
        journal.close()
        raise


def test_tokens_and_notes_survive_a_death(tmp_path: Path) -> None:
    record = open_record(tmp_path)
    assert (record.crawl, list(record.tokens), record.job.resumed) == (b"", [], False)
    record.note_tokens(TOKENS, b"id")
    record.run.write_notes({"name": b"note"})
    assert not record.run.changed({"name": b"note"})
    assert record.run.changed({"name": b"other"})
    record.run.abandon()
    record = open_record(tmp_path)
    assert (record.crawl, list(record.tokens), record.job.resumed) == (b"id", TOKENS, True)
    assert record.run.note("name") == b"note"
    record.leave_crawl()
    assert (record.crawl, list(record.tokens), record.job.resumed) == (b"", [], False)
    record.run.abandon()


def test_a_finished_one_is_not_resumed(tmp_path: Path) -> None:
    record = open_record(tmp_path)
    record.note_tokens(TOKENS, b"id")
    record.run.finish(finished=True)
    record.run.abandon()
    record.run.end()
    record = open_record(tmp_path)
    assert not record.job.resumed
    assert record.job.run == 2
    record.run.abandon()


def test_one_that_died_between_its_finish_and_its_end_is_resumed(tmp_path: Path) -> None:
    run = open_record(tmp_path).run
    assert isinstance(run, JobRun)
    run.finish(finished=True)
    run.abandon()
    run.journal.jobdir.release()  # as a death does
    record = open_record(tmp_path)
    assert record.job.resumed
    record.leave_crawl()
    assert not record.job.resumed
    record.run.abandon()


def test_the_end_of_a_finished_run_is_noted_when_the_process_ends(tmp_path: Path) -> None:
    run = open_record(tmp_path).run
    assert isinstance(run, JobRun)
    jobdir = run.journal.jobdir
    run.finish(finished=True)
    run.abandon()
    assert not jobdir.has_ended(1)
    with pytest.raises(JobdirLockedError):
        Journal(tmp_path, OWNER)
    run.end()
    assert jobdir.has_ended(1)
    Journal(tmp_path, OWNER).close()


@pytest.mark.parametrize(("key", "address"), [("other", "here"), ("crawl", "elsewhere")])
def test_it_belongs_to_one_crawl_on_one_server(tmp_path: Path, key: str, address: str) -> None:
    record = open_record(tmp_path)
    record.note_tokens(TOKENS, b"id")
    record.run.abandon()
    with pytest.raises(
        JobdirMismatchError, match=f"not of '{key}' on the Redis server at {address}"
    ):
        open_record(tmp_path, key, address)
    with View(tmp_path / "frontier") as view:
        assert crawl_of(view) == "'crawl' on the Redis server at here"
        assert view.note(CRAWL) == b"'crawl' on the Redis server at here"
