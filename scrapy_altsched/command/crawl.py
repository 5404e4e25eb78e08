"""A shared crawl on a server, for subcommands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Any

from ..crawl.outcome import DeadLetters, judge
from ..engine.request_parts import slot_of
from ..frontier.content import Content
from ..frontier.entry import NEVER_SEEN, STARTED, Place
from ..inflection import counted
from ..maintenance.audit import Problem
from ..maintenance.looking import (
    PendingRequest,
    StoredRequests,
    group_places,
    pending_request,
)
from ..maintenance.requeue import DeadRequest, FailedRequest, dead_requests, failed_requests
from ..requests.identity import NOTE
from ..settings import read_redis, server_options
from ..steering.actions import Action, Discard, Effect
from .answers import Report, describe_numbers, describe_state
from .project import Project
from .steered import SharedSteering

if TYPE_CHECKING:
    from ..frontier.shared.queues import SlotQueue


class Crawl:
    """A shared crawl on the server that the project's settings name, with the methods of a job.

    :ivar crawl: what can be done with it there.
    :raises ConfigError: the settings cannot be used, or a package is missing.
    """

    def __init__(self, project: Project, key: str) -> None:
        values = read_redis(project.settings)
        # What they need is optional.  Pickles from a server are not loaded.
        from ..frontier.shared.steering import SteeredCrawl
        from ..redis_client.connection import connect
        from ..requests.portable import read_fields, read_url

        words = " ".join([quote(key), *server_options(project.settings)])
        self.words = f"--shared {words}"
        self.key, self._project = key, project
        self.crawl = SteeredCrawl(connect(values), key, words)
        self.url_of = read_url
        self._read = read_fields

    def dead(self) -> list[DeadRequest]:
        return list(dead_requests(self.crawl.dead()))

    def failed(self) -> Iterator[FailedRequest]:
        return failed_requests(self.crawl.failed())

    def apply(self, action: Action, given: Sequence[str] = ()) -> Effect:
        """Apply an action, as for a job."""
        return SharedSteering(self, self._project, given).apply(action)

    def count(self, action: Discard) -> tuple[int, int]:
        """How many requests an action would drop, and of how many, as for a job."""
        found = sum(1 for _ in SharedSteering(self, self._project).matching(action))
        counts = self.crawl.look().counts
        return found, max(found, counts.pending + counts.delayed)

    def waiting(self) -> int:
        """How many requests are still to be crawled, those in flight among them."""
        return self.crawl.look().counts.left

    def slot_of(self, payload: bytes) -> str:
        fields = self._read(payload)
        return slot_of(fields["url"], fields.get("meta") or {}) if "url" in fields else ""

    @contextmanager
    def content(self) -> Iterator[Content]:
        yield self.crawl.content(NOTE)

    def examine(self) -> Report:
        state = self.crawl.look()
        counts, leased = state.counts, {"in flight": state.counts.leased}
        report = Report(
            "shared crawl",
            self.crawl.name,
            state.spider,
            [
                describe_state(state.finished, counted(state.workers, "worker")),
                describe_numbers(
                    counts,
                    **leased,
                    pending=counts.pending,
                    delayed=counts.delayed,
                    dead=counts.dead,
                    failed=counts.failed,
                ),
            ],
            "the counters add up",
            counts,
        )
        if counts.unaccounted:
            sentence = (
                f"The counters do not add up: {abs(counts.unaccounted):,} of the requests are in no"
                " state, or in two. Another program may have changed the keys."
            )
            report.problems.append(Problem(sentence, None))
        if state.large_buckets:
            text = (
                "seen URLs take about 88 bytes each on the server, instead of 21, as hashes are no"
                " longer listpacks: look at its hash-max-listpack-entries (512) and"
                " hash-max-listpack-value (64), or there are more than 30 million URLs"
            )
            report.rows.append(("memory", text))
        unrestorable = DeadLetters(self.dead() if counts.dead else (), self.url_of).unrestorable
        report.outcome = judge(counts, unrestorable, complete=state.finished)
        return report

    def peek(self, limit: int, slot: str | None) -> Iterator[PendingRequest]:
        order = self.crawl.order()
        rows = self.crawl.next_rows(limit, slot if order.policy == "slots" else None)
        requests = (pending_request(order, *row) for row in rows)
        if slot is not None and order.policy == "one":
            requests = (it for it in requests if self.slot_of(it.payload) == slot)
        return islice(requests, limit)

    def queues(self) -> list[tuple[str, SlotQueue]] | None:
        """Each download slot with what is pending in it; ``None``: there are too many queues.

        In a crawl with one queue for all slots, that has no name.
        """
        if (queues := self.crawl.queues()) is None:
            return None
        order = self.crawl.order()
        by_slot = order.policy == "slots"
        return [
            (self.slot_of(pending_request(order, *it.first).payload) if by_slot else "", it)
            for it in queues
        ]

    def fields_of(self, payload: bytes) -> dict[str, Any]:
        return self._read(payload)

    def find(self, wanted: Collection[bytes]) -> dict[bytes, list[Place]]:
        found = group_places(self.stored().find(wanted))
        return {it: found.get(it) or [self._find_seen(it)] for it in wanted}

    def _find_seen(self, fingerprint: bytes) -> Place:
        if self.crawl.has_seen(fingerprint):
            return Place("done")
        return STARTED if self.crawl.has_started(fingerprint) else NEVER_SEEN

    def stored(self) -> StoredRequests:
        """All that is stored of requests."""
        crawl = self.crawl
        return StoredRequests(
            crawl.look().counts,
            crawl.pending(),
            crawl.delayed(),
            failed_requests(crawl.failed()),
            dead_requests(crawl.dead()),
            leased=crawl.leased(),
        )

    def fingerprints(self) -> bytes | None:
        return self.crawl.about()["fingerprints"].encode()

    @property
    def owner(self) -> str:
        return self.crawl.about()["spider"]
