"""All rules of a crawl, and the canonical form of a URL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

from w3lib.url import canonicalize_url

from ..age import Age
from .changes import Canonicalizer, Step, find_marks
from .patterns import Index, compile_patterns
from .rule import Rule
from .sources import Source, read_rules

#: Part of the digest: a new number means that the same rules have another effect now.  With the
#: first one, several rules with ``keep_params`` had kept only what all of them named.
_VERSION, _VERSION_OF_SEVERAL_KEPT = 1, 2
_MEMO_LIMIT = 10_000  # sets of rules that match together; hosts


class Canonical(NamedTuple):
    """What requests are compared by.

    :ivar url: if no rule matches, as :func:`w3lib.url.canonicalize_url` writes it; unchanged if
        that cannot parse it.
    :ivar headers: names of the headers that count, in lower case, sorted.
    :ivar rules: indexes of the rules that matched, in the order in which they apply.
    """

    url: str
    body: bytes = b""
    headers: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    rules: tuple[int, ...] = ()


class _Entry(NamedTuple):
    rule: Rule
    label: str
    source: int


class Rules:
    """All rules of a crawl; immutable.

    :ivar digest: a hash of their order and effects, not of their names and places; "" without any.
    :ivar ages: those that they say, in their order: how old pages have to be to be crawled again.
    """

    __slots__ = (
        "_aged",
        "_ages_from",
        "_changes",
        "_entries",
        "_given",
        "_index",
        "ages",
        "digest",
        "marks",
    )

    def __init__(self, entries: Sequence[_Entry] = ()) -> None:
        self._given = tuple(entries)
        # Of two rules for one URL, the later one counts.
        aged = sorted(
            (it for it in entries if it.rule.recrawl_after is not None),
            key=lambda entry: entry.rule.order,
        )
        self._aged = Index([compile_patterns(it.rule.include, it.rule.exclude) for it in aged])
        self._ages_from = [it.label for it in aged]
        self.ages = [age for it in aged if (age := it.rule.recrawl_after) is not None]
        self._entries = entries = tuple(it for it in entries if not it.rule.is_only_of_age)
        self._index = Index([compile_patterns(e.rule.include, e.rule.exclude) for e in entries])
        #: ``marks(netloc)``: strings of which a URL with that netloc, as it is written in the URL,
        #: must contain one for a rule to change anything in a request for it without a body; an
        #: empty one: a rule may change any.  Called for each request of a crawl.
        self.marks = lru_cache(_MEMO_LIMIT)(self._find_marks)
        #: Indexes of rules that match together -> what they change.
        self._changes = lru_cache(_MEMO_LIMIT)(self._combine)
        version = _VERSION_OF_SEVERAL_KEPT if self._may_keep_together() else _VERSION
        self.digest = _digest(sorted(entries, key=lambda entry: entry.rule.order), version)

    @classmethod
    def load(cls, source: Source, *, name: str = "ALTSCHED_URL_RULES") -> Rules:
        """Read and check rules.

        :param source: a list of dicts, the path of a JSON or TOML file, a list with both, or JSON
            text; ``None`` and "": no rules.
        :param name: what messages call the source.
        :raises ConfigError: a file cannot be read, or a rule is invalid.
        """
        return cls().extended(source, name=name)

    def extended(self, source: Source, *, name: str) -> Rules:
        """These rules and, after them, those of another source, as :meth:`load` takes it."""
        number = self._given[-1].source + 1 if self._given else 0
        more = (_Entry(rule, label, number) for label, rule in read_rules(source, name))
        return Rules([*self._given, *more])

    def with_spider(self, spider: object) -> Rules:
        """These rules and, after them, those in the ``url_rules`` of a spider or its class."""
        if (more := getattr(spider, "url_rules", None)) is None:
            return self
        spider_class = spider if isinstance(spider, type) else type(spider)
        return self.extended(more, name=f"{spider_class.__name__}.url_rules")

    def _may_keep_together(self) -> bool:
        """Whether two rules with ``keep_params`` may be for one URL."""
        keeping = {at for at, it in enumerate(self._entries) if it.rule.keep_params is not None}
        together = self._index.together() if len(keeping) > 1 else ()
        return any(len(keeping & indexes) > 1 for indexes in together)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Rule:
        return self._entries[index].rule

    def label(self, index: int) -> str:
        """What messages call a rule: its name, or else its place."""
        return self._entries[index].label

    def _find_marks(self, netloc: str) -> tuple[str, ...]:
        rules = (self._entries[index].rule for index in self._index.candidates(netloc))
        return tuple(set[str]().union(*(find_marks(rule, netloc) for rule in rules)))

    def _combine(self, indexes: tuple[int, ...]) -> Canonicalizer:
        return Canonicalizer([(index, self._entries[index].rule) for index in indexes])

    def canonicalize(self, url: str, *, body: bytes = b"", content_type: str = "") -> Canonical:
        """What a request is compared by.  Never raises, whatever the URL and the body."""
        try:
            whole = canonicalize_url(url, keep_fragments=True)
        except Exception:  # whatever w3lib cannot parse
            return Canonical(url, body)
        matching = self._matching(whole)
        if not matching:
            return Canonical(whole.partition("#")[0], body)
        changes = self._changes(matching)
        new, steps = changes.apply_to_url(whole, url)
        if body:
            body, more = changes.apply_to_body(body, content_type)
            steps += more
        return Canonical(new, body, changes.headers, tuple(steps), matching)

    def find_age(self, url: str) -> Age | None:
        """How old the page of a URL has to be to be crawled again, if a rule says so."""
        at = self._find_aged(url)
        return None if at is None else self.ages[at]

    def explain_age(self, url: str) -> tuple[Age, str] | None:
        """As :meth:`find_age`, and what messages call that rule."""
        at = self._find_aged(url)
        return None if at is None else (self.ages[at], self._ages_from[at])

    def _find_aged(self, url: str) -> int | None:
        if not self.ages:
            return None
        try:
            found = self._aged.match(canonicalize_url(url, keep_fragments=True))
        except Exception:  # whatever w3lib cannot parse
            return None
        return found[-1] if found else None

    def _matching(self, url: str) -> tuple[int, ...]:
        """The indexes of the rules that apply to a canonical URL, in their order."""
        found = [(index, *self._entries[index]) for index in self._index.match(url)]
        found.sort(key=lambda entry: entry[1].order)
        named = {source for _, rule, _, source in found if rule.include and not rule.fallback}
        return tuple(
            at for at, rule, _, source in found if not rule.fallback or source not in named
        )


def _digest(entries: Sequence[_Entry], version: int) -> str:
    if not entries:
        return ""
    sources = sorted({entry.source for entry in entries})
    meaning = []
    for rule, _, source in entries:
        data = asdict(rule)
        for key in ("name", "preset", "order", "recrawl_after"):
            del data[key]
        meaning.append([data, sources.index(source) if rule.fallback else None])
    return hashlib.sha1(json.dumps([version, meaning], sort_keys=True).encode()).hexdigest()
