"""Plain words of the field, and none that were made up at home."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Where to search: patterns below the project's folder.
SEARCHED = (
    "README.rst",
    "CONTRIBUTING.rst",
    "CHANGES.rst",
    "docs/*.rst",
    "scrapy_altsched/**/*.py",
    "example_project/**/*.py",
    "benchmarks/**/*.py",
)

#: Home-made words, as regular expressions, and better ones.  A space stands for any white space,
#: and in Python files also for an underscore or the border of two words in a name.
BETTER = {
    r"pours?|poured|pouring": "move, copy",
    r"(?:put|puts|putting|set|left|next|move|moved) aside": "make a dead letter, ignore, move away",
    r"bury|buries|buried|burying": "make a dead letter",
    r"set-?backs?": "roll back, rollback",
    r"(?:take|takes|taken|taking|took)(?: |-)over": "import",
    r"takes? it up again": "resume",
    r"under way": "in flight, running",
    r"meant": "invalid, intended",
    r"with a sentence|(?:in|with) one sentence": "with a clear error",
    r"(?:take|takes|took) (?:\w+ ){0,3}for (?:visited|seen|done|one|a duplicate)": "treat as",
    r"(?:be|is|are|was|were|not|never) taken (?:for|to)": "treated as, assumed to",
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
    r"anew": "again, recompute, rewrite",
    r"mend(?:s|ed|ing)?": "repair",
    r"(?:have|has|having) (?:\w+ )?\*\w+\* (?:be|not be)": "let, make, or say it directly",
}


def words_of(source: str) -> str:
    """A Python file as text: names as words, comments and messages without their marks."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", source)
    return re.sub(r"""^ *(?:#:?|[fr]*["'])|["'] *$""", " ", words, flags=re.MULTILINE)


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
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = words_of(text)
    assert list(complaints(text, path.relative_to(ROOT).as_posix())) == []


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("scrapy_altsched/**/*.py")]
    names = Counter(re.findall(r"^class (\w+)", "\n".join(sources), re.MULTILINE))
    assert [name for name, count in names.items() if count > 1] == []


def test_each_pattern_of_searched_files_finds_some() -> None:
    assert [pattern for pattern in SEARCHED if not list(ROOT.glob(pattern))] == []


def test_a_home_made_word_is_found_with_its_line_and_the_better_one() -> None:
    text = "A queue.\nThen it is taken\nover, ``taken over`` too."
    assert list(complaints(text, "a.rst")) == ["a.rst:2: 'taken over'; better: import"]


def test_a_home_made_word_is_found_in_names_comments_and_messages() -> None:
    source = """def put_aside(x: TakeOver):
    # What was poured,
    # taken
    # over.
    raise ValueError(
        f"{x} cannot be"
        " meant."
    )
"""
    found = [complaint.partition(";")[0] for complaint in complaints(words_of(source), "a.py")]
    assert sorted(found) == [
        "a.py:1: 'Take Over'",
        "a.py:1: 'put aside'",
        "a.py:2: 'poured'",
        "a.py:3: 'taken over'",
        "a.py:7: 'meant'",
    ]
