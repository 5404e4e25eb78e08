"""A worker's membership in a crawl: it joins, waits for answers where it has to, and leaves.

Everything else that a worker has to do with the server goes on without waiting, in
:mod:`.conversation`.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import StoreError
from ...inflection import counted
from .. import events
from ..contract import JobInfo
from ..suspects import judge
from .batches import Reply, Status
from .conversation import Conversation, Phase


class Membership:
    """One worker's part in a crawl, from its first batch to its last.

    :ivar job: what the worker knows of its job, after :meth:`join` also of the crawl.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.job: JobInfo = conversation.record.job
        #: The last answer there was when one was waited for in vain.
        self._last_answer: Reply | None = None

    def join(self, timeout: float) -> Status | None:
        """Join the crawl, which from then on does not end without this worker; wait for the answer.

        What was in flight when this worker died is evaluated, and the server told, before anything
        is leased.

        :return: the status of the last answer; ``None``: none came within *timeout* seconds.
        :raises StoreError: the record cannot be written, or the server has answered only once.
        :raises FrontierFailedError: there will be no answer.
        """
        server = self.conversation
        stream, record = server.stream, server.record
        record.note_tokens([*stream.earlier, stream.token], stream.crawl)
        deadline = server.clock.monotonic() + timeout
        while server.status is None and not server.is_over:
            if not server.exchange(deadline):
                return None
        self._check()
        if server.status is Status.OK:
            if stream.reply.finished:
                # It has been here before, and may bring something new.
                server.on_event(events.AlreadyFinished())
            self._judge_last_death()
            # The crawl may be dropped or replaced meanwhile.
            self.wait_for_answers(max(0.0, deadline - server.clock.monotonic()))
        if server.status is Status.OK:
            record.note_tokens([stream.token], stream.crawl)
            record.run.restart_leases()
            server.enter(Phase.TAKING_PART)
            if (difference := server.pace.describe_difference()) is not None:
                server.on_event(events.OtherLimits(*difference))
        elif server.status is Status.FINISHED:
            # What its feeds hold must not be overwritten with nothing.
            self.job = replace(self.job, resumed=True)
        return server.status

    def _judge_last_death(self) -> None:
        server = self.conversation
        suspects, stored = server.suspects, dict(server.suspects.suspicions)
        for fingerprint, suspicion in judge(stored, server.record.evidence).items():
            if suspicion != stored.get(fingerprint):
                server.stream.judged[fingerprint] = suspicion.encode()
                suspects.hold_against(fingerprint, suspicion)
        leased = {lease.entry.fingerprint for lease in server.leases.fetched}
        for fingerprint in suspects.suspicions.keys() - leased:
            suspects.clear(fingerprint)
        resumed = self.job.resumed or server.stream.reply.accepted > 0
        records_ages = server.additions.ages.are_recorded
        job = replace(self.job, resumed=resumed, records_ages=records_ages)
        self.job = suspects.count_in(job)

    def leave(self, timeout: float) -> None:
        """Say all that is left, give back what is leased, and leave the crawl.

        :raises StoreError: the server has not answered within *timeout* seconds.
        :raises FrontierFailedError: it cannot.
        """
        server, stream = self.conversation, self.conversation.stream
        deadline = self._deadline(timeout)
        server.commit()
        while server.phase is not Phase.LEAVING and not server.is_over:
            if not (stream.is_in_flight or stream.waiting):
                server.enter(Phase.LEAVING)
            if not server.exchange(deadline):
                raise StoreError(
                    f"The Redis server did not answer for {timeout:g} s: this worker's last"
                    f" {counted(stream.unacknowledged, 'change')} may not be saved, and what it"
                    " had leased is crawled again by the others."
                )
        self._check()
        if stream.is_full and stream.unacknowledged:
            lost = counted(stream.unacknowledged, "change is", "changes are")
            raise StoreError(
                f"The Redis server's memory is full: {lost} not saved, and their pages are crawled"
                " again. Raise its maxmemory, then start this worker again."
            )

    def wait_for_answers(self, timeout: float) -> None:
        """Wait until everything is answered, but for what the server has no memory for.

        :raises StoreError: it was not within *timeout* seconds.
        :raises FrontierFailedError: it never will be.
        """
        server, stream = self.conversation, self.conversation.stream
        deadline = self._deadline(timeout)
        while stream.unacknowledged and not server.is_over:
            if stream.is_full and not stream.waiting:
                return
            if not server.exchange(deadline):
                self._last_answer = stream.reply
                waiting = counted(stream.unacknowledged, "change waits", "changes wait")
                raise StoreError(f"The Redis server does not answer; {waiting} for it.")
        self._check()

    def _deadline(self, timeout: float) -> float:
        server = self.conversation
        # A crawl that ends asks several times for the same.
        was_in_vain = self._last_answer is server.stream.reply
        return server.clock.monotonic() + (0.0 if was_in_vain else timeout)

    def _check(self) -> None:
        if self.conversation.failure is not None:
            raise self.conversation.failure
