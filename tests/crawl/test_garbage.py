"""What garbage collections leave out while a crawl is open."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_altsched.crawl import garbage
from scrapy_altsched.errors import AltschedError

from ..engines import OURS, StandIn

IN_MEMORY_OR_ON_DISK = pytest.mark.parametrize("name", [None, "job"], ids=["memory", "disk"])


@pytest.fixture(autouse=True)
def _first_crawl_of_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Other tests of this process had crawls, and left some open, as a death does.
    gc.unfreeze()
    monkeypatch.setattr(garbage, "_is_frozen", None)
    yield
    gc.unfreeze()


def open_crawl(jobdir: Path | None = None, **settings: Any) -> StandIn:
    return StandIn({**OURS, "JOBDIR": str(jobdir) if jobdir else None, **settings})


class Ring:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@IN_MEMORY_OR_ON_DISK
def test_what_stood_is_left_out_until_the_crawl_closes(tmp_path: Path, name: str | None) -> None:
    standing = Ring()
    crawl = open_crawl(tmp_path / name if name else None)
    assert all(known is not standing for known in gc.get_objects())
    later = Ring()
    assert any(known is later for known in gc.get_objects())
    crawl.scheduler.close("finished")
    assert gc.get_freeze_count() == 0
    assert any(known is standing for known in gc.get_objects())


def test_what_became_garbage_meanwhile_is_freed_after_the_crawl(tmp_path: Path) -> None:
    standing = Ring()
    freed = weakref.ref(standing)
    crawl = open_crawl(tmp_path / "job")
    del standing
    gc.collect()
    assert freed() is not None
    crawl.scheduler.close("finished")
    gc.collect()
    assert freed() is None


def test_crawls_that_overlap_forever_keep_no_garbage(tmp_path: Path) -> None:
    """However long the one crawl lasts, what others leave behind can be freed."""
    lasting = open_crawl(tmp_path / "lasting")
    for number in range(3):
        other = open_crawl(tmp_path / str(number))
        freed = weakref.ref(other.scheduler)
        other.scheduler.close("finished")
        del other
        gc.collect()
        assert freed() is None
    lasting.scheduler.close("finished")
    assert gc.get_freeze_count() == 0


def test_crawls_that_follow_at_once_keep_no_garbage(tmp_path: Path) -> None:
    """No collection comes between the end of one and the beginning of the next."""
    first = open_crawl(tmp_path / "1")
    freed = weakref.ref(first.scheduler)
    first.scheduler.close("finished")
    del first
    open_crawl(tmp_path / "2")
    gc.collect()
    assert freed() is None


def test_what_somebody_else_froze_stays_so(tmp_path: Path) -> None:
    standing = Ring()
    gc.freeze()
    later = Ring()
    crawl = open_crawl(tmp_path / "job")
    assert any(known is later for known in gc.get_objects())
    crawl.scheduler.close("finished")
    assert all(known is not standing for known in gc.get_objects())


def test_nothing_is_left_out_if_the_setting_says_so(tmp_path: Path) -> None:
    crawl = open_crawl(tmp_path / "job", ALTSCHED_GC_FREEZE=False)
    assert gc.get_freeze_count() == 0
    crawl.scheduler.close("finished")


def test_a_crawl_that_could_not_open_leaves_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    with pytest.raises(AltschedError):
        open_crawl(tmp_path / "job")
    assert gc.get_freeze_count() == 0
