"""Crash suspects: requests that may have killed the process, identified while others go on.

The log of leases tells which requests were in flight at a death, and which of them *in hand*: their
response had been received and they were not over.  Most pages that kill do so in their callback, or
while they are parsed or stored; what was still downloading is suspected after several deaths only.
An operator's kill, a clean stop or a reboot must never make a dead letter of a page.

::

    in flight at a death ──► FREE, ages ──► SUSPECT: one after the other, next to the others
                                │                │ another death, with others of them in hand
                                │                ▼
                                │           SUSPECT, narrowed: the same, more slowly
                                ▼                │ another death
                           done: cleared         ▼
                                            BLAMED: alone, behind all others ──► dead letter

A suspect that is over lets the next one in, and so does one that takes long: after 0.2 s, or 1 s if
it is narrowed.  So pages whose callbacks take milliseconds are leased one at a time, and a death
blames one of them; pages that take seconds are soon all in hand again.  (With Scrapy 2.13 each page
takes 0.1 s: ``scrapy.utils.defer._DEFER_DELAY``.)

Simulated with 2,000 pages and 32 in flight; docs/guarantees.rst has the numbers of deaths.  32
pages of 3 to 6 s each, all in hand at a death, take 8.1 s, and 6.2 s without; one at a time, 140.
Worse: half of the suspects at once (10.4 s, and 6 deaths even where callbacks are quick); halving
what is in hand at each death (10.4 s, and 8 or 9 deaths); the one whose response came last, since
Scrapy runs other callbacks in between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from .clock import Call
from .contract import JobInfo
from .entry import DeadLetter, Lease
from .events import DeadLettered, Isolated, IsolationEnded, LeasesReady, LeaseUnrecorded, OnEvent
from .options import Options
from .store.lease_log import ALONE, LEASED, Evidence, LeaseLog, NullLeaseLog
from .store.records import Level, Suspicion

#: Quarters of a death: what is in flight ages by the first if nothing was in hand, by the second if
#: anything was; of the third age it is a suspect.
_ALL_DOWNLOADING = 4
_SOME_IN_HAND = 1
_SUSPECT_AT = 12
#: Deaths alone while downloading that make a dead letter.
_MOST_DOWNLOADING = 20
#: Whether a suspect is narrowed -> seconds after which it lets the next one in though it is not
#: over, and seconds in which all of its kind are let in, however many they are.
_PACES = {False: (0.2, 3.0), True: (1.0, 30.0)}
#: Seconds between two requests leased alone while others are pending.
_ALONE_EVERY = 600.0
#: Seconds for which nothing else is leased then, until nothing is in flight.
_QUIET_WITHIN = 10.0


def judge(stored: Mapping[bytes, Suspicion], evidence: Evidence) -> dict[bytes, Suspicion]:
    """Fingerprint -> what is held against it after a death; *stored*: before."""
    found = dict(stored)
    if evidence.inconclusive:
        return found

    def known(name: bytes) -> Suspicion:
        return found.get(name, Suspicion())

    alone, in_hand = evidence.alone, evidence.in_hand
    if alone is not None:
        # What was let in next to it has nothing to do with it.
        how = "in_hand" if alone in in_hand else "downloading"
        deaths = {how: getattr(known(alone), how) + 1}
        found[alone] = replace(known(alone), level=Level.BLAMED, **deaths)
        return found
    suspects = {name for name in evidence.in_flight if known(name).level is Level.SUSPECT}
    accused = suspects & in_hand or (set() if in_hand else suspects)
    for name in accused:
        is_clear = len(accused) == 1 or known(name).narrowed
        change = {"level": Level.BLAMED} if is_clear else {"narrowed": 1}
        found[name] = replace(known(name), **change)
    for name in in_hand if not suspects & in_hand else ():
        found[name] = replace(known(name), level=max(known(name).level, Level.SUSPECT))
    for name in evidence.in_flight - in_hand:
        age = min(known(name).age + (_SOME_IN_HAND if in_hand else _ALL_DOWNLOADING), _SUSPECT_AT)
        least = Level.SUSPECT if age == _SUSPECT_AT else Level.FREE
        found[name] = replace(known(name), age=age, level=max(known(name).level, least))
    return found


class Suspects:
    """The requests that may have killed the process, in a crawl that continues.

    Nothing here is asked while :attr:`matters` is false, as it is in most crawls.

    :ivar matters: whether there is a suspect, or a request leased alone.
    :ivar suspicions: fingerprint -> what is held against it.
    :ivar withheld: key -> lease of those that are in no queue and not leased yet.
    :ivar watched: key -> lease of the suspects that are leased next to others; the newest last.
    :ivar alone: the one that is leased alone.
    """

    def __init__(
        self,
        known: Mapping[bytes, Suspicion],
        options: Options,
        log: LeaseLog | NullLeaseLog,
        on_event: OnEvent,
    ) -> None:
        self.suspicions = dict(known)
        self._options = options
        self._now = options.clock.monotonic
        self._log = log
        self._on_event = on_event
        self.withheld: dict[bytes, Lease] = {}
        self._waiting: deque[Lease] = deque()
        self._blamed: deque[Lease] = deque()
        self.watched: dict[bytes, Lease] = {}
        #: When the newest of these lets the next one in, and what asks for that one then.
        self._next_at = 0.0
        self._call: Call | None = None
        self.alone: Lease | None = None
        self._alone_until = 0.0
        self._alone_at = self._now() + _ALONE_EVERY
        self._refresh()

    def count_in(self, job: JobInfo) -> JobInfo:
        """*job*, with the numbers of these requests."""
        levels = Counter(suspicion.level for suspicion in self.suspicions.values())
        return replace(job, suspects=levels[Level.SUSPECT], blamed=levels[Level.BLAMED])

    # What a frontier asks before it leases

    def next(
        self,
        take: Callable[[], Lease | None],
        give_up: Callable[[Lease, DeadLetter], object],
        *,
        in_flight: bool,
        others: Callable[[], bool],
    ) -> Lease | None:
        """The next request to be leased; a suspect is in *watched* then, or is the one *alone*.

        :param take: takes the next one out of its queue; *give_up*: makes a dead letter of it.
        :param in_flight: whether anything is leased.
        :param others: whether anything else than those withheld is pending.
        """
        while self._admit(in_flight=in_flight):
            lease = self._next_withheld(in_flight=in_flight, others=others)
            if lease is not None:
                return lease
            lease = take()
            # One without a key is gone with the process.
            if lease is None or not lease.key or self._held(lease).level is Level.FREE:
                return lease
            if why := self._withhold(lease):
                give_up(lease, why)
                self._on_event(DeadLettered(lease.entry, why))
        return None

    def _admit(self, *, in_flight: bool) -> bool:
        """Whether anything may be leased now."""
        now = self._now()
        if self.alone is not None:
            if now >= self._alone_until and self._alone_until:
                self._accompany(f"it was alone for {self._options.patience:g} s")
            return not self._alone_until
        if self._blamed and now >= self._alone_at + _QUIET_WITHIN and in_flight:
            self._alone_at = now + _ALONE_EVERY
        return not (self._blamed and now >= self._alone_at and in_flight)

    def _next_withheld(self, *, in_flight: bool, others: Callable[[], bool]) -> Lease | None:
        """One of those that wait outside of their queues, if it is its turn to be leased."""
        if self._waiting:
            if self._now() < self._next_at:
                clock = self._options.clock
                self._call = self._call or clock.call_at(self._next_at, self._ask)
                return None
            lease = self._waiting.popleft()
            self.watched[lease.key] = lease
            self._next_at = self._now() + self._pace(lease)
        elif self._blamed and not in_flight and (self._now() >= self._alone_at or not others()):
            self.alone = lease = self._blamed.popleft()
            self._alone_until = self._now() + self._options.patience
            self._alone_at = self._now() + _ALONE_EVERY
            suspicion = self._held(lease)
            self._on_event(Isolated(lease.entry, suspicion.in_hand + suspicion.downloading))
        else:
            return None
        del self.withheld[lease.key]
        return lease

    def _held(self, lease: Lease) -> Suspicion:
        return self.suspicions.get(lease.entry.fingerprint, Suspicion())

    def _pace(self, lease: Lease) -> float:
        """Seconds after which *lease*, a suspect, lets the next one in."""
        narrowed = self._held(lease).narrowed
        suspects = (it for it in self.suspicions.values() if it.level is Level.SUSPECT)
        alike = sum(suspect.narrowed == narrowed for suspect in suspects)
        after, all_within = _PACES[bool(narrowed)]
        return min(after, all_within / max(alike, 1))

    def _ask(self) -> None:
        self._call = None
        self._on_event(LeasesReady())

    def _withhold(self, lease: Lease) -> DeadLetter | None:
        """Keep a request for :meth:`_next_withheld`; or why it is a dead letter."""
        suspicion, most = self._held(lease), self._options.max_crashes
        alone = "times while it alone was being"
        if suspicion.level is Level.SUSPECT:
            self._waiting.append(lease)
        elif suspicion.in_hand >= most:
            return DeadLetter(f"the process died {suspicion.in_hand} {alone} processed")
        elif suspicion.downloading >= max(_MOST_DOWNLOADING, most):
            return DeadLetter(f"the process died {suspicion.downloading} {alone} downloaded")
        else:
            self._blamed.append(lease)
        self.withheld[lease.key] = lease
        return None

    def discard(self, key: bytes) -> None:
        """A request that waits outside of its queue is another worker's now."""
        lease = self.withheld.pop(key, None)
        if lease is not None:
            queue = self._waiting if lease in self._waiting else self._blamed
            queue.remove(lease)

    # What a frontier tells

    def note_add(self) -> None:
        """A request was added: the one that is alone may wait for it."""
        if self._alone_until:
            self._accompany("it may wait for a request that it has led to")

    def note_lease(self, lease: Lease) -> None:
        what = ALONE if lease is self.alone else LEASED
        try:
            self._log.note(lease.entry.fingerprint, what)
        except OSError:
            self._on_event(LeaseUnrecorded())

    def note_over(self, lease: Lease) -> bool:
        """Nothing works on a request any more; whether it was the one that was alone."""
        note_over = self._log.note_over  # see "Cheap requests" in docs/architecture.rst
        note_over(lease.entry.fingerprint)
        return self.matters and self.discard_lease(lease)

    def discard_lease(self, lease: Lease) -> bool:
        """Watch a lease no longer; whether it was the one that was alone."""
        if self.watched.get(lease.key) is lease:
            if lease.key == next(reversed(self.watched)):
                self._next_at = 0.0
                self.close()
            del self.watched[lease.key]
            self._refresh()
        if lease is not self.alone:
            return False
        self.alone = None
        self._alone_until = 0.0
        self._refresh()
        return True

    def describe(self, leases: Iterable[Lease]) -> Iterator[tuple[bytes, bool, bool]]:
        """What a new log of leases says of those that are out: see :meth:`LeaseLog.restart`."""
        return ((lease.entry.fingerprint, lease is self.alone, lease.in_hand) for lease in leases)

    def hold_against(self, fingerprint: bytes, suspicion: Suspicion) -> None:
        self.suspicions[fingerprint] = suspicion
        self._refresh()

    def clear(self, fingerprint: bytes) -> bool:
        """The request is done: nothing is held against it; whether anything was."""
        if self.suspicions.pop(fingerprint, None) is None:
            return False
        for queue in (self._waiting, self._blamed):
            for lease in [lease for lease in queue if lease.entry.fingerprint == fingerprint]:
                # Others of the same fingerprint may be leased next to anything.
                queue.remove(lease)
                self._waiting.append(lease)
        self._refresh()
        return True

    def drop(self, fingerprint: bytes) -> bool:
        """A request will never be leased: as for :meth:`clear`, unless another has the fingerprint.

        That is: one of those that are withheld, or watched, or alone.
        """
        if fingerprint not in self.suspicions:
            return False
        others = chain(self.withheld.values(), self.watched.values(), filter(None, [self.alone]))
        if any(lease.entry.fingerprint == fingerprint for lease in others):
            return False
        return self.clear(fingerprint)

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _refresh(self) -> None:
        levels = (suspicion.level for suspicion in self.suspicions.values())
        self.matters = bool(self.withheld or self.watched or self.alone or any(levels))

    def _accompany(self, why: str) -> None:
        self._alone_until = 0.0
        assert self.alone is not None
        self._on_event(IsolationEnded(self.alone.entry, why))
