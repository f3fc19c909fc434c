"""A real browser against the real application: `manage.py broker` with its pollers, on the sandbox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, password_of, wait_for

CHROMIUM = (
    os.environ.get("BROKER_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


sessions: dict[int, Any] = {}  # by the port of the broker


class Visitor:
    """A person at a browser. ``problems`` are console errors, failed requests and requests to other hosts."""

    def __init__(self, page: Any, broker: BrokerProcess) -> None:
        self.page = page
        self.broker = broker
        self.problems: list[str] = []
        page.on("console", lambda m: self._note(m.type == "error", f"console: {m.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("requestfailed", lambda r: self._failed(r))
        page.on("response", lambda r: self._note(r.status >= 400, f"{r.status} {r.url}"))
        page.on("request", lambda r: self._foreign(r))

    def _note(self, is_bad: bool, text: str) -> None:
        if is_bad:
            self.problems.append(text)

    def _failed(self, request: Any) -> None:
        # A page that is left while it renews itself breaks its own request off.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _foreign(self, request: Any) -> None:
        if not request.url.startswith((self.broker.url(""), "data:")):
            self.problems.append(f"foreign: {request.url}")

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.broker.url(path))
        assert answer is not None
        return answer

    def log_in(self) -> Visitor:
        """Arrive on the first status page as admin; by the form the first time, later with its cookie."""
        if cookie := sessions.get(self.broker.port):
            self.page.context.add_cookies([cookie])
            self.open("/")
            return self
        self.open("/")
        self.page.fill("#id_username", "admin")
        self.page.fill("#id_password", password_of(self.broker.output))
        self.page.press("#id_password", "Enter")
        self.page.wait_for_url("**/status/")
        [sessions[self.broker.port]] = [c for c in self.page.context.cookies() if c["name"] == "sessionid"]
        return self

    def text(self, selector: str = "body") -> str:
        return str(self.page.inner_text(selector))

    @property
    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    var: Path = tmp_path_factory.mktemp("broker-browser")
    process = BrokerProcess(var, BROKER_ADMIN_2FA="optional")
    try:
        process.wait_until_greeted()
        wait_for(lambda: "poller=issues" in process.output, "the first issues are read")
        wait_for(lambda: "poller=items" in process.output, "the first items are judged")
        wait_for(lambda: "poller=fixtures" in process.output, "the first matches are found", 60)
        yield process
    finally:
        process.close()


@pytest.fixture(scope="package")
def browser(broker: BrokerProcess) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, broker: BrokerProcess) -> Iterator[Callable[..., Visitor]]:
    """Make visitors: ``visit(locale="ja-JP", width=390)``. Their problems fail the test at its end."""
    made: list[tuple[Visitor, Any]] = []

    def make(*, locale: str = "en-GB", width: int = 1280, height: int = 900, **options: Any) -> Visitor:
        context = browser.new_context(
            locale=locale, viewport={"width": width, "height": height}, timezone_id="Asia/Tokyo", **options
        )
        context.set_default_timeout(20_000)
        visitor = Visitor(context.new_page(), broker)
        made.append((visitor, context))
        return visitor

    yield make
    for _visitor, context in made:
        context.close()
    problems = [problem for visitor, _context in made for problem in visitor.problems]
    assert not problems, problems
