"""The contract of a claim, on both tables that have leases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker_project.lib.claims import LeaseLost, has_ended
from feeds.models import Item
from feeds.services.transitions import leases as item_leases
from fixtures.models import MatchLease
from fixtures.services.transitions import leases as match_leases

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(params=["items", "matches"])
def table(request: pytest.FixtureRequest, db: None) -> tuple[Any, Any]:
    """The leases of a table, and the key of a row that can be claimed."""
    if request.param == "matches":
        return match_leases, "12345"
    item = Item.objects.create(
        url="https://a.example.jp/", title="題名", published_at=NOW, created_at=NOW, last_checked_at=NOW
    )
    return item_leases, item.pk


@pytest.mark.parametrize(
    ("expires_at", "expected"),
    [(None, True), (NOW - HOUR, True), (NOW, True), (NOW + timedelta(microseconds=1), False)],
)
def test_when_a_lease_is_stale(expires_at: datetime | None, expected: bool) -> None:
    assert has_ended(expires_at, NOW) is expected


def test_the_second_claim_is_refused_until_the_first_is_complete(table: tuple[Any, Any]) -> None:
    leases, pk = table
    first = leases.take(pk, "first", NOW, HOUR)
    assert leases.take(pk, "second", NOW, HOUR) is None
    leases.check(first)
    leases.complete(first)
    second = leases.take(pk, "second", NOW, HOUR)
    assert second is not None
    assert second.fence != first.fence


def test_a_claim_that_was_taken_back_is_refused_everywhere(table: tuple[Any, Any]) -> None:
    leases, pk = table
    late = leases.take(pk, "late", NOW, HOUR)
    leases.drop(pk)
    current = leases.take(pk, "current", NOW, HOUR)
    for attempt in (leases.check, leases.complete, lambda claim: leases.renew(claim, NOW, HOUR)):
        with pytest.raises(LeaseLost, match="no longer belongs to late"):
            attempt(late)
    leases.check(current)


def test_a_lease_ends_unless_it_is_renewed(table: tuple[Any, Any]) -> None:
    leases, pk = table
    claim = leases.take(pk, "worker", NOW, HOUR)
    assert leases.ended(NOW + HOUR - timedelta(seconds=1)) == []
    assert leases.ended(NOW + HOUR) == [pk]
    leases.renew(claim, NOW + HOUR, HOUR)
    assert leases.ended(NOW + HOUR) == []


def test_rows_that_older_versions_left_of_finished_work_are_no_claims() -> None:
    MatchLease.objects.create(fixture_id="1", fence=7)
    assert match_leases.ended(NOW) == []
    match_leases.drop("1")
    assert match_leases.take("1", "worker", NOW, HOUR) is not None
