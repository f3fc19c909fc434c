"""The steps of an item with the real clients against the sandbox."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from broker_project.lib.config.outside import Source
from broker_project.ops.clock.pollers import PollOptions
from feeds.clients.mastodon import MastodonAccount
from feeds.lifecycle import Outcome, Status
from feeds.models import Feed, FeedSettings, Item, ItemDetail, ItemEvent, ItemLease, Post
from feeds.pollers import poll_feeds, poll_items
from feeds.reading.documents import ReadDocument
from feeds.services.processing import OFFLINE_MARK, Tools, screen_item, summarise_item
from feeds.services.runs import ItemRun
from feeds.services.transitions import leases
from feeds.writing.summaries import OfflineSummariser, divided
from sandbox.launcher import SandboxHandle
from tests.feeds.conftest import MakeItem, add_page, page_url, posts_for

pytestmark = pytest.mark.django_db

REPORT = "01kiban04_02000401"  # two documents
NOT_READY = "01tsushin08_02000155"
TEXT = ["総務省は、無線局の免許の手続を見直す省令案を取りまとめ、意見の募集を開始しました。"] * 2


def state(item: Item) -> tuple[int, int | None, int]:
    item.refresh_from_db()
    return item.status, item.reason, item.retry_count


def last_reason(item: Item) -> str:
    event = ItemEvent.objects.filter(item=item).last()
    assert event is not None
    return event.reason


# Screening


def test_yes(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    item = make_item(url=page_url(sandbox, REPORT))
    assert screen_item(item.pk, tools) is Outcome.YES
    assert state(item) == (2, None, 0)
    detail = ItemDetail.objects.get()
    assert detail.verdict == "YES"
    assert "競争環境" in detail.page_excerpt
    assert [document["state"] for document in detail.documents] == ["linked", "linked"]
    assert detail.input_tokens > 0
    assert detail.cost_usd > Decimal(0)


@pytest.mark.parametrize(("slug", "expected"), [(NOT_READY, (1, 2, 1)), ("01kanbo05_02000087", (1, 1, 1))])
def test_wait_and_no(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, slug: str, expected: tuple[int, int, int]
) -> None:
    item = make_item(url=page_url(sandbox, slug))
    screen_item(item.pk, tools)
    assert state(item) == expected


def test_a_page_that_is_not_there(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    item = make_item(url=page_url(sandbox, "none_1"))
    screen_item(item.pk, tools)
    assert state(item) == (1, 3, 1)
    assert "404" in last_reason(item)


@pytest.mark.parametrize(
    "path", ["endless", "gzip-bomb", "redirect?to=http://169.254.169.254/", "redirect-loop", "lying-length"]
)
def test_a_hostile_page(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, path: str) -> None:
    item = make_item(url=f"{sandbox.base_url}/feed/hostile/{path}")
    screen_item(item.pk, tools)
    assert state(item) == (1, 3, 1)
    assert last_reason(item)


@pytest.mark.parametrize(
    ("fault", "why"),
    [({"status": 304}, "HTTP 304"), ({"status": 200, "body": "GIF89a\x00\x00;"}, "no page but")],
)
def test_what_is_no_page(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, fault: dict[str, Any], why: str
) -> None:
    sandbox.fault("feed", "status", **fault)
    item = make_item(url=page_url(sandbox, REPORT))
    screen_item(item.pk, tools)
    assert state(item) == (1, 3, 1)
    assert why in last_reason(item)
    assert sandbox.calls("gemini") == []


def test_a_page_without_text(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    sandbox.fault("feed", "status", status=200, body="<html><body><script>x</script></body></html>")
    item = make_item(url=page_url(sandbox, REPORT))
    screen_item(item.pk, tools)
    assert state(item) == (1, 2, 1)
    assert sandbox.calls("gemini") == []


@pytest.mark.parametrize(
    "order", ["not JSON", '{"verdict": "MAYBE", "reason": "?"}', {"status": 500}, {"block_reason": "SAFETY"}]
)
def test_gemini_fails(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, order: object) -> None:
    sandbox.load("gemini", {"next": [order] * 2})
    item = make_item(url=page_url(sandbox, REPORT))
    screen_item(item.pk, tools)
    assert state(item) == (1, 5, 1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("YES", (2, None, 0)),
        ("**wait**\n", (1, 2, 1)),
        ('{"verdict": "no", "reason": "人事異動のため。"}', (1, 1, 1)),
        ('{"verdict": "YES"}', (2, None, 0)),
        ('{"judgement": "WAIT", "why": "準備中のため。"}', (1, 2, 1)),
        ('{"first": "YES", "second": "NO"}', (1, 5, 1)),
        ('```json\n{"verdict": "NO", "reason": "告知だけのため。"}\n```', (1, 1, 1)),
        ("YES or NO", (1, 5, 1)),
        ("[]", (1, 5, 1)),
    ],
)
def test_a_verdict_in_other_clothes(
    make_item: MakeItem,
    tools: Tools,
    sandbox: SandboxHandle,
    answer: str,
    expected: tuple[int, int | None, int],
) -> None:
    sandbox.load("gemini", {"next": [answer] * 2})
    item = make_item(url=page_url(sandbox, REPORT))
    screen_item(item.pk, tools)
    assert state(item) == expected


def test_the_retry_limit(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    item = make_item(url=page_url(sandbox, "none_1"), retry_count=settings.BROKER.feed_max_retries)
    screen_item(item.pk, tools)
    assert state(item) == (3, 6, settings.BROKER.feed_max_retries + 1)
    assert screen_item(item.pk, tools) is None


# Summary and post


def test_one_item_all_the_way(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING, title="検証報告書（案）")
    assert summarise_item(item.pk, tools) is Outcome.POSTED
    assert state(item) == (3, 0, 0)
    post = Post.objects.get()
    assert post.state == Post.State.POSTED
    assert post.text.startswith("検証報告書（案）\n\n")
    assert post.text.endswith(item.url)
    assert post.url.endswith(post.status_id)
    [status] = sandbox.state("mastodon")["statuses"]
    assert (status["text"], status["visibility"]) == (post.text, settings.BROKER.mastodon.visibility)
    assert post.idempotency_key in sandbox.state("mastodon")["keys"]
    detail = ItemDetail.objects.get()
    assert [document["state"] for document in detail.documents] == ["read", "read"]
    assert all(document["size"] > 1000 for document in detail.documents)
    assert detail.summary_source == "gemini"
    assert set(detail.summary_notes) == {
        "documents",
        "first_summary",
        "can_be_left_out",
        "missed_points",
    }
    assert detail.summary_notes["documents"][0]["key_points"]
    assert detail.input_tokens > 0
    assert list(tools.downloads.iterdir()) == []


def test_a_page_without_documents(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    url = add_page(sandbox, "text_1", paragraphs=TEXT)
    item = make_item(url=url, status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert "省令案" in Post.objects.get().text


def test_a_missing_document(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    documents = [{"name": "gone.pdf", "title": "資料", "is_missing": True}]
    item = make_item(
        url=add_page(sandbox, "doc_1", paragraphs=TEXT, documents=documents), status=Status.PENDING
    )
    summarise_item(item.pk, tools)
    assert state(item) == (1, 3, 1)
    assert ItemDetail.objects.get().documents[0]["state"] == "not fetched"


def test_all_documents_too_large(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    documents = [{"name": f"big{n}.pdf", "title": "資料", "stream_mb": 51} for n in range(2)]
    item = make_item(
        url=add_page(sandbox, "doc_2", paragraphs=TEXT, documents=documents), status=Status.PENDING
    )
    summarise_item(item.pk, tools)
    assert state(item) == (1, 4, 1)
    assert {document["state"] for document in ItemDetail.objects.get().documents} == {"too large"}
    assert list(tools.downloads.iterdir()) == []


def test_one_of_two_documents_too_large(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    documents = [
        {"name": "large.pdf", "title": "資料", "stream_mb": 51},
        {"name": "small.pdf", "title": "概要", "paragraphs": TEXT},
    ]
    item = make_item(
        url=add_page(sandbox, "doc_3", paragraphs=TEXT, documents=documents), status=Status.PENDING
    )
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert [document["state"] for document in ItemDetail.objects.get().documents] == ["too large", "read"]


@pytest.mark.parametrize("name", ["encrypted.pdf", "damaged.pdf"])
def test_unreadable_documents(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, name: str) -> None:
    link = f'<html><body><p>{TEXT[0]}</p><a href="/feed/hostile/{name}">資料</a></body></html>'
    sandbox.fault("feed", "status", status=200, body=link, path="/s-news/")
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (1, 3, 1)
    assert name.partition(".")[0] in ItemDetail.objects.get().documents[0]["error"]


SUMMARY = (
    '{{"documents": [], "first_summary": "", "can_be_left_out": "", "missed_points": "", '
    '"final_summary": "{}"}}'
)


@pytest.mark.parametrize(
    "answer",
    [
        "This is not JSON at all",
        SUMMARY.format(""),
        SUMMARY.format("The ministry published a report on telecommunications today."),
        SUMMARY.format("長い要約です。" * 400),
    ],
    ids=["no JSON", "empty", "English", "too long"],
)
def test_bad_summaries_are_not_posted(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, answer: str
) -> None:
    sandbox.load("gemini", {"next": [answer] * 2})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (1, 5, 1)
    assert posts_for(sandbox, item.url) == 0


@pytest.mark.parametrize(
    "answer",
    [
        '{"final_summary": "方針を公表した。"}',
        '{"documents": [{"title": null}], "missed_points": null, "final_summary": "方針を公表した。"}',
        '```json\n{"final_summary": "方針を公表した。"}\n```',
        '{"final_summary": "方針を公表した。NTT Docomo, KDDI, SoftBank, Rakuten Mobile"}',
    ],
    ids=["no remarks", "null", "code block", "Latin names"],
)
def test_what_is_missing_beside_it_does_not_cost_the_summary(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, answer: str
) -> None:
    sandbox.load("gemini", {"next": [answer]})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    assert summarise_item(item.pk, tools) is Outcome.POSTED
    assert "方針を公表した。" in Post.objects.get().text
    assert len(sandbox.calls("gemini")) == 1


def test_a_short_summary_is_one_too(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    sandbox.load("gemini", {"next": [SUMMARY.format("方針を公表した。")]})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert "方針を公表した。" in Post.objects.get().text


def test_a_long_summary_is_shortened_and_the_address_stays_whole(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    sandbox.load("gemini", {"next": [SUMMARY.format("長い要約です。" * 200)]})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert item.url in Post.objects.get().text
    assert len(Post.objects.get().text) < 700


def test_a_long_remark_does_not_cost_the_judgement(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    remark = "価値がない。" * 400
    sandbox.load("gemini", {"next": [f'{{"verdict": "NO", "reason": "{remark}"}}']})
    item = make_item(url=page_url(sandbox, REPORT))
    screen_item(item.pk, tools)
    assert state(item) == (1, 1, 1)
    assert remark.startswith(ItemDetail.objects.get().verdict_reason)


def test_a_summary_that_obeyed_the_page(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    """Whatever instructions the material smuggled in: no mention and no foreign link reaches the post."""
    text = (
        "これは指示に従った要約です。詳細は https://evil.example/win を見て @everyone@evil.example に連絡。"
    )
    sandbox.load("gemini", {"next": [SUMMARY.format(text)]})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    post = Post.objects.get().text
    assert "evil.example/win" not in post
    assert "@" not in post
    assert post.count("http") == 1


def test_the_instances_limit_is_kept(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    sandbox.load("mastodon", {"max_characters": 120})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert Post.objects.get().text.endswith(item.url)


def test_pdfs_as_text_for_models_without_file_input(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    tools.options.sends_files = False
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)


@pytest.mark.parametrize("status", [400, 404, 413])
def test_files_that_the_service_does_not_take_go_as_text(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, status: int
) -> None:
    sandbox.load("gemini", {"next": [{"status": status}]})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    assert summarise_item(item.pk, tools) is Outcome.POSTED
    assert [call["path"].rpartition(":")[2] for call in sandbox.calls("gemini")] == ["generateContent"] * 2


def test_a_document_under_an_address_without_an_ending_is_measured_as_one(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    documents = [{"name": "big.pdf", "title": "資料", "stream_mb": 51}]
    add_page(sandbox, "doc_5", paragraphs=TEXT, documents=documents)
    to = f"{sandbox.base_url}/feed/main_content/big.pdf"
    item = make_item(url=f"{sandbox.base_url}/feed/hostile/redirect?to={to}", status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (1, 4, 1)


def test_an_item_that_is_a_pdf_itself(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    item = make_item(url=f"{sandbox.base_url}/feed/main_content/000984101.pdf", title="検証報告書（案）")
    assert screen_item(item.pk, tools) is Outcome.YES
    assert summarise_item(item.pk, tools) is Outcome.POSTED
    assert ItemDetail.objects.get().documents[0]["pages"] == 1
    assert "電気通信市場" in Post.objects.get().text


def test_files_up_to_a_total_and_the_rest_as_text() -> None:
    def document(size: int, pages: int = 1) -> ReadDocument:
        return ReadDocument("https://a.example.jp/x.pdf", "", size, pages, "text", Path("x.pdf"))

    small, large, long = document(10), document(50 * 2**20), document(10, pages=1001)
    assert divided([small, large, long, small]) == ([small, small], [large, long])
    assert divided([large]) == ([large], [])


# Exactly one post


def test_a_lost_answer_is_found_at_once(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    sandbox.fault("mastodon", "lose_answer", method="POST", path="/api/v1/statuses")
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert posts_for(sandbox, item.url) == 1
    assert "unclear" in last_reason(item)


@pytest.mark.parametrize("kind", ["lose_answer", "truncate", "drop"])
def test_an_answer_that_stays_unclear_is_looked_for_before_posting_again(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, kind: str
) -> None:
    sandbox.fault("mastodon", kind, method="POST", path="/api/v1/statuses")
    # Twice asked before the first try; then the search after it fails.
    sandbox.fault("mastodon", "status", status=503, path="/accounts/", times=3, skip=2)
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (1, 5, 1)
    before = Post.objects.get()
    assert before.state == Post.State.UNCLEAR
    # Mastodon has forgotten the key by now: only the search keeps it from being posted twice.
    sandbox.load("mastodon", {"keys": {}})
    sandbox.clear_calls()
    assert screen_item(item.pk, tools) is Outcome.YES
    assert sandbox.calls("gemini") == []  # it was judged before
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 1)
    assert posts_for(sandbox, item.url) == 1
    after = Post.objects.get()
    assert (after.text, after.idempotency_key) == (before.text, before.idempotency_key)
    assert after.url


def test_a_refused_post_is_sent_again_later(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    sandbox.fault("mastodon", "status", status=422, method="POST", body={"error": "no"})
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert state(item) == (1, 5, 1)
    assert Post.objects.get().state == Post.State.DRAFT
    screen_item(item.pk, tools)
    asked = len(sandbox.calls("gemini"))
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 1)
    assert len(sandbox.calls("gemini")) == asked  # the summary was kept
    assert posts_for(sandbox, item.url) == 1


def test_rate_limited_and_unauthorised(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle) -> None:
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    tools.account = MastodonAccount(replace(settings.BROKER.mastodon, access_token="bad-token"))
    summarise_item(item.pk, tools)
    assert state(item) == (1, 5, 1)
    assert posts_for(sandbox, item.url) == 0


@pytest.mark.parametrize("fault", [{"status": 403}, {"status": 404}, {"status": 200, "body": {}}])
def test_an_account_that_can_be_written_to_alone(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, fault: dict[str, Any]
) -> None:
    """It is posted to; but what may have been posted already is not sent again without a look."""
    sandbox.fault("mastodon", "status", path="/accounts/", times=0, **fault)
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    assert summarise_item(item.pk, tools) is Outcome.POSTED
    assert posts_for(sandbox, item.url) == 1
    Post.objects.update(state=Post.State.UNCLEAR)
    Item.objects.update(status=Status.PENDING)
    assert summarise_item(item.pk, tools) is Outcome.API_FAILED
    assert posts_for(sandbox, item.url) == 1


# Drafts


def test_an_unclear_post_waits_while_mastodon_is_off(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    sandbox.fault("mastodon", "status", status=503, path="statuses", method="POST")
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    summarise_item(item.pk, tools)
    assert Post.objects.get().state == Post.State.UNCLEAR
    screen_item(item.pk, tools)
    tools.account = MastodonAccount(replace(settings.BROKER.mastodon, source=Source.OFF))
    assert ItemRun(tools).step() is False
    assert summarise_item(item.pk, tools) is Outcome.DRAFTED
    assert state(item) == (2, 5, 1)
    assert Post.objects.get().state == Post.State.UNCLEAR


@pytest.mark.parametrize("why", ["off", "dry run"])
def test_drafts(make_item: MakeItem, tools: Tools, sandbox: SandboxHandle, why: str) -> None:
    feed = Feed.objects.create(url="https://a.example.jp/", is_dry_run=why == "dry run")
    if why == "off":
        off = replace(settings.BROKER.mastodon, source=Source.OFF, access_token="", api_url="")
        tools.account = MastodonAccount(off)
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING, feed=feed)
    run = ItemRun(tools)
    assert run.step() is True
    assert run.counts["drafted"] == 1
    assert state(item) == (2, None, 0)
    assert Post.objects.get().state == Post.State.DRAFT
    # Drafted once: it is neither summarised again nor in the way of others.
    asked = len(sandbox.calls("gemini"))
    other = make_item(url=page_url(sandbox, NOT_READY))
    again = ItemRun(tools)
    while again.step():
        pass
    assert (again.counts["screened"], again.counts["drafted"]) == (1, 0)
    assert state(other) == (1, 2, 1)
    assert len(sandbox.calls("gemini")) == asked + 1
    # As soon as it may be posted, it is.
    Feed.objects.update(is_dry_run=False)
    tools.account = MastodonAccount(settings.BROKER.mastodon)
    ItemRun(tools).step()
    assert state(item) == (3, 0, 0)
    assert posts_for(sandbox, item.url) == 1


def test_without_gemini_the_extract_is_posted_and_marked(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    tools.summariser = OfflineSummariser(FeedSettings())
    item = make_item(url=page_url(sandbox, REPORT))
    waiting = make_item(url=page_url(sandbox, NOT_READY))
    screen_item(item.pk, tools)
    screen_item(waiting.pk, tools)
    summarise_item(item.pk, tools)
    assert state(item) == (3, 0, 0)
    assert state(waiting) == (1, 2, 1)
    detail = ItemDetail.objects.get(item=item)
    assert (detail.summary_source, detail.model) == ("offline", "offline extract")
    assert OFFLINE_MARK in Post.objects.get().text
    assert 50 < len(detail.summary) <= 200
    assert sandbox.calls("gemini") == []


def test_an_edited_summary_is_what_is_posted(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    ItemDetail.objects.update(summary="人が書いた要約。", summary_source="edited")
    summarise_item(item.pk, tools)
    assert "人が書いた要約。" in Post.objects.get().text
    assert sandbox.calls("gemini") == []


# The poller


def test_a_whole_run(sandbox: SandboxHandle) -> None:
    poll_feeds(PollOptions())
    counts = poll_items(PollOptions(all=True))
    total = Item.objects.count()
    assert counts["screened"] == total
    assert counts["posted"] == Item.objects.filter(status=3, reason=0).count() > 5
    assert counts["posted"] == len(sandbox.state("mastodon")["statuses"])
    assert counts["crashed"] == counts["lost"] == 0
    assert ItemLease.objects.count() == 0
    # What was deferred is due at the next run, and only then.
    assert poll_items(PollOptions(all=True))["screened"] == total - counts["posted"]


def test_one_step_at_a_time(sandbox: SandboxHandle, make_item: MakeItem) -> None:
    make_item(url=page_url(sandbox, REPORT))
    assert poll_items(PollOptions())["screened"] == 1
    assert poll_items(PollOptions())["posted"] == 1
    assert sum(poll_items(PollOptions()).values()) == 0


def test_a_fault_of_ours_counts_and_does_not_stop_the_run(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    FeedSettings(post_template="{summary} {nonsense} {url}").save()  # past the form's check
    tools.options = FeedSettings.current()
    item = make_item(url=page_url(sandbox, REPORT), status=Status.PENDING)
    assert summarise_item(item.pk, tools) is Outcome.CRASHED
    assert state(item) == (2, None, 1)
    assert "KeyError" in last_reason(item)
    assert ItemLease.objects.count() == 0


def test_a_worker_that_lost_its_lease_changes_nothing(
    make_item: MakeItem, tools: Tools, sandbox: SandboxHandle
) -> None:
    item = make_item(url=page_url(sandbox, REPORT))

    def clock() -> datetime:
        """Before each look at the clock another worker takes the claim back."""
        leases.drop(item.pk)
        return timezone.now()

    tools.clock = clock
    run = ItemRun(tools)
    assert run.step()
    assert run.counts["lost"] == 1
    assert state(item) == (0, None, 0)
    assert ItemDetail.objects.get().verdict == ""
