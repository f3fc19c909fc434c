"""The guide in a real browser: on a phone, in the dark, on paper."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from fixtures.clients.football_answers import read_lineups, read_match
from fixtures.guide.facts import GuideFacts
from fixtures.guide.page import render_guide

DATA = Path(__file__).parent.parent / "data" / "football" / "finished_match.json"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = json.loads(DATA.read_text(encoding="utf-8"))
    match = read_match(raw)
    lineups = {lineup.team_id: lineup for lineup in read_lineups(raw["lineups"])}
    html = render_guide(
        GuideFacts(match, lineups=lineups), preview="見どころの多い一戦。", generated_at=match.kickoff_at
    )
    path = tmp_path_factory.mktemp("guide") / "guide.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [320, 390, 1000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_asks_nobody(browser: Browser, page_file: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    assert requests == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    inside = page.evaluate(
        """() => { const field = document.querySelector('svg.pitch').getBoundingClientRect();
        return [...document.querySelectorAll('svg.pitch g')].map(g => g.getBoundingClientRect())
          .filter(r => r.left >= field.left && r.right <= field.right && r.top >= field.top
            && r.bottom <= field.bottom + 1).length }"""
    )
    assert inside == 22
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(15, 20, 25)") is (scheme == "dark")
    page.close()


def test_on_paper(browser: Browser, page_file: Path, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.pitch .grass')).fill")
        == "rgb(255, 255, 255)"
    )
    page.pdf(path=tmp_path / "guide.pdf", format="A4")
    assert (tmp_path / "guide.pdf").stat().st_size > 10_000
    page.close()
