"""The account through Mastodon.py against the sandbox."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import timedelta
from html import escape
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from broker_project.lib.config.outside import Source
from broker_project.lib.errors import (
    BadAnswer,
    OutsideError,
    RateLimited,
    Rejected,
    ServerFault,
    SwitchedOff,
    Unauthorised,
    Unreachable,
)
from feeds.clients.mastodon import MastodonAccount, links_of
from sandbox.launcher import SandboxHandle
from tests.support.raw_server import raw_server

LINK = "https://news.example.jp/a.html?x=1&y=2"


@pytest.fixture
def account(sandbox: SandboxHandle) -> MastodonAccount:
    return MastodonAccount(settings.BROKER.mastodon)


def test_a_post_and_its_repetition_are_one(account: MastodonAccount, sandbox: SandboxHandle) -> None:
    first = account.post(f"本文\n\n{LINK}", "key-1")
    assert account.post(f"本文\n\n{LINK}", "key-1") == first
    [status] = sandbox.state("mastodon")["statuses"]
    assert (status["id"], status["visibility"], status["language"]) == (first.id, "unlisted", "ja")


def test_limits_come_from_the_instance(account: MastodonAccount, sandbox: SandboxHandle) -> None:
    sandbox.load("mastodon", {"max_characters": 1234})
    assert (account.limits.max_characters, account.limits.link_characters) == (1234, 23)


def test_older_servers_tell_their_limits_in_the_first_version_or_not_at_all(
    account: MastodonAccount, sandbox: SandboxHandle
) -> None:
    sandbox.load("mastodon", {"max_characters": 1234})
    sandbox.fault("mastodon", "status", status=404, path="/api/v2/instance", times=0)
    assert account.limits.max_characters == 1234
    sandbox.fault("mastodon", "status", status=404, path="/api/v1/instance", times=0)
    other = MastodonAccount(account.config)
    assert (other.limits.max_characters, other.limits.link_characters) == (500, 23)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 401},
        {"status": 405},
        {"status": 200, "body": []},
        {"status": 200, "body": {}},
        {"status": 200, "body": "<html></html>"},
    ],
)
def test_an_instance_that_tells_nobody_has_the_usual_limits(
    account: MastodonAccount, sandbox: SandboxHandle, fault: dict[str, Any]
) -> None:
    sandbox.fault("mastodon", "status", path="/api/v[12]/instance", times=0, **fault)
    assert (account.limits.max_characters, account.limits.link_characters) == (500, 23)


def test_what_others_wrote_and_we_boosted_is_not_ours(
    account: MastodonAccount, sandbox: SandboxHandle
) -> None:
    theirs = {"id": "4", "content": f'<p><a href="{escape(LINK)}">{escape(LINK)}</a></p>', "url": ""}
    boost = {**theirs, "id": "5", "reblog": theirs}
    sandbox.fault("mastodon", "status", status=200, body=[boost], path="/statuses", times=0)
    assert account.find_post(LINK, timezone.now()) is None
    [asked] = [call for call in sandbox.calls("mastodon") if "/statuses" in call["path"]]
    assert "exclude_reblogs=1" in asked["path"]


def test_a_post_without_its_time_is_found(account: MastodonAccount, sandbox: SandboxHandle) -> None:
    body = [{"id": "4"}, {"id": "5", "content": f"本文 {escape(LINK)}"}]
    sandbox.fault("mastodon", "status", status=200, body=body, path="/statuses")
    found = account.find_post(LINK, timezone.now())
    assert found is not None
    assert found.id == "5"


def test_own_posts_are_found_by_their_link_on_any_page(account: MastodonAccount) -> None:
    since = timezone.now()
    ours = account.post(f"本文\n\n{LINK}", "ours")
    for number in range(45):
        account.post(f"別の投稿 https://news.example.jp/{number}.html", f"other-{number}")
    assert account.find_post(LINK, since) == ours
    assert account.find_post("https://news.example.jp/a.html", since) is None
    # Long before that the same address may have been posted for another reason.
    assert account.find_post(LINK, since + timedelta(hours=3)) is None
    # Our clock may have been an hour ahead when the post was intended.
    assert account.find_post(LINK, since + timedelta(hours=1)) == ours


@pytest.mark.parametrize(
    ("order", "error", "may_have_happened"),
    [
        ({"kind": "status", "status": 401}, Unauthorised, False),
        ({"kind": "status", "status": 403}, Unauthorised, False),
        ({"kind": "status", "status": 422}, Rejected, False),
        ({"kind": "status", "status": 429}, RateLimited, False),
        ({"kind": "status", "status": 500}, ServerFault, True),
        ({"kind": "status", "status": 503}, ServerFault, True),
        ({"kind": "status", "status": 200, "body": []}, BadAnswer, True),
        ({"kind": "status", "status": 200, "body": {"x": 1}}, BadAnswer, True),
        ({"kind": "garbage"}, BadAnswer, True),
        ({"kind": "drop"}, Unreachable, True),
        ({"kind": "lose_answer"}, Unreachable, True),
        ({"kind": "truncate"}, Unreachable, True),
    ],
)
def test_every_failure_says_whether_the_post_may_exist(
    account: MastodonAccount,
    sandbox: SandboxHandle,
    order: dict,
    error: type[OutsideError],
    may_have_happened: bool,
) -> None:
    sandbox.fault("mastodon", **order)
    with pytest.raises(error) as caught:
        account.post("本文", "key")
    assert caught.value.may_have_happened is may_have_happened


def test_a_call_that_went_well_with_unreadable_headers_may_have_happened(
    account: MastodonAccount, sandbox: SandboxHandle
) -> None:
    headers = {"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "the day after tomorrow"}
    sandbox.fault("mastodon", "status", status=200, headers=headers, body={"id": "1", "url": "u"})
    with pytest.raises(RateLimited) as caught:
        account.post("本文", "key")
    assert caught.value.may_have_happened is True


def test_no_connection_means_no_post() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    nobody = MastodonAccount(replace(settings.BROKER.mastodon, api_url=f"http://127.0.0.1:{port}"))
    with pytest.raises(Unreachable) as caught:
        nobody.post("本文", "key")
    assert caught.value.may_have_happened is False


def test_an_endless_answer_is_cut_off() -> None:
    with raw_server() as server:
        server.answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b" " * (5 * 2**20)
        account = MastodonAccount(replace(settings.BROKER.mastodon, api_url=server.url))
        with pytest.raises(OutsideError, match="too large"):
            account.post("本文", "key")


def test_reading_is_repeated(account: MastodonAccount, sandbox: SandboxHandle) -> None:
    sandbox.fault("mastodon", "status", status=503, times=1)
    assert account.limits.max_characters == 500


def test_off() -> None:
    off = MastodonAccount(replace(settings.BROKER.mastodon, source=Source.OFF, api_url="", access_token=""))
    assert not off.is_available
    with pytest.raises(SwitchedOff):
        off.post("本文", "key")


def test_links_are_unescaped() -> None:
    assert "https://a.jp/?x=1&y=2" in links_of('<p><a href="https://a.jp/?x=1&amp;y=2">x</a></p>')


def test_an_address_in_plain_text_is_found_whole_or_not_at_all() -> None:
    found = links_of("<p>題名</p><p>https://a.jp/?x=1&amp;y=2<br/>続き</p>")
    assert "https://a.jp/?x=1&y=2" in found
    assert "https://a.jp/?x=1" not in found
