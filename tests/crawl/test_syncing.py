"""What the thread that forces commits to the disk has forced when it says so."""

from __future__ import annotations

from threading import Event

from scrapy_altsched.crawl.syncing import Syncer


def test_what_is_written_during_a_sync_is_forced_by_one_that_begins_later() -> None:
    written, forced = ["commit"], []
    has_begun = Event()

    def sync() -> None:
        forced.append(written[-1])
        has_begun.set()

    syncer = Syncer(sync)
    syncer.ask(1)
    assert has_begun.wait(60)
    written.append("note")
    assert syncer.finish(1, anew=True)
    assert forced == ["commit", "note"]
    # Of a commit that the disk has, nothing is to be announced once more.
    assert not syncer.finish(1)
    syncer.stop()


def test_a_commit_is_news_although_its_first_sync_was_discarded() -> None:
    syncer = Syncer(lambda: None)
    syncer.ask(1)
    syncer.discard(60)
    assert syncer.finish(1)
    assert not syncer.finish(1)
    syncer.stop()
