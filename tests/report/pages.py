"""A page about a crawl that was killed, and whose sites are hostile."""

from __future__ import annotations

from dataclasses import replace

from scrapy_altsched.frontier.entry import Counts
from scrapy_altsched.frontier.history import Sample
from scrapy_altsched.report.charts import charts_of
from scrapy_altsched.report.page import KeyFigure, Page, StopReason, Table
from scrapy_altsched.report.runs import marks_of_runs, runs_of

#: In seconds since the epoch.
BEGAN = 1_800_000_000
SCRIPT = "<script>document.title = 'hacked'</script>"
IMAGE = "<img src='http://192.0.2.1/' onerror=\"document.title = 'hacked'\">"
LONG = "x" * 300
#: Names of download slots, which spiders may take from pages.
SLOTS = [
    ("books.example", 900),
    (SCRIPT, 700),
    (f"<a href=\"javascript:document.title='hacked'\">{IMAGE}</a>", 500),
    (LONG, 300),
    ("</script><script>document.title='hacked'</script>", 100),
    ("\udcff${alert(1)}%{x}", 50),
]


def sample(second: int, run: int, state: str = "running", duplicates: int = 0) -> Sample:
    done = 10 * second
    counts = Counts(
        accepted=40 * second, done=done, failed=second // 9, dead=second // 50, pending=29 * second
    )
    return Sample(BEGAN + second, run, state, counts, duplicates)


def samples() -> list[Sample]:
    """A run that dies, one that stops, and one that goes on."""
    first = [sample(second, 1, duplicates=second) for second in range(100)]
    second = [sample(second, 2, duplicates=second - 150) for second in range(150, 200)]
    second[-1] = replace(second[-1], state="stopped")
    third = [sample(second, 3, duplicates=second - 250) for second in range(250, 300)]
    return [*first, *second, *third]


def hostile_page(refresh: int | None = None) -> Page:
    found = samples()
    command = f"scrapy altsched requeue job --failed --reason callback --slot '{SCRIPT}' --all"
    return Page(
        spider="books",
        target=f"Job directory /crawls/{LONG}",
        state="running",
        sentence="Running since 2027-01-15 08:00:00 (UTC): process 1 on host here, run 3.",
        written="2027-01-15 08:05:00 (UTC)",
        refresh=refresh,
        figures=[
            KeyFigure("accepted", "12,000,000"),
            KeyFigure("done", "3,000", "25.0% of all"),
            KeyFigure("failed", "33", alarms=True),
        ],
        charts=charts_of(found, marks_of_runs(runs_of(found, lives=True)), SLOTS),
        charts_note="A note.",
        stops=[
            StopReason(f"33 failed: callback ValueError, {SCRIPT}", IMAGE, IMAGE, "today", command),
            StopReason(
                f"1 dead: unrestorable, {LONG}", LONG, f"http://{LONG}/", None, "It is gone."
            ),
        ],
        stops_note="Grouped by reason.",
        tables=[
            Table("Slots held", ("slot", "until"), [(IMAGE, "now"), (LONG, "2027")], "Two."),
            Table("Workers", ("worker", "leased", "last heard of", "leases expire"), []),
        ],
    )
