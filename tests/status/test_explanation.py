"""Why one thing is not moving, in words, and the buttons that would not be refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from broker_project.lib.config.dynamic import set_flag
from broker_project.lib.redis import keys as k
from broker_project.models import Poller
from feeds.models import Feed, Item, ItemDetail, ItemEvent, ItemLease, Post
from fixtures.lifecycle import jst_text
from fixtures.models import FixtureStatus, Match

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _clean(store: redis.Redis) -> None:
    """No flag that an earlier test set."""


def page(thing: Any, *, group: str = "operator") -> Any:
    user = User.objects.create_user(f"{group}-{User.objects.count()}", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client = Client(headers={"accept-language": "en"})
    client.force_login(user)
    answer = client.get(f"/admin/{thing._meta.app_label}/{thing._meta.model_name}/{thing.pk}/change/")
    assert answer.status_code == 200
    return answer


def told(thing: Any) -> tuple[str, list[str], bool]:
    """The words on its page, the names of the buttons, and whether all is well."""
    answer = page(thing)
    explanation = answer.context["explanation"]
    text = answer.content.decode()
    assert ("Why is it not moving?" in text) is not explanation.is_well
    names = [name for name, _label in answer.context["allowed"]]
    assert all(f'value="{name}"' in text for name in names)
    return f"{explanation.sentence} {explanation.advice}", names, explanation.is_well


def make_item(**fields: Any) -> Item:
    return Item.objects.create(
        url=f"https://example.org/{Item.objects.count()}",
        title="t",
        published_at=timezone.now(),
        created_at=timezone.now(),
        last_checked_at=timezone.now(),
        **fields,
    )


@pytest.mark.parametrize(
    ("fields", "words", "actions", "is_well"),
    [
        ({"status": 0}, "waits to be screened", ["retry", "screen_now", "skip"], True),
        (
            {"status": 1, "reason": 3, "retry_count": 2},
            "Deferred: download failed. Tried 2 times, given up after 4. Open the address",
            ["retry", "screen_now", "skip"],
            False,
        ),
        ({"status": 2}, "waits to be summarised and posted", ["summarise_now", "skip"], True),
        ({"status": 3, "reason": 0}, "Posted.", [], True),
        ({"status": 3, "reason": 1}, "a person skipped it", [], True),
        ({"status": 3, "reason": 6, "retry_count": 4}, "Given up after 4 attempts.", ["retry"], False),
    ],
)
def test_an_item(fields: dict[str, Any], words: str, actions: list[str], is_well: bool) -> None:
    found, names, well = told(make_item(**fields))
    assert words in found
    assert (names, well) == (actions, is_well)


def test_an_item_in_somebody_s_hands_cannot_be_acted_on() -> None:
    item = make_item(status=0)
    lease = ItemLease.objects.create(
        item=item,
        token="t",
        claimed_by="worker-1",
        claimed_at=timezone.now(),
        expires_at=timezone.now() + timedelta(minutes=5),
    )
    assert told(item)[0].startswith("worker-1 works on it")
    assert told(item)[1] == []
    ItemLease.objects.filter(pk=lease.pk).update(expires_at=timezone.now() - timedelta(minutes=1))
    words, _names, is_well = told(item)
    assert "did not come back" in words
    assert not is_well


def test_a_draft_waits_for_its_feed() -> None:
    item = make_item(status=2)
    feed = Feed.objects.create(url="https://a.example.org/", is_dry_run=True)
    ItemDetail.objects.create(item=item, feed=feed)
    Post.objects.create(item=item, text="t", idempotency_key="k", created_at=timezone.now())
    assert "its feed is on dry run" in told(item)[0]
    Post.objects.update(state=Post.State.UNCLEAR)
    assert "answer was unclear" in told(item)[0]


def test_what_stops_everything_comes_first() -> None:
    item = make_item(status=0)
    Poller.objects.create(name="items", paused_at=timezone.now(), paused_by="somebody")
    assert "“items” is paused by somebody" in told(item)[0]
    set_flag(k.FLAG_MAINTENANCE, "moving house")
    assert "Maintenance: all pollers stand still. moving house" in told(item)[0]
    # What is done is done, whatever stands still.
    assert told(make_item(status=3, reason=0))[0].startswith("Posted.")


def make_match(kickoff: timedelta, schedule: str = "NS", **fields: Any) -> FixtureStatus:
    at = timezone.now() + kickoff
    Match.objects.create(
        fixture_id="7",
        league_id=39,
        league_name="Premier League",
        season=2026,
        home_id=1,
        home_name="Home",
        away_id=2,
        away_name="Away",
        kickoff_at=at,
        schedule=schedule,
        discovered_at=timezone.now(),
        changed_at=timezone.now(),
    )
    return FixtureStatus.objects.create(
        fixture_id="7", date=jst_text(at)[:10], kickoff_jst=jst_text(at), **fields
    )


@pytest.mark.parametrize(
    ("kickoff", "fields", "words", "actions", "is_well"),
    [
        (5, {}, "Too early: guides are written from", ["generate_now", "mark_complete"], True),
        (0, {}, "Due now (in its window)", ["generate_now", "mark_complete"], True),
        (-50, {}, "Too late", ["generate_now", "mark_complete"], False),
        (0, {"status": "complete"}, "The guide is written.", ["generate_now"], True),
        (
            0,
            {"status": "failed", "attempts": 1},
            "Failed 1 of 3 times.",
            ["retry", "generate_now", "reset_attempts", "mark_complete"],
            False,
        ),
        (
            0,
            {"status": "failed", "attempts": 3},
            "Failed 3 times; no further attempt is made.",
            ["retry", "generate_now", "reset_attempts", "mark_complete"],
            False,
        ),
        (0, {"schedule": "PST"}, "The match is not on: postponed.", ["mark_complete"], False),
    ],
)
def test_a_match(kickoff: int, fields: dict[str, Any], words: str, actions: list[str], is_well: bool) -> None:
    found, names, well = told(make_match(timedelta(hours=kickoff), **fields))
    assert words in found
    assert (names, well) == (actions, is_well)


def test_a_match_stands_still_only_when_both_of_its_pollers_do() -> None:
    row = make_match(timedelta(0))
    Poller.objects.create(name="dispatch", paused_at=timezone.now(), paused_by="somebody")
    assert "Due now" in told(row)[0]
    Poller.objects.create(name="fixtures", paused_at=timezone.now(), paused_by="somebody")
    assert "is paused by somebody" in told(row)[0]


def test_a_row_of_others_has_no_match_of_ours() -> None:
    row = FixtureStatus.objects.create(
        fixture_id="x", date="2026-01-01", kickoff_jst=jst_text(timezone.now())
    )
    assert "the row came with the CSV" in told(row)[0]


def test_a_viewer_reads_why_and_gets_no_buttons() -> None:
    item = make_item(status=1, reason=2)
    ItemEvent.objects.create(
        item=item, what="wait", reason="x" * 3000, at=timezone.now(), to_status="deferred"
    )
    answer = page(item, group="viewer")
    text = answer.content.decode()
    assert "Why is it not moving?" in text
    assert "allowed-actions" not in text
    assert "x" * 3000 in text  # errors in full
