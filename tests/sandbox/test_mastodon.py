"""Mastodon's stand-in, driven by Mastodon.py."""

from __future__ import annotations

import httpx
import pytest
from mastodon import (
    Mastodon,
    MastodonAPIError,
    MastodonNetworkError,
    MastodonNotFoundError,
    MastodonRatelimitError,
    MastodonServiceUnavailableError,
    MastodonUnauthorizedError,
)

from sandbox.launcher import SandboxHandle
from sandbox.mastodon_text import countable_length


def client_for(sandbox: SandboxHandle, token: str = "token") -> Mastodon:
    return Mastodon(
        access_token=token,
        api_base_url=f"{sandbox.base_url}/mastodon",
        ratelimit_method="throw",
        request_timeout=5,
    )


@pytest.fixture
def mastodon(sandbox: SandboxHandle) -> Mastodon:
    return client_for(sandbox)


def own_posts(mastodon: Mastodon) -> list[str]:
    account = mastodon.account_verify_credentials()
    return [status.id for status in mastodon.account_statuses(account.id, limit=40)]


def test_post_is_read_back_with_what_was_asked_for(mastodon: Mastodon) -> None:
    text = "報告書を公表\n要約です。\nhttps://example.jp/a?b=1"
    posted = mastodon.status_post(text, visibility="unlisted", language="ja", spoiler_text="自動投稿")
    found = mastodon.status(posted.id)
    assert (found.visibility, found.language, found.spoiler_text) == ("unlisted", "ja", "自動投稿")
    assert 'href="https://example.jp/a?b=1"' in found.content
    assert "text" not in found
    assert "要約です。" in httpx.get(found.url).text


def test_deleted_post_gives_back_its_text(mastodon: Mastodon) -> None:
    posted = mastodon.status_post("消す")
    assert mastodon.status_delete(posted.id).text == "消す"
    with pytest.raises(MastodonNotFoundError):
        mastodon.status(posted.id)


def test_same_key_returns_the_same_post_for_an_hour(mastodon: Mastodon, sandbox: SandboxHandle) -> None:
    first = mastodon.status_post("一度だけ", idempotency_key="item-1")
    assert mastodon.status_post("一度だけ", idempotency_key="item-1").id == first.id
    sandbox.set_clock(3590)
    assert mastodon.status_post("一度だけ", idempotency_key="item-1").id == first.id
    sandbox.set_clock(3700)
    assert mastodon.status_post("一度だけ", idempotency_key="item-1").id != first.id
    assert len(own_posts(mastodon)) == 2


def test_lost_answer_is_healed_by_the_key(mastodon: Mastodon, sandbox: SandboxHandle) -> None:
    sandbox.fault("mastodon", "lose_answer", method="POST", path="/statuses$")
    with pytest.raises(MastodonNetworkError):
        mastodon.status_post("届いたが返事がない", idempotency_key="item-2")
    existing = own_posts(mastodon)
    assert len(existing) == 1
    assert [mastodon.status_post("届いたが返事がない", idempotency_key="item-2").id] == existing
    assert own_posts(mastodon) == existing


def test_outage_reaches_the_client_as_such(mastodon: Mastodon, sandbox: SandboxHandle) -> None:
    sandbox.fault("mastodon", "status", status=503, method="POST")
    with pytest.raises(MastodonServiceUnavailableError):
        mastodon.status_post("x")
    assert own_posts(mastodon) == []


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("あ" * 500, 500),
        ("a https://example.jp/" + "x" * 300, 25),
        ("https://example.jp/a。続き", 26),
        ("@someone@far.example こんにちは", 14),
        ("e\u0301", 1),
    ],
)
def test_length_is_counted_as_mastodon_counts(text: str, length: int) -> None:
    assert countable_length(text) == length


def test_too_long_and_empty_posts_are_refused(mastodon: Mastodon) -> None:
    mastodon.status_post("あ" * 477 + "https://example.jp/" + "x" * 200)
    with pytest.raises(MastodonAPIError) as too_long:
        mastodon.status_post("あ" * 478 + "https://example.jp/" + "x" * 200)
    assert too_long.value.args[1] == 422
    assert "character limit of 500" in too_long.value.args[3]
    with pytest.raises(MastodonAPIError, match="422"):
        mastodon.status_post(" ")
    assert len(own_posts(mastodon)) == 1


def test_limit_is_announced_and_can_be_changed(mastodon: Mastodon, sandbox: SandboxHandle) -> None:
    statuses = mastodon.instance_v2().configuration.statuses
    assert (statuses.max_characters, statuses.characters_reserved_per_url) == (500, 23)
    sandbox.load("mastodon", {"max_characters": 100})
    assert mastodon.instance_v1().configuration.statuses.max_characters == 100
    with pytest.raises(MastodonAPIError, match="422"):
        mastodon.status_post("あ" * 101)


def test_bad_token_is_refused(sandbox: SandboxHandle) -> None:
    with pytest.raises(MastodonUnauthorizedError):
        client_for(sandbox, "bad-token").status_post("x")
    with pytest.raises(MastodonUnauthorizedError):
        client_for(sandbox, "bad-token").account_verify_credentials()


def test_rate_limit_is_counted_and_refuses(mastodon: Mastodon, sandbox: SandboxHandle) -> None:
    sandbox.load("mastodon", {"rate_limit": 2})
    mastodon.status_post("1")
    assert (mastodon.ratelimit_limit, mastodon.ratelimit_remaining) == (2, 1)
    mastodon.status_post("2")
    with pytest.raises(MastodonRatelimitError):
        mastodon.status_post("3")
    sandbox.set_clock(301)
    mastodon.status_post("3")


def test_own_posts_come_in_pages(mastodon: Mastodon) -> None:
    posted = [mastodon.status_post(f"投稿 {number}").id for number in range(5)]
    account = mastodon.account_verify_credentials()
    page = mastodon.account_statuses(account.id, limit=2)
    assert [status.id for status in page] == [posted[4], posted[3]]
    following = mastodon.fetch_next(page)
    assert following is not None
    assert [status.id for status in following] == [posted[2], posted[1]]
    assert [s.id for s in mastodon.account_statuses(account.id, since_id=posted[2])] == [posted[4], posted[3]]
    assert len(mastodon.fetch_remaining(page)) == 5


def test_version_and_nodeinfo_are_what_the_client_looks_for(mastodon: Mastodon) -> None:
    assert mastodon.retrieve_mastodon_version(fail_hard=True).startswith("4.")
    assert mastodon.instance_nodeinfo().software.name == "mastodon"
    assert mastodon.app_verify_credentials().name == "Broker"


def test_json_body_and_misspelt_state(sandbox: SandboxHandle) -> None:
    url = f"{sandbox.base_url}/mastodon/api/v1/statuses"
    answer = httpx.post(url, json={"status": "<b>x</b>"}, headers={"Authorization": "Bearer token"})
    assert answer.json()["content"] == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
    with pytest.raises(httpx.HTTPStatusError):
        sandbox.load("mastodon", {"max_charcters": 1})
