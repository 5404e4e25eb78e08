"""Whole crawls of several workers under seeded faults, in no time.

Workers, streams and the script are the real ones, and so is the server; what is played is the
network, the clock, and the site.  One seed is one crawl, step by step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis

from scrapy_altsched.age import Age
from scrapy_altsched.errors import SharedError
from scrapy_altsched.frontier import Entry, Lease, Options, Order
from scrapy_altsched.frontier.entry import Delay, PageFailure, Reason
from scrapy_altsched.frontier.events import AlreadyFinished, Event, FrontierLost, ServerRolledBack
from scrapy_altsched.frontier.options import SharedOptions
from scrapy_altsched.frontier.pace import Start
from scrapy_altsched.frontier.shared.batches import Reply, parse_reply
from scrapy_altsched.frontier.shared.conversation import Conversation
from scrapy_altsched.frontier.shared.exchange import read_batch_script
from scrapy_altsched.frontier.shared.frontier import SharedFrontier
from scrapy_altsched.frontier.shared.keys import Keys
from scrapy_altsched.frontier.shared.membership import Membership
from scrapy_altsched.frontier.shared.record import Record
from scrapy_altsched.frontier.shared.steering import SteeredCrawl, WaitingRequest
from scrapy_altsched.frontier.shared.stream import EncodedBatch, Stream
from scrapy_altsched.frontier.store.job_run import MemoryRun
from scrapy_altsched.frontier.store.states import decode_value
from scrapy_altsched.limit import Limit, Limits
from scrapy_altsched.redis_client import CLOCK, RUN_ID

from ...clocks import ManualClock

#: ms of a step, and of a lease.
_STEP = 20
_LEASE = 2_000
_PAGES = 40
#: ms for which every third page that is found waits, and every seventh before it is done again.
_DELAY, _AGAIN_AFTER = 1_500, 300
_WORKERS = 3
_JITTER = 0.5
#: Most seconds by which a worker's clock is ahead of the server's.
_CLOCKS_APART = 3_600
_DATABASES = 16
#: Steps after which no more faults happen, and after which a crawl that still runs never ends.
_QUIET_AFTER = 2_500
_MOST_STEPS = 25_000

_PLAYED_CLOCK = "local function clock() return tonumber(ARGV[2]) end\n"
_PLAYED_RUN_ID = "local function run_id() return ARGV[3] end\n"
_SCRIPT = read_batch_script()
_COPY_ALL = """
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', ARGV[1]) end
"""

#: What each kind of fault is, or of what an operator does; a crawl has any of them.
FAULTS = {
    "kill": "a worker dies, and another one takes its place",
    "return": "a worker dies, and is started again with its job directory",
    "stop": "a worker stands still, often until its leases have expired",
    "reply": "a reply is lost, and the batch is sent again",
    "double": "a batch comes once more, later",
    "rollback": "the server restarts from an older copy",
    "full": "the server is out of memory for a while",
    "empty": "the server restarts with nothing",
    "diff": "each worker has start requests of its own",
    "pause": "an operator pauses the crawl, and has it go on after a while",
    "discard": "an operator discards a request that waits, or did when it was chosen",
}

#: How a crawl can end.
OUTCOMES = {
    "ok": "each page that can be reached was worked on to its end, and each request ended once",
    "lost": "all workers have ended, and a page was not worked on to its end",
    "never ended": "some worker goes on for ever",
    "twice": "a request has ended twice, or is left behind",
    "early": "a request was leased before it was due",
    "too close": "two requests of a host were started sooner after each other than they may",
    "over cap": "more requests of a host were open at once than may be",
    "paused": "while the crawl was paused, requests were leased, or it ended",
    "not noticed": "the server was emptied, and nobody says so",
}


@dataclass(frozen=True)
class Setting:
    """How a site's pages are linked, and how often faults happen.

    :ivar is_tree: whether each page is linked by one other page only: nothing else brings it.
    :ivar stop: probability that a worker stands still after a step.
    :ivar full: probability that the server has no memory after a step.
    :ivar room: probability that it has memory again.
    :ivar delay: ms between two requests of a host, on average; *cap*: of it at once.
    :ivar age: how old pages have to be to be crawled again; the whole crawl is one pass.
    """

    is_tree: bool = False
    stop: float = 0.002
    full: float = 0.01
    room: float = 0.01
    delay: int = 0
    cap: int = 0
    age: Age | None = None

    @property
    def limits(self) -> Limits | None:
        if not (self.delay or self.cap):
            return None
        return Limits(Limit(self.delay / 1000, _JITTER, self.cap))


USUAL = Setting()
#: Links wait long for memory, and leases expire meanwhile.
SCARCE = Setting(is_tree=True, stop=0.01, full=0.02, room=0.004)
#: Pages would be crawled again all the time, if that were not at most once a pass.
AGED = Setting(age=Age(0.001))
#: Hosts are asked slowly, or a few requests at once, or both.
PACES = {
    "delay": Setting(delay=500),
    "cap": Setting(cap=2),
    "one at once": Setting(cap=1),
    "delay and cap": Setting(delay=150, cap=2),
}


class Standing(NamedTuple):
    """What a crawl's record says.

    :ivar leased: how many requests are.
    """

    leased: int
    is_finished: bool
    is_paused: bool


class Server:
    """The real one, with a clock of the model's, and copies of what it was.

    :param socket: connects to one of its databases.
    :param change: changes the script, so that a rule is missing in it.
    """

    def __init__(
        self, socket: Callable[[int], redis.Redis], change: Callable[[str], str] = str
    ) -> None:
        self._databases = [socket(number) for number in range(_DATABASES)]
        self._client = client = self._databases[0]
        script = _SCRIPT.replace(CLOCK, _PLAYED_CLOCK).replace(RUN_ID, _PLAYED_RUN_ID)
        self._sha = client.script_load(change(script))
        self._copy = client.script_load(_COPY_ALL)
        self.now = 0
        self.calls = self._run = 0
        self._is_full = True  # as another one may have left it

    def begin(self) -> None:
        self.now = 1_000_000
        self._run += 1
        self._client.flushall()
        self.set_full(False)
        self._copies: list[int] = []

    def counts(self, keys: Keys) -> dict[str, int]:
        """What the crawl's counters say."""
        names = ("accepted", "done", "dead", "leased")
        values: Any = self._client.hmget(keys.meta, names)
        counts = {name: int(value) for name, value in zip(names, values, strict=True)}
        left = {"pending": keys.pending, "delayed": keys.delayed, "failed": keys.failed}
        return counts | {name: self._client.zcard(key) for name, key in left.items()}

    def look(self, keys: Keys) -> Standing:
        """How the crawl stands."""
        leased, state, paused = self._client.hmget(keys.meta, ("leased", "state", "paused"))
        return Standing(int(leased or 0), state == b"finished", paused is not None)

    def operator(self, key: str) -> SteeredCrawl:
        """The crawl as an operator has it."""
        return SteeredCrawl(self._client, key)

    def apply(self, batch: EncodedBatch) -> bytes:
        self.calls += 1
        arguments: list[Any] = [len(batch.keys), *batch.keys, batch.blob, self.now, self._run]
        reply: bytes = self._client.evalsha(self._sha, *arguments)
        return reply

    def save(self) -> None:
        """Copy all that there is."""
        free = [number for number in range(1, _DATABASES) if number not in self._copies]
        at = free[0] if free else self._copies.pop(0)
        with self._enough_memory():
            self._databases[at].flushdb()
            self._client.evalsha(self._copy, 0, at)
        self._copies.append(at)

    def roll_back(self, rng: random.Random) -> bool:
        """Be what it was at one of the last copies."""
        if not self._copies:
            return False
        keep = rng.randrange(len(self._copies))
        self._run += 1
        with self._enough_memory():
            self._client.flushdb()
            self._databases[self._copies[keep]].evalsha(self._copy, 0, 0)
        del self._copies[keep + 1 :]
        return True

    def set_full(self, full: bool) -> None:
        if full != self._is_full:
            self._is_full = full
            self._client.config_set("maxmemory", 1 if full else 0)

    @contextmanager
    def _enough_memory(self) -> Iterator[None]:
        is_full = self._is_full
        self.set_full(False)
        yield
        self.set_full(is_full)


@dataclass
class Page:
    """A page that a worker works on."""

    number: int
    lease: Lease
    links: list[int]
    is_waiting: bool = False
    is_open: bool = False

    @property
    def host(self) -> int:
        return self.number % 5


class Wire:
    """The way from a worker to the server: the last batch, until it is answered.

    :param exchange: tries to have a batch answered.
    """

    def __init__(self, exchange: Callable[[EncodedBatch], None]) -> None:
        self._exchange = exchange
        self.batch: EncodedBatch | None = None
        self._reply: Reply | None = None

    def answer(self, reply: Reply) -> None:
        self.batch = None
        self._reply = reply

    def take(self, timeout: float = 0.0) -> Reply | None:
        while timeout and self.batch is not None:
            self._exchange(self.batch)
        reply, self._reply = self._reply, None
        return reply

    def send(self, batch: EncodedBatch) -> None:
        assert self.batch is None
        self.batch = batch

    def close(self) -> None:
        self.batch = None


class Kept(Record):
    """A job directory of a worker, as far as the protocol goes."""

    def note_tokens(self, tokens: Sequence[bytes], crawl: bytes) -> None:
        self.tokens, self.crawl = list(tokens), crawl


class Worker:
    """A worker, with the real frontier.

    :param record: its job directory.
    """

    def __init__(self, crawl: Crawl, starts: list[int], record: Kept) -> None:
        self._crawl = crawl
        self._rng = crawl.rng
        self.clock = ManualClock()
        self._ahead = crawl.new_worker() % 3 * _CLOCKS_APART if crawl.setting.limits else 0
        self.wire = Wire(self._exchange)
        self._all_starts = starts
        self._starts = list(starts)
        self.record = record
        self.stream = stream = Stream(
            crawl.keys,
            crawl.new_token,
            b"about",
            _LEASE,
            crawl=crawl.known_id,
            earlier=record.tokens,
            records_ages=crawl.setting.age is not None,
        )
        order, age = Order("slots", "lifo"), crawl.setting.age
        server = Conversation(
            Options(order=order, clock=self.clock, recrawl_after=age),
            stream,
            self.wire,
            record,
            SharedOptions(
                key="model",
                prefetch=4,
                lease_timeout=_LEASE / 1000,
                limits=crawl.setting.limits,
            ),
            self.on_event,
        )
        membership = Membership(server)
        self.frontier = SharedFrontier(membership)
        self.pages: list[Page] = []
        self.stopped_until = 0
        self.is_over = False
        self._is_open = False
        membership.join(1.0)
        self._is_open = True

    def on_event(self, event: Event) -> None:
        self._crawl.events[type(event).__name__] += 1
        if isinstance(event, ServerRolledBack):
            self._starts = list(self._all_starts)
        elif isinstance(event, FrontierLost | AlreadyFinished):
            self.is_over = True

    def step(self) -> None:
        crawl, rng, frontier = self._crawl, self._rng, self.frontier
        self.clock.advance(max(0.0, crawl.server.now / 1000 + self._ahead - self.clock.now))
        what = rng.random()
        if what < crawl.start_rate and self._starts:
            number = self._starts.pop()
            frontier.add(self._entry(number, start=True))
        elif not self._starts and not frontier._server._is_start_over:
            frontier.note_start_end()
        elif what < 0.3:
            lease = frontier.lease()
            if isinstance(lease, Lease):
                crawl.events["paused"] += frontier._server.stream.reply.paused > 0
                number = int(lease.entry.fingerprint)
                crawl.fetched[number] += 1
                due = crawl.due.get(lease.entry.payload or b"", 0)
                crawl.events["early"] += crawl.server.now < due
                page = Page(number, lease, list(crawl.graph[number]))
                page.is_waiting = crawl.setting.limits is not None
                self.pages.append(page)
            elif frontier.is_over and not frontier.delayed:
                self.is_over = True
        elif what < 0.6 and self.pages:
            page = rng.choice(self.pages)
            if page.is_waiting or page.is_open:
                self._download(page)
            elif page.links:
                frontier.add(self._entry(page.links.pop()))
            else:
                self.pages.remove(page)
                self._finish(page)
        elif what < 0.7:
            frontier.commit()
        elif self.wire.batch is not None:
            self._exchange(self.wire.batch)

    def _download(self, page: Page) -> None:
        """Start the download of a page, if it may, or end it."""
        pace = self.frontier.pace
        if page.is_open:
            pace.note_downloaded(page.lease)
            page.is_open = False
            return
        match pace.start(page.lease):
            case Start.NOW:
                page.is_waiting, page.is_open = False, True
                self._crawl.note_start(page.host)
                # Else its end says so.
                if self._rng.random() < 0.8:
                    pace.note_sent(page.lease)
            case Start.NEVER:
                # The engine is done with it, and this worker has no lease of it any more.
                self.pages.remove(page)
                self.frontier.finish(page.lease)

    def _finish(self, page: Page) -> None:
        entry = page.lease.entry
        payload = b"again %d" % page.number
        if page.number % 7 or entry.payload == payload:
            self._crawl.completed.add(page.number)
            if page.number % 11 == 5:
                page.lease.failure = PageFailure(Reason.CALLBACK, "why", 200)
            self.frontier.finish(page.lease)
        else:
            then = Entry(entry.fingerprint, f"host{page.number % 5}", -1, payload=payload)
            then.unique = False
            self._delay(then, _AGAIN_AFTER)
            self.frontier.finish(page.lease, then)

    def _entry(self, number: int, start: bool = False) -> Entry:
        name = str(number)
        unique = not (start and number % 2)
        entry = Entry(
            name.encode(),
            f"host{number % 5}",
            0,
            payload=b"p" + name.encode(),
            unique=unique,
            from_start=start,
        )
        if number % 3 == 0 and unique:
            entry.payload = b"late " + name.encode()
            self._delay(entry, _DELAY)
        return entry

    def _delay(self, entry: Entry, delay: int) -> None:
        entry.delay = Delay(delay / 1000)
        due, payload = self._crawl.server.now + delay, entry.payload or b""
        # Several may bring it: the first one counts.
        self._crawl.due.setdefault(payload, due)

    def _exchange(self, batch: EncodedBatch) -> None:
        crawl, rng = self._crawl, self._rng
        if "reply" in crawl.faults and rng.random() < 0.1:
            return  # the request was lost
        try:
            blob = crawl.apply(batch)
        except redis.OutOfMemoryError:
            crawl.events["no memory"] += 1
            return
        if "double" in crawl.faults and rng.random() < 0.1:
            crawl.late.append(batch)
        if "reply" in crawl.faults and rng.random() < 0.1:
            return
        reply = parse_reply(blob)
        if "rollback" in crawl.faults and rng.random() < 0.2:
            crawl.server.save()
        crawl.known_id = reply.crawl or crawl.known_id
        self.wire.answer(reply)
        if self._is_open:
            self.frontier.take_replies()


@dataclass
class Crawl:
    """One crawl, from its seed.

    :param faults: which of :data:`FAULTS` happen.
    """

    server: Server
    seed: int
    faults: frozenset[str]
    setting: Setting = USUAL
    events: Counter[str] = field(default_factory=Counter)
    late: list[EncodedBatch] = field(default_factory=list)
    fetched: Counter[int] = field(default_factory=Counter)
    completed: set[int] = field(default_factory=set)
    due: dict[bytes, int] = field(default_factory=dict)
    known_id: bytes = b""

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self._tokens = self._workers_begun = 0
        self._started: dict[int, int] = {}
        if self.setting.is_tree:
            pages = range(_PAGES)
            self.graph = {number: list(pages[3 * number + 1 : 3 * number + 4]) for number in pages}
            starts = [0]
        else:
            self.graph = {
                number: [rng.randrange(_PAGES) for _ in range(rng.choice((0, 1, 2, 3)))]
                for number in range(_PAGES)
            }
            starts = [rng.randrange(_PAGES) for _ in range(6)]
        self._all_starts = starts
        self.start_rate = rng.choice((0.02, 0.1))
        apart = "diff" in self.faults
        self._starts = [starts[at::_WORKERS] if apart else starts for at in range(_WORKERS)]
        self.server.begin()
        self.keys, self._operator = Keys("model"), self.server.operator("model")
        #: What the operator will discard the next time, and pages of which a request was.
        self._chosen: list[WaitingRequest] = []
        self._discarded: set[int] = set()
        self.workers = [Worker(self, starts, Kept(MemoryRun())) for starts in self._starts]

    def new_token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16, "big")

    def new_worker(self) -> int:
        """How many there were before."""
        self._workers_begun += 1
        return self._workers_begun - 1

    def note_start(self, host: int) -> None:
        """A request was sent to a host."""
        now, limit = self.server.now, self.setting
        since = now - self._started.get(host, 0)
        self.events["too close"] += since < limit.delay * (1 - _JITTER) - 1
        self._started[host] = now
        pages = (page for worker in self.workers for page in worker.pages)
        count = sum(page.is_open and page.host == host for page in pages)
        self.events["over cap"] += 0 < limit.cap < count

    @property
    def wanted(self) -> set[int]:
        """Pages that can be reached, but for those that were discarded, and what only they link."""
        found: set[int] = set()
        waiting = list(self._all_starts)
        while waiting:
            number = waiting.pop()
            if number not in found | self._discarded:
                found.add(number)
                waiting += self.graph[number]
        return found

    def apply(self, batch: EncodedBatch) -> bytes:
        """Have the server apply a batch; note it if a crawl that is paused goes on, or ends."""
        server = self.server
        if "pause" not in self.faults or not (before := server.look(self.keys)).is_paused:
            return server.apply(batch)
        reply = server.apply(batch)
        now = server.look(self.keys)
        has_ended = now.is_finished and not before.is_finished
        self.events["paused"] += now.leased > before.leased or has_ended
        return reply

    def _steer(self) -> None:
        """Do what an operator does."""
        rng, operator = self.rng, self._operator
        # The server is asked only where it matters: it would be at each step.
        if "pause" in self.faults and (chance := rng.random()) < 0.01:
            if self.server.look(self.keys).is_paused:
                operator.resume()
            elif chance < 0.004:
                operator.pause()
        if "discard" in self.faults and rng.random() < 0.006:
            waiting = list(operator.waiting())
            rng.shuffle(waiting)
            now, self._chosen = [*self._chosen, *waiting[:1]], waiting[1:2]
            for request in now:
                if operator.discard([request]):
                    self._discarded.add(int(decode_value(request.row).fingerprint))

    def run(self) -> str:
        """``"ok"``, or what went wrong: see :data:`OUTCOMES`."""
        rng, server, faults, setting = self.rng, self.server, self.faults, self.setting
        is_full = False
        for step in range(_MOST_STEPS):
            server.now += _STEP
            if all(worker.is_over for worker in self.workers):
                break
            worker = rng.choice(self.workers)
            if worker.stopped_until <= step and not worker.is_over:
                worker.step()
            if self.late and rng.random() < 0.05:
                with suppress(redis.OutOfMemoryError):
                    self.apply(self.late.pop(rng.randrange(len(self.late))))
            if step > _QUIET_AFTER:
                if is_full:
                    is_full = False
                    server.set_full(False)
                if step == _QUIET_AFTER + 1 and "pause" in faults:
                    self._operator.resume()
                continue
            with suppress(SharedError):  # there is no crawl yet, or any more
                self._steer()
            for name in ("kill", "return"):
                if name in faults and rng.random() < 0.002:
                    at = rng.randrange(_WORKERS)
                    record = self.workers[at].record if name == "return" else Kept(MemoryRun())
                    self.workers[at] = Worker(self, self._starts[at], record)
            if "stop" in faults and rng.random() < setting.stop:
                rng.choice(self.workers).stopped_until = step + rng.randrange(50, 400)
            if "rollback" in faults and rng.random() < 0.002 and server.roll_back(rng):
                self.events["rollback"] += 1
                self.late.clear()
            if "empty" in faults and step > 100 and rng.random() < 0.01:
                server.begin()
                self._started.clear()
                self.events["emptied"] += 1
                faults -= {"empty"}
            if "full" in faults and rng.random() < (setting.room if is_full else setting.full):
                is_full = not is_full
                server.set_full(is_full)
        else:
            return "never ended"
        # A server that was emptied has another clock, too.
        if self.events["paused"]:
            return "paused"
        if self.events["early"] and not self.events["emptied"]:
            return "early"
        if self.events["too close"]:
            return "too close"
        # Their leases may be over, or unknown, while their downloads go on.
        if self.events["over cap"] and not self.faults & {"stop", "rollback", "empty"}:
            return "over cap"
        if self.events["FrontierLost"]:
            return "ok" if self.events["emptied"] else "lost"
        if self.wanted - self.completed:
            return "not noticed" if self.events["emptied"] else "lost"
        if not server.look(self.keys).is_finished:
            # That was undone after the last worker had heard of it: nobody is left to do anything
            # twice.
            return "ok" if self.events["rollback"] or self.events["emptied"] else "never ended"
        counts = server.counts(self.keys)
        ended = counts["done"] + counts["failed"]
        return "ok" if counts.pop("accepted") == ended == sum(counts.values()) else "twice"
