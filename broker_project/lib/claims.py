"""Claims on rows: one worker at a time, for as long as a lease lasts.

A lease is a row of its own whose primary key is that of the claimed row. Inserting it decides the race, its fence
is known to the claim alone, and it is deleted when the work ends:

    take       insert; None means that somebody else was first, which is normal
    check      prove the fence, before work that would be in vain
    renew      prove the fence and begin the lease anew; locks the lease for the rest of the transaction
    complete   prove the fence and delete the lease, before the result is written in the same transaction
    ended      leases that nobody renewed in time; whoever finds one counts a crashed attempt and drops it

``check``, ``renew`` and ``complete`` raise :class:`LeaseLost` if the claim is over: a late worker changes nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from django.db.models import Model, QuerySet

NAME_LENGTH = 150

ModelT = TypeVar("ModelT", bound=Model)
KeyT = TypeVar("KeyT", int, str)


class LeaseLost(Exception):
    """The claim is over: its lease ended and was taken back. Nothing was changed."""


@dataclass(frozen=True)
class Claim(Generic[KeyT]):
    """The right to work on the row ``pk`` and to say how that ended."""

    pk: KeyT
    fence: int
    who: str


def has_ended(expires_at: datetime | None, now: datetime) -> bool:
    """Whether a lease is stale. One that never got an end has no owner; the last moment is too late."""
    return expires_at is None or expires_at <= now


class Leases(Generic[ModelT, KeyT]):
    """The leases in one table with the columns ``claimed_by``, ``claimed_at``, ``expires_at`` and a fence."""

    def __init__(self, model: type[ModelT], *, fence_column: str) -> None:
        self._model = model
        self._fence_column = fence_column

    def take(self, pk: KeyT, who: str, now: datetime, duration: timedelta) -> Claim[KeyT] | None:
        claim = Claim(pk, secrets.randbits(62), who)
        lease = self._model(
            pk=pk,
            claimed_by=who[:NAME_LENGTH],
            claimed_at=now,
            expires_at=now + duration,
            **{self._fence_column: claim.fence},
        )
        self._rows.bulk_create([lease], ignore_conflicts=True)
        return claim if self._of(claim).exists() else None

    def check(self, claim: Claim[KeyT]) -> None:
        if not self._of(claim).exists():
            raise self._lost(claim)

    def renew(self, claim: Claim[KeyT], now: datetime, duration: timedelta) -> None:
        if not self._of(claim).update(expires_at=now + duration):
            raise self._lost(claim)

    def complete(self, claim: Claim[KeyT]) -> None:
        if not self._of(claim).delete()[0]:
            raise self._lost(claim)

    def drop(self, pk: KeyT) -> None:
        """End whatever claim there is. For callers whose own guarded write has decided over the row."""
        self._rows.filter(pk=pk).delete()

    def ended(self, now: datetime) -> list[KeyT]:
        """Claimed rows whose lease is over, the longest first.

        There are as many leases as workers, so all are read. SQLite would compare texts, and a time that another
        program wrote with a "T" or a zone would be later than any other of its day.
        """
        times = self._rows.filter(expires_at__isnull=False).order_by("expires_at")
        return [pk for pk, expires_at in times.values_list("pk", "expires_at") if has_ended(expires_at, now)]

    @property
    def _rows(self) -> QuerySet[ModelT]:
        return self._model._default_manager.all()

    def _of(self, claim: Claim[KeyT]) -> QuerySet[ModelT]:
        return self._rows.filter(pk=claim.pk, expires_at__isnull=False, **{self._fence_column: claim.fence})

    def _lost(self, claim: Claim[KeyT]) -> LeaseLost:
        return LeaseLost(f"{self._model._meta.verbose_name} {claim.pk} no longer belongs to {claim.who}")
