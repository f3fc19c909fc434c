"""Somebody sets up a second factor, is asked for it, loses the telephone, and takes it away."""

from __future__ import annotations

import time
from base64 import b32decode
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django_otp.oath import TOTP

from tests.browser.conftest import Visitor
from tests.support.broker_process import BrokerProcess, run_manage

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.process]

NAME, PASSWORD = "second", "a-long-password-of-the-tests"


@pytest.fixture
def person(broker: BrokerProcess) -> str:
    env = {**broker.env, "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
    made = run_manage(
        "createsuperuser", "--noinput", "--username", NAME, "--email", "second@example.com", env=env
    )
    assert made.returncode == 0, made.stderr
    return NAME


def code(secret: str, step: int = 0) -> str:
    """What an authenticator shows. A code counts once, so the next step's is for the next form."""
    totp = TOTP(b32decode(secret.replace(" ", "")))
    totp.time = time.time() + 30 * step
    return f"{totp.token():06d}"


def log_in(visitor: Visitor) -> None:
    visitor.open("/admin/login/?next=/status/tasks/")
    visitor.page.fill("#id_username", NAME)
    visitor.page.fill("#id_password", PASSWORD)
    visitor.page.press("#id_password", "Enter")
    visitor.page.wait_for_load_state()


def expect_no_barrier(visitor: Visitor) -> None:
    assert visitor.overflow <= 0
    seen = len(visitor.problems)
    violations = Axe().run(visitor.page).response["violations"]
    del visitor.problems[seen:]  # axe tries styles of its own, which the policy refuses
    assert [rule["id"] for rule in violations if rule["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize(("locale", "width"), [("ja-JP", 390)])
def test_set_up_asked_for_and_taken_away(
    visit: Callable[..., Visitor], person: str, locale: str, width: int
) -> None:
    visitor = visit(locale=locale, width=width)
    page = visitor.page
    log_in(visitor)
    visitor.open("/account/second-factor/")
    expect_no_barrier(visitor)
    page.click("form:has(input[value=begin]) button")
    secret = visitor.text("code.secret")
    assert page.locator(".qr svg").bounding_box()["width"] <= width
    expect_no_barrier(visitor)
    page.fill("#code", code(secret))
    page.press("#code", "Enter")
    recovery = page.locator(".recovery-codes code").all_inner_texts()
    assert len(recovery) == 10
    expect_no_barrier(visitor)

    again = visit(locale=locale, width=width)
    log_in(again)
    assert "/account/second-factor/check/" in again.page.url
    again.open("/status/tasks/")
    assert "/account/second-factor/check/" in again.page.url, "the password alone opens nothing"
    expect_no_barrier(again)
    again.page.fill("#code", "000000")
    again.page.press("#code", "Enter")
    again.page.wait_for_selector(".notice-bad")
    # A wrong code makes the next wait; the telephone is lost anyway.
    again.page.fill("#code", recovery[0])
    again.page.press("#code", "Enter")
    again.page.wait_for_url("**/status/tasks/")

    again.open("/account/second-factor/")
    expect_no_barrier(again)
    again.page.fill("#code-to-remove", recovery[1])
    again.page.press("#code-to-remove", "Enter")
    again.page.wait_for_selector("form:has(input[value=begin])")

    after = visit(locale=locale, width=width)
    log_in(after)
    assert after.page.url.endswith("/status/tasks/")
