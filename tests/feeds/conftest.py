from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from broker_project.lib.gemini import Gemini
from broker_project.lib.retry import RetryPolicy
from feeds.lifecycle import Status
from feeds.models import Feed, Item, ItemDetail
from feeds.services.processing import Tools, make_tools
from feeds.writing.summaries import GeminiSummariser
from sandbox.launcher import SandboxHandle

QUICK = RetryPolicy(max_attempts=2, base_seconds=0.01, cap_seconds=0.05)
MakeItem = Callable[..., Item]


@pytest.fixture
def make_item(db: None) -> MakeItem:
    """An item in any state; its address is a page of the sandbox if a ``slug`` is given."""
    counter = 0

    def make(
        *,
        status: Status = Status.UNPROCESSED,
        url: str = "",
        feed: Feed | None = None,
        age_hours: float = 1,
        **given: Any,
    ) -> Item:
        nonlocal counter
        counter += 1
        moment: datetime = timezone.now() - timedelta(hours=age_hours)
        values = {
            "title": f"題名{counter}",
            "published_at": moment,
            "created_at": moment,
            "last_checked_at": moment,
            **given,
        }
        item = Item.objects.create(
            url=url or f"https://news.example.jp/{counter}.html", status=status, **values
        )
        ItemDetail.objects.create(item=item, feed=feed)
        return item

    return make


@pytest.fixture
def tools(sandbox: SandboxHandle, db: None) -> Iterator[Tools]:
    """The real clients against the sandbox, with short pauses between retries."""
    made = make_tools("test")
    assert isinstance(made.summariser, GeminiSummariser)
    made.summariser.gemini = Gemini(made.summariser.gemini.config, QUICK)
    with made.fetcher:
        yield made


def page_url(sandbox: SandboxHandle, slug: str) -> str:
    return f"{sandbox.base_url}/feed/menu_news/s-news/{slug}.html"


def add_page(sandbox: SandboxHandle, slug: str, **given: Any) -> str:
    """Put one page into the sandbox's site; its address."""
    sandbox.load("feed", {"add": [{"slug": slug, "title": "追加の題名", **given}]})
    return page_url(sandbox, slug)


def posts_for(sandbox: SandboxHandle, url: str) -> int:
    return sum(url in status["text"] for status in sandbox.state("mastodon")["statuses"])
