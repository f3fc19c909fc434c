from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from broker_project.console.admin_base import CONFIRM_FIELD
from feeds.lifecycle import EVENT_WORDS, WAITING, Outcome, Status
from feeds.models import Feed, FeedSettings, Item, ItemDetail, ItemEvent, Post
from feeds.services.transitions import claim_item
from sandbox.launcher import SandboxHandle
from tests.feeds.conftest import MakeItem, page_url, posts_for

pytestmark = pytest.mark.django_db
ITEMS, FEEDS = "/admin/feeds/item/", "/admin/feeds/feed/"


@pytest.fixture
def browser() -> Client:
    client = Client(headers={"accept-language": "en"})
    client.force_login(User.objects.create_superuser("admin"))
    return client


def act(client: Client, address: str, action: str, rows: list[Any], *, confirm: bool = True) -> str:
    data = {"action": action, "_selected_action": [row.pk for row in rows]}
    page = client.post(address, data)
    assert page.status_code == 200
    assert f'name="action" value="{action}"' in page.content.decode()
    if not confirm:
        return ""
    done = client.post(address, {**data, CONFIRM_FIELD: "yes"}, follow=True)
    return " ".join(str(message) for message in done.context["messages"])


def test_filters_as_query_strings(browser: Client, make_item: MakeItem) -> None:
    make_item(status=Status.DEFERRED, reason=3, title="失敗した項目")
    make_item(status=Status.DEFERRED, reason=2, title="準備中の項目")
    page = browser.get(f"{ITEMS}?status__exact=1&reason__exact=3").content.decode()
    assert "失敗した項目" in page
    assert "準備中の項目" not in page
    assert "準備中の項目" in browser.get(f"{ITEMS}?status__exact=1").content.decode()


def test_search_feed_filter_and_counts(browser: Client, make_item: MakeItem) -> None:
    feed = Feed.objects.create(url="https://a.example.jp/feed", title="甲の新着")
    make_item(title="統計の公表", feed=feed)
    make_item(title="制度の改正", status=Status.PENDING)
    page = browser.get(f"{ITEMS}?q=統計").content.decode()
    assert "統計の公表" in page
    assert "制度の改正" not in page
    page = browser.get(f"{ITEMS}?detail__feed__id__exact={feed.pk}").content.decode()
    assert "統計の公表" in page
    assert "制度の改正" not in page
    page = browser.get(ITEMS).content.decode()
    assert 'href="?status__exact=2">pending <strong>1</strong></a>' in page
    assert 'href="?status__exact=3">processed <strong>0</strong></a>' in page


def test_the_list_asks_few_questions_whatever_its_length(browser: Client, make_item: MakeItem) -> None:
    make_item()
    browser.get(ITEMS)
    with CaptureQueriesContext(connection) as one:
        browser.get(ITEMS)
    for _ in range(30):
        make_item()
    with CaptureQueriesContext(connection) as many:
        browser.get(ITEMS)
    assert len(many) == len(one)
    counting = [query["sql"] for query in many if "COUNT(*)" in query["sql"] and '"items"' in query["sql"]]
    assert all("LIMIT" in sql or "GROUP BY" in sql for sql in counting)


def test_retry_reports_true_numbers(browser: Client, make_item: MakeItem) -> None:
    rows = [
        make_item(status=Status.DEFERRED, reason=5, retry_count=2),
        make_item(status=Status.PROCESSED, reason=6, retry_count=4),
        make_item(status=Status.PENDING),
    ]
    assert act(browser, ITEMS, "retry", rows) == "2 items set to retry, 1 left alone (pending)"
    assert list(Item.objects.order_by("pk").values_list("status", "reason", "retry_count")) == [
        (0, None, 0),
        (0, None, 0),
        (2, None, 0),
    ]
    assert set(ItemEvent.objects.values_list("who", flat=True)) == {"admin"}


def test_nothing_happens_before_the_confirmation(browser: Client, make_item: MakeItem) -> None:
    item = make_item(status=Status.DEFERRED)
    act(browser, ITEMS, "skip", [item], confirm=False)
    item.refresh_from_db()
    assert item.status == Status.DEFERRED


def test_skip(browser: Client, make_item: MakeItem) -> None:
    rows = [make_item(), make_item(status=Status.PROCESSED, reason=0)]
    assert act(browser, ITEMS, "skip", rows) == "1 item skipped, 1 left alone (posted)"
    assert Item.objects.get(pk=rows[0].pk).reason == 1


def test_screen_and_summarise_now(browser: Client, make_item: MakeItem, sandbox: SandboxHandle) -> None:
    item = make_item(url=page_url(sandbox, "01kiban04_02000401"))
    busy = make_item(url=page_url(sandbox, "01cyber01_02000219"))
    claim_item(busy.pk, WAITING, "other", timezone.now())
    message = act(browser, ITEMS, "screen_now", [item, busy])
    assert message == "1 item screened, 1 left alone (being worked on)"
    message = act(browser, ITEMS, "screen_now", [item])
    assert message == "0 items screened, 1 left alone (pending)"
    message = act(browser, ITEMS, "summarise_now", [item, busy])
    assert message == "1 item summarised, 1 left alone (unprocessed)"
    assert posts_for(sandbox, item.url) == 1
    page = browser.get(f"{ITEMS}{item.pk}/change/").content.decode()
    assert Post.objects.get().url in page
    assert "総務省は、電気通信市場の競争環境" in page
    assert "000984101.pdf" in page
    assert "posted" in page


def test_what_failed_is_not_said_to_be_done(
    browser: Client, make_item: MakeItem, sandbox: SandboxHandle
) -> None:
    rows = [make_item(url=page_url(sandbox, slug)) for slug in ("01kiban04_02000401", "none_1", "none_2")]
    pending = make_item(status=Status.PENDING)
    message = act(browser, ITEMS, "screen_now", [*rows, pending])
    assert message == "1 item screened, 2 failed (not fetched), 1 left alone (pending)"
    sandbox.fault("mastodon", "status", status=401, path="/api/v1/statuses", method="POST")
    assert act(browser, ITEMS, "summarise_now", rows[:1]) == "0 items summarised, 1 failed (API call failed)"


def test_the_item_page_is_evidence(browser: Client, make_item: MakeItem) -> None:
    item = make_item(title="<script>alert(1)</script>")
    ItemDetail.objects.update(
        verdict="YES",
        verdict_reason="<b>理由</b>",
        page_excerpt="本文<img src=x>",
        documents=[{"url": "https://a.example.jp/x.pdf", "title": "<i>資料</i>", "state": "linked"}],
    )
    page = browser.get(f"{ITEMS}{item.pk}/change/").content.decode()
    for hostile in ("<script>alert(1)", "<b>理由", "<img src=x>", "<i>資料"):
        assert hostile not in page
    for name in ("status", "reason", "retry_count", "url"):
        assert f'name="{name}"' not in page
    answer = browser.post(f"{ITEMS}{item.pk}/change/", {"status": "3"})
    item.refresh_from_db()
    assert (answer.status_code, item.status) == (403, 0)
    assert browser.get(f"{ITEMS}add/").status_code == 403


def test_the_summary_is_editable_before_posting(browser: Client, make_item: MakeItem) -> None:
    item = make_item(status=Status.PENDING)
    address = f"{ITEMS}{item.pk}/summary/"
    page = browser.post(address, {"summary": "人の書いた要約。"}, follow=True).content.decode()
    assert "The summary was saved." in page
    assert "人の書いた要約。" in page
    assert item.url in page.split('id="post-preview"')[1]  # the preview of the post
    Post.objects.create(
        item=item, text="sent", idempotency_key="k", state=Post.State.INTENT, created_at=timezone.now()
    )
    page = browser.post(address, {"summary": "遅すぎる。"}, follow=True).content.decode()
    assert "left alone" in page
    assert 'name="summary"' not in page
    assert ItemDetail.objects.get().summary == "人の書いた要約。"
    assert browser.get(address).status_code == 405


def test_viewers_look_and_do_not_touch(make_item: MakeItem) -> None:
    item = make_item(status=Status.PENDING)
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_item"))
    client = Client(headers={"accept-language": "en"})
    client.force_login(viewer)
    assert client.get(ITEMS).status_code == 200
    page = client.get(f"{ITEMS}{item.pk}/change/").content.decode()
    assert 'name="summary"' not in page
    assert client.post(f"{ITEMS}{item.pk}/summary/", {"summary": "x"}).status_code == 403
    client.post(ITEMS, {"action": "skip", "_selected_action": [item.pk], CONFIRM_FIELD: "yes"})
    item.refresh_from_db()
    assert item.status == Status.PENDING


def test_strangers_are_sent_to_the_log_in(make_item: MakeItem) -> None:
    item = make_item()
    for address in (ITEMS, FEEDS, f"{ITEMS}{item.pk}/summary/"):
        answer = Client().post(address) if "summary" in address else Client().get(address)
        assert answer.status_code == 302
        assert "/admin/login/" in answer.headers["location"]


# Feeds and settings


def test_feed_actions(browser: Client, sandbox: SandboxHandle) -> None:
    good = Feed.objects.create(url=f"{sandbox.base_url}/feed/news.rdf")
    bad = Feed.objects.create(url=f"{sandbox.base_url}/feed/nothing")
    message = act(browser, FEEDS, "fetch_now", [good, bad])
    assert message.startswith("1 feed fetched, 1 left alone (")
    assert "404" in message
    assert Item.objects.count() > 5
    assert act(browser, FEEDS, "pause", [good, bad]) == "2 feeds paused"
    assert act(browser, FEEDS, "pause", [good]) == "0 feeds paused, 1 left alone (paused already)"
    assert act(browser, FEEDS, "fetch_now", [good]) == "0 feeds fetched, 1 left alone (paused)"
    assert act(browser, FEEDS, "resume", [good, bad]) == "2 feeds resumed"
    assert "404" in browser.get(f"{FEEDS}{bad.pk}/change/").content.decode()


def test_a_feed_is_added_and_set_to_dry_run(browser: Client) -> None:
    data = {"url": "https://new.example.jp/feed", "title": "", "is_enabled": "on", "is_dry_run": "on"}
    browser.post(f"{FEEDS}add/", data)
    feed = Feed.objects.get()
    assert (feed.source, feed.is_dry_run) == (Feed.Source.ADMIN, True)
    refused = browser.post(f"{FEEDS}add/", {**data, "url": "javascript:alert(1)"})
    assert refused.status_code == 200
    assert Feed.objects.count() == 1


def test_prompts_and_limits_are_edited_and_checked(browser: Client) -> None:
    page = browser.get("/admin/feeds/feedsettings/", follow=True)
    form = page.context["adminform"].form
    data = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    data = {name: value for name, value in data.items() if value not in (None, False)}
    address = page.redirect_chain[-1][0]
    refused = browser.post(address, {**data, "post_template": "{summary} {url} {autor}"})
    assert "{autor}" in refused.content.decode()
    assert FeedSettings.current().post_template == form.initial["post_template"]
    browser.post(address, {**data, "post_template": "{summary}\n{url}", "summary_characters": "150"})
    saved = FeedSettings.current()
    assert (saved.post_template.replace("\r", ""), saved.summary_characters) == ("{summary}\n{url}", 150)
    assert FeedSettings.objects.count() == 1


def test_the_timeline_names_everything_that_happens() -> None:
    assert set(EVENT_WORDS) >= {outcome.value for outcome in Outcome}


def test_screens_in_japanese(make_item: MakeItem) -> None:
    make_item()
    client = Client(headers={"accept-language": "ja"})
    client.force_login(User.objects.create_superuser("admin2"))
    assert client.get(ITEMS).status_code == 200
