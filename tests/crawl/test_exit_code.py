"""What exit codes say of a job."""

from __future__ import annotations

from pathlib import Path

from ..crawls import KILLED, Crawl, altsched
from ..sites import Page, Site

SITE = {"/0": Page(["/1"]), "/1": Page(["/2"]), "/2": Page()}


def test_the_exit_codes_say_what_the_job_is(tmp_path: Path) -> None:
    says = {"ALTSCHED_EXIT_CODE": 1, "ALTSCHED_MAX_CRASHES": 1}
    with Site(SITE) as site:
        crawl = Crawl(tmp_path, "pages", f"{site.url}/0", poison="/2")
        feed = ("-o", "-:jsonlines")
        assert crawl.run(feed, CLOSESPIDER_PAGECOUNT=1, CONCURRENT_REQUESTS=1, **says) == 4
        assert "/0" in crawl.output
        assert "Spider closed (closespider_pagecount)" in crawl.log
        assert altsched("check", "--finished", crawl.jobdir).returncode == 4
        assert altsched("check", crawl.jobdir).returncode == 0
        while (code := crawl.run(**says)) == KILLED:
            pass
        assert code == 3
        assert altsched("check", "--finished", crawl.jobdir).returncode == 3
        assert altsched("requeue", "--all", crawl.jobdir).returncode == 0
        crawl.arguments["poison"] = "none"
        assert crawl.run(**says) == 0
        assert altsched("check", "--finished", crawl.jobdir).returncode == 0
