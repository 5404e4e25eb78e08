"""What a worker keeps on its own disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrapy_altsched.errors import JobdirMismatchError
from scrapy_altsched.frontier.shared.record import CRAWL, JobRecord, crawl_of
from scrapy_altsched.frontier.store.journal import Journal
from scrapy_altsched.frontier.store.view import View

from ...frontiers import OWNER

TOKENS = [bytes([number]) * 16 for number in (1, 2)]


def open_record(path: Path, key: str = "crawl", address: str = "here") -> JobRecord:
    journal = Journal(path, OWNER)
    try:
        return JobRecord(journal, key, address)
    except BaseException:
        journal.close()
        raise


def test_tokens_and_notes_survive_a_death(tmp_path: Path) -> None:
    record = open_record(tmp_path)
    assert (record.crawl, list(record.tokens), record.job.resumed) == (b"", [], False)
    record.note_tokens(TOKENS, b"id")
    record.write({"name": b"note"})
    assert not record.has_changed({"name": b"note"})
    assert record.has_changed({"name": b"other"})
    record.abandon(hold=False)
    record = open_record(tmp_path)
    assert (record.crawl, list(record.tokens), record.job.resumed) == (b"id", TOKENS, True)
    assert record.note("name") == b"note"
    record.leave_crawl()
    assert (record.crawl, list(record.tokens), record.job.resumed) == (b"", [], False)
    record.abandon(hold=False)


def test_a_finished_one_is_not_resumed(tmp_path: Path) -> None:
    record = open_record(tmp_path)
    record.note_tokens(TOKENS, b"id")
    record.finish(finished=True)
    record.abandon(hold=False)
    record = open_record(tmp_path)
    assert not record.job.resumed
    assert record.job.run == 2
    record.abandon(hold=False)


@pytest.mark.parametrize(("key", "address"), [("other", "here"), ("crawl", "elsewhere")])
def test_it_belongs_to_one_crawl_on_one_server(tmp_path: Path, key: str, address: str) -> None:
    record = open_record(tmp_path)
    record.note_tokens(TOKENS, b"id")
    record.abandon(hold=False)
    with pytest.raises(
        JobdirMismatchError, match=f"not of '{key}' on the Redis server at {address}"
    ):
        open_record(tmp_path, key, address)
    with View(tmp_path / "frontier") as view:
        assert crawl_of(view) == "'crawl' on the Redis server at here"
        assert view.note(CRAWL) == b"'crawl' on the Redis server at here"
