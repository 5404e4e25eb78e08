"""Plain words of the field, and none that were made up at home."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Where to search: patterns below the project's folder.
SEARCHED = ("README.rst", "CONTRIBUTING.rst", "CHANGES.rst", "docs/*.rst")

#: Home-made words, as regular expressions, and better ones.  A space stands for any white space.
BETTER = {
    r"pours?|poured|pouring": "move, copy",
    r"(?:put|puts|putting|set|left) aside": "make a dead letter, ignore, move away",
    r"bury|buries|buried|burying": "make a dead letter",
    r"set-?backs?": "roll back, rollback",
    r"(?:take|takes|taken|taking|took)[ -]over": "import",
    r"takes? it up again": "resume",
    r"under way": "in flight, running",
    r"cannot be meant": "invalid",
    r"with a sentence|(?:in|with) one sentence": "with a clear error",
    r"(?:take|takes|taken|took) (?:\w+ ){0,3}for (?:visited|seen|done|one|a duplicate)": "treat as",
    r"as ever": "as before, still",
    r"if you want some": "optional",
    r"do not exist yet": "are not supported yet",
    r"(?:hold|holds|held) back": "buffer, delay",
    r"what does not count": "the parts to ignore",
    r"orderly": "clean",
    r"the house": "the package",
    r"got over": "survived",
    r"made good": "repaired, undone",
    r"comes? by": "execute, reach",
    r"without a word": "silently",
    r"no harm": "harmless",
    r"in the manner of": "following",
    r"is said to?": "log, report",
    r"put right": "fix",
    r"found out": "identify",
    r"stands? back": "yield",
    r"in one go": "all at once, atomically",
    r"begin(?:s|ning)? anew|begun anew": "start again",
}


def complaints(text: str, name: str) -> Iterator[str]:
    """What is wrong with *text*: file, line, the word, and the better one."""
    # What is in code may be a name that is on disk or in somebody's settings: not ours to choose.
    text = re.sub(r"``[^`]*``", lambda code: re.sub(r"\S", "_", code[0]), text)
    # A table that a command has printed is quoted as it is.
    text = re.sub(r"^.*[│┃].*$", "", text, flags=re.MULTILINE)
    for word, better in BETTER.items():
        pattern = rf"\b(?:{word})\b".replace(" ", r"\s+")
        for found in re.finditer(pattern, text, re.IGNORECASE):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{line}: {' '.join(found[0].split())!r}; better: {better}"


FILES = [path for pattern in SEARCHED for path in sorted(ROOT.glob(pattern))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_words_are_those_of_the_field(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    assert list(complaints(path.read_text(encoding="utf-8"), name)) == []


def test_each_pattern_of_searched_files_finds_some() -> None:
    assert [pattern for pattern in SEARCHED if not list(ROOT.glob(pattern))] == []


def test_a_home_made_word_is_found_with_its_line_and_the_better_one() -> None:
    text = "A queue.\nThen it is taken\nover, ``taken over`` too."
    assert list(complaints(text, "a.rst")) == ["a.rst:2: 'taken over'; better: import"]
