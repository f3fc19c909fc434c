"""Logging in and out: guessing is slow, nothing is told about names, no page sends anybody elsewhere."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import httpx
import pytest
from axes.models import AccessAttempt
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from tests.support.server import BrokerWorld

PASSWORD = "a-rather-long-password"
LOG_IN = "/admin/login/"
LIMIT = 5


@pytest.fixture(autouse=True)
def person(db: None, store: object) -> User:
    return User.objects.create_user("suzuki", password=PASSWORD, is_staff=True)


def try_to(
    name: str = "suzuki",
    password: str = "wrong",
    address: str = "203.0.113.5",
    client: Client | None = None,
    **meta: Any,
) -> Any:
    form = {"username": name, "password": password, "next": "/status/"}
    return (client or Client()).post(LOG_IN, form, REMOTE_ADDR=address, **meta)


def fail(number: int, **more: Any) -> None:
    for _ in range(number):
        try_to(**more)


# Lock-out


def test_after_five_failures_even_the_right_password_waits() -> None:
    assert [try_to().status_code for _ in range(LIMIT)] == [200] * (LIMIT - 1) + [429]
    answer = try_to(password=PASSWORD)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == str(15 * 60)
    assert "sessionid" not in answer.cookies
    assert try_to(password=PASSWORD, address="203.0.113.6").status_code == 302, "nobody locks others out"
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=15, seconds=1))
    assert try_to(password=PASSWORD).status_code == 302, "it ends by itself"


@pytest.mark.parametrize(("language", "words"), [("ja", "試行回数が多すぎます"), ("en", "Too many tries")])
def test_the_page_is_ours_in_both_languages(language: str, words: str) -> None:
    fail(LIMIT)
    answer = try_to(HTTP_ACCEPT_LANGUAGE=language)
    text = answer.content.decode()
    assert words in text
    assert "suzuki" not in text
    assert not re.search(r"<style|style=|<script(?! src=)|onclick", text)


def test_a_name_that_is_not_there_looks_the_same() -> None:
    def seen(answer: Any) -> tuple[int, str]:
        text = re.sub(r'name="csrfmiddlewaretoken" value="[^"]+"', "", answer.content.decode())
        return answer.status_code, text.replace("nobody-here", "suzuki")

    for _ in range(LIMIT + 1):
        assert seen(try_to("suzuki")) == seen(try_to("nobody-here"))


def test_other_spellings_of_the_name_are_the_same_name() -> None:
    """The form takes wide letters and spaces for what they are; so does the count."""
    for name in ("suzuki", " suzuki", "suzuki ", "ｓｕｚｕｋｉ", "suzuki"):
        try_to(name)
    assert try_to(password=PASSWORD).status_code == 429


def test_a_right_password_forgives_the_wrong_ones() -> None:
    fail(LIMIT - 1)
    assert try_to(password=PASSWORD).status_code == 302
    fail(LIMIT - 1)
    assert try_to(password=PASSWORD).status_code == 302


def test_a_proxy_that_is_trusted_says_for_whom_it_asks() -> None:
    fail(LIMIT, address="127.0.0.1", HTTP_X_FORWARDED_FOR="198.51.100.1")
    assert (
        try_to(password=PASSWORD, address="127.0.0.1", HTTP_X_FORWARDED_FOR="198.51.100.1").status_code == 429
    )
    assert (
        try_to(password=PASSWORD, address="127.0.0.1", HTTP_X_FORWARDED_FOR="198.51.100.2").status_code == 302
    )
    # What a stranger writes into the header opens nothing: it is one address.
    for n in range(LIMIT):
        try_to(address="203.0.113.5", HTTP_X_FORWARDED_FOR=f"198.51.100.{n}")
    assert try_to(password=PASSWORD, HTTP_X_FORWARDED_FOR="198.51.100.99").status_code == 429


def test_an_admin_can_unlock_and_an_operator_cannot() -> None:
    fail(LIMIT)
    fail(1, HTTP_USER_AGENT="another browser")
    row = AccessAttempt.objects.order_by("pk").first()
    assert row is not None
    form = {"action": "unlock", "_selected_action": [str(row.pk)], "confirmed": "1"}
    address = "/admin/broker/loginfailure/"
    for group, status in (("viewer", 403), ("operator", 403), ("admin", 302)):
        helper = User.objects.create_user(group, is_staff=True)
        helper.groups.add(Group.objects.get(name=group))
        client = Client()
        client.force_login(helper)
        assert client.post(address, form).status_code == status, group
    assert LogEntry.objects.filter(change_message__startswith="unlock: ").count() == 1
    assert AccessAttempt.objects.count() == 0
    assert try_to(password=PASSWORD).status_code == 302


def test_no_password_is_kept_or_logged(capfd: pytest.CaptureFixture[str]) -> None:
    fail(LIMIT + 1, password="my-secret-guess")
    for row in AccessAttempt.objects.all().values():
        assert "my-secret-guess" not in str(row)
    out, err = capfd.readouterr()
    assert "my-secret-guess" not in out + err


# Sessions


def test_logging_in_makes_a_new_session_and_logging_out_ends_it() -> None:
    client = Client()
    session = client.session  # a session from before, as somebody might have planted one
    session["planted"] = 1
    session.save()
    before = session.session_key
    token = client.get(LOG_IN).cookies["csrftoken"].value
    answer = try_to(password=PASSWORD, client=client)
    after = client.session.session_key
    assert (answer.status_code, answer.headers["Location"]) == (302, "/status/")
    assert after != before
    assert not Session.objects.filter(session_key=before).exists()
    assert answer.cookies["csrftoken"].value != token
    cookie = answer.cookies["sessionid"]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
    assert client.get("/admin/logout/").status_code == 405, "a link must not log anybody out"
    assert client.get("/status/").status_code == 200
    assert client.post("/admin/logout/").status_code in (200, 302)
    thief = Client()
    thief.cookies["sessionid"] = after or ""
    assert thief.get("/status/").status_code == 302, "the old session is worth nothing"


def test_a_session_ends_with_the_password_and_with_the_account() -> None:
    client = Client()
    try_to(password=PASSWORD, client=client)
    person = User.objects.get(username="suzuki")
    person.set_password("another-long-password")
    person.save()
    assert client.get("/status/").status_code == 302
    try_to(password="another-long-password", client=client)
    assert client.get("/status/").status_code == 200
    User.objects.update(is_active=False)
    assert client.get("/status/").status_code == 302


# Where to


ELSEWHERE = [
    "https://evil.example.org/",
    "//evil.example.org/",
    "///evil.example.org",
    "\\\\evil.example.org",
    "/\\evil.example.org",
    "http:evil.example.org",
    "javascript:alert(1)",
    " https://evil.example.org/",
    "https://testserver@evil.example.org/",
    "https:///evil.example.org",
]


@pytest.mark.parametrize("there", ELSEWHERE)
def test_no_page_sends_anybody_elsewhere(there: str) -> None:
    client = Client()
    form = {"username": "suzuki", "password": PASSWORD, "next": there}
    assert client.post(LOG_IN, form).headers["Location"] == "/status/"
    answer = client.get(LOG_IN, {"next": there})  # logged in already
    assert "evil" not in answer.headers.get("Location", "")
    switched = client.post("/i18n/setlang/", {"language": "en", "next": there}, headers={"referer": there})
    assert switched.status_code in (204, 302)
    assert "evil" not in switched.headers.get("Location", "")
    assert "alert" not in switched.headers.get("Location", "")


def test_a_place_of_ours_is_gone_to() -> None:
    form = {"username": "suzuki", "password": PASSWORD, "next": "/status/feeds/?x=1"}
    assert Client().post(LOG_IN, form).headers["Location"] == "/status/feeds/?x=1"


# Under the real server


def send(client: httpx.Client, name: str, password: str, address: str) -> httpx.Response:
    client.get(LOG_IN)
    form = {"username": name, "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
    return client.post(LOG_IN, data=form, headers={"X-Forwarded-For": address})


def test_the_server_slows_guessing_down(broker_world: BrokerWorld) -> None:
    server = broker_world.start(
        BROKER_LOGIN_FAILURES="3", BROKER_RATE_EXEMPT="none", BROKER_RATE_LOGIN_PER_MINUTE="6"
    )
    with server.client() as client:
        found = [send(client, "admin", "wrong", "203.0.113.1").status_code for _ in range(4)]
        assert found == [200, 200, 429, 429], "by the name"
        found = [send(client, f"name-{n}", "wrong", "203.0.113.2").status_code for n in range(6)]
        assert found == [200] * 6
        # By the address, whatever the names. On a slow machine some more pass: the bucket fills up again.
        tries = (send(client, f"more-{n}", "wrong", "203.0.113.2") for n in range(40))
        answer = next(answer for answer in tries if answer.status_code == 429)
        assert answer.headers["content-type"].startswith("text/html")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert send(client, "x", "wrong", "203.0.113.3").status_code == 200


def test_a_public_host_is_https_alone(broker_world: BrokerWorld) -> None:
    server = broker_world.start(
        DJANGO_ALLOWED_HOSTS="broker.example.org,127.0.0.1",
        DJANGO_SECRET_KEY="k" * 50,
        BROKER_SANDBOX="0",
        DJANGO_CSRF_TRUSTED_ORIGINS="https://broker.example.org",
    )
    host = {"Host": "broker.example.org"}
    with server.client() as client:
        plain = client.get(LOG_IN, headers=host)
        assert (plain.status_code, plain.headers["location"]) == (
            301,
            "https://broker.example.org/admin/login/",
        )
        answer = client.get(LOG_IN, headers={**host, "X-Forwarded-Proto": "https"})
        assert answer.headers["strict-transport-security"] == "max-age=31536000; includeSubDomains; preload"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        cookie = answer.headers["set-cookie"].lower()
        assert {"secure", "httponly", "samesite=lax"} <= {part.strip() for part in cookie.split(";")}
        other = client.get("/health", headers={"Host": "evil.example.org"})
        assert other.status_code == 400
