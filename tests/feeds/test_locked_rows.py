"""Rows that somebody else holds at this moment are passed over, not waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from feeds.lifecycle import Status
from feeds.models import Item, ItemLease
from feeds.services.transitions import claim_item, sweep_stale_leases
from tests.support.databases import is_postgres

pytestmark = pytest.mark.database

WAIT_SECONDS = 60


@contextmanager
def held_by_another(pk: int, model: type[Item] | type[ItemLease]) -> Iterator[None]:
    """Another connection has locked the row and not committed yet."""
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                model._default_manager.select_for_update().get(pk=pk)
                locked.set()
                done.wait(WAIT_SECONDS)
        finally:
            connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert locked.wait(WAIT_SECONDS)
        yield
    finally:
        done.set()
        holder.join()


def add_item() -> Item:
    now = timezone.now()
    return Item.objects.create(
        url="https://a.example.jp/", title="題名", published_at=now, created_at=now, last_checked_at=now
    )


# SQLite has one writer at a time and no locks on rows: there is nothing to pass over.
if is_postgres():

    @pytest.mark.django_db(transaction=True)
    def test_a_claim_passes_over_a_row_that_is_held() -> None:
        item = add_item()
        with held_by_another(item.pk, Item):
            # Were it to wait, it would wait for the lock's holder, which waits for us.
            assert claim_item(item.pk, [Status.UNPROCESSED], "w", timezone.now()) is None
        claim = claim_item(item.pk, [Status.UNPROCESSED], "w", timezone.now())
        assert claim is not None
        assert claim.item.pk == item.pk

    @pytest.mark.django_db(transaction=True)
    def test_a_sweep_passes_over_a_lease_that_is_being_swept() -> None:
        item, now = add_item(), timezone.now()
        ItemLease.objects.create(
            item=item,
            token="t",
            claimed_by="gone",
            claimed_at=now - timedelta(hours=2),
            expires_at=now - timedelta(hours=1),
        )
        with held_by_another(item.pk, ItemLease):
            assert sweep_stale_leases(now) == 0
        assert sweep_stale_leases(now) == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_claims_one_has_the_item() -> None:
    item = add_item()
    found: list[bool] = []

    def claim() -> None:
        try:
            found.append(claim_item(item.pk, [Status.UNPROCESSED], "w", timezone.now()) is not None)
        finally:
            connection.close()

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Some may all pass the row over while another has it in hand; two never have it.
    assert sum(found) == 1
    assert ItemLease.objects.count() == 1
