"""The monitors of Spidermon that the documentation shows, over the stats of a crawl."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..crawls import PROJECT, Crawl, write_project
from ..docs.test_docs import code_blocks
from ..sites import Page, Site


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One with the tests' spiders and the examples."""
    monitors, settings = code_blocks("monitoring.rst", "python")
    base = (PROJECT / "crashsite" / "settings.py").read_text()
    base = base.replace("EXTENSIONS = {", "OTHERS = {")
    settings += "\nEXTENSIONS |= OTHERS\n"
    (tmp_path / "project").mkdir()
    files = {"settings.py": f"{base}\n{settings}", "monitors.py": monitors}
    return write_project(tmp_path / "project", **files)


def crawl_with(project: Path, down: int, **settings: object) -> Crawl:
    """A crawl of ten pages, of which some answer 503."""
    pages = {"/0": Page([f"/{number}" for number in range(1, 10)])}
    pages |= {f"/{number}": Page(status=503 if number <= down else 200) for number in range(1, 10)}
    with Site(pages) as site:
        crawl = Crawl(project.parent, "pages", f"{site.url}/0")
        crawl.project = project
        assert crawl.run(**settings) == 0
    return crawl


def test_all_is_well(project: Path) -> None:
    assert "3 monitors in" in crawl_with(project, 0).log


def test_too_many_failed(project: Path) -> None:
    log = crawl_with(project, 1, RETRY_ENABLED=True, RETRY_TIMES=0).log
    assert "see why: scrapy altsched failed JOBDIR" in log


def test_a_job_is_not_finished(project: Path) -> None:
    log = crawl_with(project, 0, CLOSESPIDER_PAGECOUNT=2, CONCURRENT_REQUESTS=1).log
    assert "'not_finished' != 'finished'" in log
