"""The page in a browser: at each width, light and dark; and what hostile sites make of it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Browser, Error, expect, sync_playwright
from playwright.sync_api import Page as Tab

from scrapy_altsched.errors import ConfigError
from scrapy_altsched.report.page import Page, _load, is_page, render

from .pages import IMAGE, SCRIPT, hostile_page

#: A browser of the system, if there is one; else Playwright's own.
SYSTEM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
Open: TypeAlias = Callable[..., Tab]

#: Text whose color cannot be told from what is behind it: its contrast is too low, by
#: https://www.w3.org/TR/WCAG22/#contrast-minimum.
FAINT_TEXTS = """() => {
    const numbers = color => color.match(/[0-9.]+/g).map(Number);
    const light = color => {
        const [r, g, b] = numbers(color).slice(0, 3).map(value => {
            value /= 255;
            return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (; element; element = element.parentElement) {
            const color = getComputedStyle(element).backgroundColor;
            if (!color.startsWith("rgba") || numbers(color)[3] === 1) return color;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [];
    for (const element of document.querySelectorAll("main *")) {
        const own = [...element.childNodes].some(it => it.nodeType === 3 && it.data.trim());
        if (!own || !element.getClientRects().length) continue;
        const style = getComputedStyle(element);
        const ink = element.closest("svg") ? style.fill : style.color;
        const [low, high] = [light(ink), light(behind(element))].sort((a, b) => a - b);
        if ((high + 0.05) / (low + 0.05) < 4.5) found.push([element.textContent, ink]);
    }
    return found;
}"""
#: Elements that reach out of the window, or of what they are in.
OVERFLOWING = """() => [...document.querySelectorAll("main, main :is(section, div, code, td)")]
    .filter(it => it.getBoundingClientRect().right > innerWidth + 0.5
        || (it.tagName === "SECTION" && it.scrollWidth > it.clientWidth + 1))
    .map(it => it.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=SYSTEM)
        except Error as error:
            pytest.skip(f"there is no Chromium: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page in a window; it complains of nothing, and asks no server for anything."""
    complaints: list[str] = []
    contexts = []

    def note_request(url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            complaints.append(url)

    def open_page(page: Page, **options: Any) -> Tab:
        path = tmp_path / "report.html"
        path.write_bytes(render(page).encode(errors="backslashreplace"))
        context = browser.new_context(**options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: note_request(request.url))
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1_600])
def test_it_is_readable(open_page: Open, width: int, scheme: str) -> None:
    tab = open_page(hostile_page(), viewport={"width": width, "height": 900}, color_scheme=scheme)
    expect(tab.locator(".chart .main-svg").first).to_be_visible()
    back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(244, 245, 247)", "dark": "rgb(17, 18, 20)"}[scheme]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(OVERFLOWING) == []
    assert tab.evaluate(FAINT_TEXTS) == []
    # Lines over time: of requests, their speed, failures; and bars.
    for name, count in (("requests", 7), ("speed", 5), ("failures", 5)):
        expect(tab.locator(f"#chart-{name} .scatterlayer .trace")).to_have_count(count)
        drawn = tab.locator(f"#chart-{name} .scatterlayer .js-line").all()
        assert all(len(it.get_attribute("d") or "") > 9 for it in drawn)
        # Each line has a part for each run.
        assert len(drawn) >= count
    expect(tab.locator("#chart-slots .bars .point path")).to_have_count(6)
    charts = [it.bounding_box() for it in tab.locator(".chart").all()]
    assert all(box and box["width"] >= 330 and box["height"] >= 150 for box in charts)
    # Side by side where there is room.
    assert len({box["x"] for box in charts if box}) == (1 if width == 400 else 2)


def test_it_follows_the_width_of_its_window(open_page: Open) -> None:
    tab = open_page(hostile_page(), viewport={"width": 1_600, "height": 900})
    svg = tab.locator("#chart-requests .main-svg").first
    expect(svg).to_be_visible()
    tab.set_viewport_size({"width": 400, "height": 900})
    expect(svg).to_have_attribute("width", re.compile(r"3\d\d"))
    assert tab.evaluate(OVERFLOWING) == []


def test_what_hostile_sites_have_sent_is_shown_and_does_nothing(open_page: Open) -> None:
    tab = open_page(hostile_page())
    expect(tab).to_have_title("books: running")
    expect(tab.get_by_text(f"33 failed: callback ValueError, {SCRIPT}")).to_be_visible()
    expect(tab.locator("td", has_text=IMAGE)).to_be_visible()
    assert tab.locator("main img, main script, main a").count() == 0
    tab.locator("#chart-slots .bars .point path").nth(2).hover(force=True)
    expect(tab.locator("#chart-slots .hovertext")).to_be_visible()
    assert tab.locator("main img, main script, main a").count() == 0
    expect(tab).to_have_title("books: running")


def test_the_policy_stops_what_would_get_into_it(open_page: Open, tmp_path: Path) -> None:
    # As if the template did not escape something.
    tab = open_page(replace(hostile_page(), sentence="HERE"))
    path = tmp_path / "report.html"
    path.write_text(path.read_text().replace("HERE", f"{SCRIPT}<p onclick='1'></p>"))
    messages = []
    other = tab.context.new_page()
    other.on("console", lambda message: messages.append(message.text))
    other.goto(path.as_uri())
    expect(other).to_have_title("books: running")
    assert any("Content Security Policy" in message for message in messages)


def test_it_is_loaded_again_until_it_says_no_more(open_page: Open, tmp_path: Path) -> None:
    tab = open_page(hostile_page(refresh=1))
    expect(tab).to_have_title("books: running")
    assert "again every 1 seconds" in tab.content()
    last = render(replace(hostile_page(), state="finished"))
    # At once, as the command does: the browser may be reading the file.
    partial = tmp_path / "partial"
    partial.write_bytes(last.encode(errors="backslashreplace"))
    partial.replace(tmp_path / "report.html")
    expect(tab).to_have_title("books: finished")
    assert 'http-equiv="refresh"' not in tab.content()


def test_without_a_chart_there_is_a_page_still(open_page: Open) -> None:
    tab = open_page(replace(hostile_page(), charts=[], stops=[], tables=[], state="silent"))
    expect(tab.get_by_text("A note.")).to_be_visible()


def test_a_page_is_known_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(render(hostile_page()).encode(errors="backslashreplace"))
    assert is_page(path)
    path.write_bytes(b"<!DOCTYPE html>\n<title>mine</title>")
    assert not is_page(path)
    path.write_bytes(b"")
    assert not is_page(path)


@pytest.mark.parametrize("package", ["jinja2", "plotly.offline"])
def test_a_package_that_is_missing_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    _load.cache_clear()
    with pytest.raises(ConfigError, match=rf"package {package.partition('.')[0]},.+\[report\]"):
        render(hostile_page())
