"""Requests that stay on their worker, and what others learn of them."""

from __future__ import annotations

import redis

from scrapy_altsched.frontier import Options, Verdict

from ...frontiers import page, take
from ...shared import SettledShared


def test_one_is_seen_by_others_from_the_commit_after_its_end_on(client: redis.Redis) -> None:
    """What it led to, such as rows of a feed, is saved by that commit: before, it may be lost."""
    worker, other = (SettledShared(Options(), client) for _ in range(2))
    assert worker.add(page("a", stored=False)) is Verdict.ADDED
    assert worker.add(page("a", stored=False)) is Verdict.SEEN
    lease = take(worker)  # type: ignore[arg-type]
    worker._frontier.finish(lease)
    worker.send()
    assert other.add(page("a", stored=False)) is Verdict.ADDED
    assert worker._frontier.has_changes()
    worker.commit()
    assert not worker._frontier.has_changes()
    third = SettledShared(Options(), client)
    assert third.add(page("a")) is Verdict.SEEN
    for each in (worker, other, third):
        each.abandon()
