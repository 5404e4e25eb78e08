"""The command that a crawl gives to resume it: it is really run, and it holds no secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scrapy_altsched.command_line import CommandLine

from ..crawls import PROJECT, PYTHONPATH, run_python
from ..sites import Site, random_graph

SPIDER = """
import scrapy

class PagesSpider(scrapy.Spider):
    name = "pages"
    custom_settings = {"ADDONS": {"scrapy_altsched.Addon": 500}, "LOG_LEVEL": "INFO"}

    async def start(self):
        yield scrapy.Request(self.url)

    def parse(self, response):
        yield {"url": response.url, "title": getattr(self, "title", None)}
        yield from response.follow_all(css="a")
"""
SCRIPT = f"""
import sys
from scrapy.crawler import CrawlerProcess
{SPIDER}
process = CrawlerProcess({{
    "JOBDIR": sys.argv[1],
    "FEEDS": {{"my items.jsonl": {{"format": "jsonlines"}}}},
    "CLOSESPIDER_PAGECOUNT": 10,
}})
process.crawl(PagesSpider, url=sys.argv[2], title=sys.argv[3])
process.start()
"""
FEED = ("-o", "my items.jsonl:jsonlines")
ARGUMENTS = ("-a", "title=two words", *FEED, "-s", "JOBDIR=my job", "-sCLOSESPIDER_PAGECOUNT=10")


def paste(command: str | list[str], directory: Path) -> str:
    """Run a command, by a shell if it is a text; its log."""
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "SCRAPY_SETTINGS_MODULE": "crashsite.settings",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    run = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        (["scrapy", "crawl", "pages", *ARGUMENTS], "Resume it with: scrapy crawl pages -a "),
        (
            [sys.executable, "-X", "dev", "-m", "scrapy", "crawl", *ARGUMENTS, "pages"],
            f"Resume it with: {sys.executable} -X dev -m scrapy crawl -a ",
        ),
        (["scrapy", "runspider", *ARGUMENTS, "my spider.py"], "Resume it with: scrapy runspider "),
        (
            [sys.executable, "my script.py", "my job", "URL", "two words"],
            f"Resume it by running the same command again: {sys.executable} 'my script.py'",
        ),
    ],
    ids=["crawl", "module", "runspider", "script"],
)
def test_the_command_that_is_given_resumes_the_job(
    tmp_path: Path, command: list[str], begins: str
) -> None:
    (tmp_path / "my spider.py").write_text(SPIDER)
    (tmp_path / "my script.py").write_text(SCRIPT)
    (tmp_path / "scrapy.cfg").write_text((PROJECT / "scrapy.cfg").read_text())
    graph = random_graph(25, 3, 3)
    with Site(graph) as site:
        url = f"{site.url}/0?a=1&b=2"
        graph["/0?a=1&b=2"] = graph["/0"]
        given = [word.replace("URL", url) for word in command]
        if "URL" not in command:
            given += ["-a", f"url={url}"]
        log = paste(given, tmp_path)
        runs = 1
        while "is not finished" in log:
            assert begins in log
            found = re.search(r"not finished.*(?:with|again): (.+)", log)
            assert found is not None, log
            log = paste(found[1], tmp_path)
            runs += 1
            assert runs < 10, log
        assert runs > 1
        assert "is finished" in log
    rows = [json.loads(line) for line in (tmp_path / "my items.jsonl").read_text().splitlines()]
    assert {row["url"].removeprefix(site.url) for row in rows} >= set(graph) - {"/0"}
    assert {row.get("title", "two words") for row in rows} == {"two words"}


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["python", "-m", "scrapy", "crawl", "x"], "python -m scrapy crawl x"),
        (["python", "-Im", "scrapy.cmdline", "crawl", "x"], "python -Im scrapy.cmdline crawl x"),
        (["python", "-W", "error", "a b.py"], "python -W error 'a b.py'"),
        (["python", "-Werror", "--check-hash-based-pycs", "never", "a.py"], None),
        (["python", "/no/such/bin/scrapy", "crawl", "x"], "/no/such/bin/scrapy crawl x"),
        (["python", "a.py", "\udcff"], "python a.py '\\udcff'"),
    ],
)
def test_a_command_is_shown_as_it_was_given(argv: list[str], shown: str | None) -> None:
    command = CommandLine.parse(argv)
    assert command is not None
    assert str(command) == (shown if shown is not None else " ".join(argv))
    assert not command.has_secrets


@pytest.mark.parametrize(
    "argv", [[], [""], ["python"], ["python", "-"], ["python", "-c", "1"], ["python", "-Ic", "1"]]
)
def test_what_cannot_be_run_again_is_no_command(argv: list[str]) -> None:
    assert CommandLine.parse(argv) is None


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "-m", "scrapy", "--nolog", "crawl", "x"], "crawl"),
        (["python", "/venv/bin/scrapy", "runspider", "x.py"], "runspider"),
        (["python", "-mscrapy", "crawl", "x"], "crawl"),
        (["python", "crawl.py", "crawl", "x"], None),
        (["python", "-m", "scrapyd.runner", "crawl", "x"], None),
    ],
)
def test_which_of_scrapys_commands_it_is(argv: list[str], name: str | None) -> None:
    command = CommandLine.parse(argv)
    assert command is not None
    assert command.scrapy_command == name


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("password=hunter2", "password=***"),
        ("-sALTSCHED_SHARED_KEY=news", "-sALTSCHED_SHARED_KEY=news"),
        ("-sREDIS_START_URLS_KEY=%(name)s", "-sREDIS_START_URLS_KEY=%(name)s"),
        ("-sSCHEDULER_DUPEFILTER_KEY=seen", "-sSCHEDULER_DUPEFILTER_KEY=seen"),
        ("-sSCHEDULER_QUEUE_KEY=queue", "-sSCHEDULER_QUEUE_KEY=queue"),
        ("db_passwd=hunter2", "db_passwd=***"),
        ("apiKey=hunter2", "apiKey=***"),
        ("key=hunter2", "key=***"),
        ("AWS_ACCESS_KEY_ID=hunter2", "AWS_ACCESS_KEY_ID=***"),
        ("AWS_SECRET_ACCESS_KEY=hun=ter2\n", "AWS_SECRET_ACCESS_KEY=***"),
        ("--auth-token=hunter2", "--auth-token=***"),
        ("-aToken=hunter2", "-aToken=***"),
        ("-sSECRET=hunter2", "-sSECRET=***"),
        ("--set=TOKEN=hunter2", "--set=TOKEN=***"),
        ("s3://me:hunter2@bucket/a@b.jl:jsonlines", "s3://***@bucket/a@b.jl:jsonlines"),
        ('FEEDS={"ftp://me:hun@ter2@host/x": {}}', 'FEEDS={"ftp://***@host/x": {}}'),
        ("url=http://host/?q=1&api_key=hunter2&p=2", "url=http://host/?q=1&api_key=***&p=2"),
        ("auth=hunter2", "auth=***"),
        ("-aAuthorization=Basic hunter2", "-aAuthorization=***"),
        ("cookies=sid=hunter2; a=b", "cookies=***"),
        ("session=hunter2", "session=***"),
        ("sessionid=hunter2", "sessionid=***"),
        ("jwt=hunter2", "jwt=***"),
        ("bearer=hunter2", "bearer=***"),
        ("header=Bearer hunter2.hunter2", "header=Bearer ***"),
        ("url=http://host/?sv=1&sig=hunter2&p=2", "url=http://host/?sv=1&sig=***&p=2"),
        ("url=http://host/?X-Amz-Signature=hunter2", "url=http://host/?X-Amz-Signature=***"),
        ("ftp://me:hun/ter2@host/x.jl", "ftp://***@host/x.jl"),
        ("ftp://me:7/hunter2@host/x.jl", "ftp://***@host/x.jl"),
        ("url=https://me:hun/ter2#?@host/", "url=https://***@host/"),
        ('HEADERS={"Cookie": "a=hunter2"}', 'HEADERS={"Cookie": "***"}'),
        ('HEADERS={"A": "x", "X-Auth": "hunter2"}', 'HEADERS={"A": "x", "X-Auth": "***"}'),
        ('REDIS_PARAMS={"db": 1, "password": 12345}', 'REDIS_PARAMS={"db": 1, "password": ***}'),
        ("url=https://host:8000/@me", "url=https://host:8000/@me"),
        ("url=https://host/@me", "url=https://host/@me"),
        ("COOKIES_ENABLED=False", "COOKIES_ENABLED=False"),
        ("AUTOTHROTTLE_ENABLED=True", "AUTOTHROTTLE_ENABLED=True"),
        ("signal=1", "signal=1"),
        ("keyword=shoes", "keyword=shoes"),
        ("monkey=1", "monkey=1"),
        ("author=me@host.example", "author=me@host.example"),
        ("passengers=2", "passengers=2"),
        ("url=http://host/a=b?to=me@host", "url=http://host/a=b?to=me@host"),
    ],
)
def test_no_secret_is_shown(word: str, shown: str) -> None:
    command = CommandLine(("scrapy", "crawl", word))
    assert command.has_secrets == (word != shown)
    assert CommandLine(("scrapy", "crawl", shown)).words[2] in str(command).replace("'", "")
    assert "hunter2" not in str(command)
    assert "ter2" not in str(command)


def test_the_command_that_recomputes_fingerprints_has_the_rules_of_the_crawl(
    tmp_path: Path,
) -> None:
    (tmp_path / "my spider.py").write_text(SPIDER)
    (tmp_path / "scrapy.cfg").write_text((PROJECT / "scrapy.cfg").read_text())
    rules = 'ALTSCHED_URL_RULES=[{"preset": "tracking"}]'
    with Site(random_graph(25, 3, 3)) as site:
        command = ["scrapy", "crawl", "pages", *ARGUMENTS, "-a", f"url={site.url}/0"]
        paste(command, tmp_path)
        log = paste([*command, "-s", rules], tmp_path)
        found = re.search(r"stop this crawl and run: (.+)", log)
        assert found is not None, log
        paste(found[1], tmp_path)
        assert "stop this crawl and run" not in paste([*command, "-s", rules], tmp_path)


def test_a_crawl_of_scrapyd_is_resumed_by_scheduling_it_again(tmp_path: Path) -> None:
    package = tmp_path / "scrapyd"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "runner.py").write_text(
        "import os; os.environ['SCRAPY_PROJECT']; from scrapy.cmdline import execute; execute()"
    )
    command = ["scrapyd.runner", "crawl", "pages", "-s", "JOBDIR=my job"]
    with Site(random_graph(25, 3, 3)) as site:
        run = run_python(
            "-m",
            *command,
            *("-s", "CLOSESPIDER_PAGECOUNT=5", "-a", f"url={site.url}/0"),
            cwd=tmp_path,
            SCRAPY_PROJECT="crashsite",
            SCRAPY_SETTINGS_MODULE="crashsite.settings",
            PYTHONPATH=os.pathsep.join((str(tmp_path), PYTHONPATH)),
        )
    assert run.returncode == 0, run.stderr
    jobdir = tmp_path / "my job"
    assert (
        "Resume it by scheduling the same spider again with Scrapyd, with the same arguments and"
        f" setting=JOBDIR={jobdir}" in run.stderr
    )
    assert "-m scrapyd.runner" not in run.stderr


def test_a_value_that_follows_its_option_is_no_secret_either() -> None:
    command = CommandLine(("python", "a.py", "--api-key", "hunter2", "-a", "key=hunter2", "--all"))
    assert str(command) == "python a.py --api-key '***' -a 'key=***' --all"
