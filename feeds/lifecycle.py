"""How an item's status follows from the outcome of a step. The clock and the limit are arguments.

    outcome              status      reason             retry_count
    YES                  2 pending   unchanged          —
    NO                   1 deferred  1 not valuable     +1
    WAIT                 1 deferred  2 page not ready   +1
    FETCH_FAILED         1 deferred  3 download failed  +1
    ALL_TOO_LARGE        1 deferred  4 large files      +1
    API_FAILED           1 deferred  5 API failed       +1
    CRASHED              unchanged   unchanged          +1
    DRAFTED              unchanged   unchanged          —
    POSTED               3 processed 0 none             —

An outcome that counts and thereby exceeds the limit ends in 3 processed, reason 6. ``last_checked_at`` moves
with every outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from django.db.models import IntegerChoices
from django.utils.translation import gettext_lazy as _


class Status(IntegerChoices):
    UNPROCESSED = 0, _("unprocessed")
    DEFERRED = 1, _("deferred")
    PENDING = 2, _("pending")
    PROCESSED = 3, _("processed")


class Reason(IntegerChoices):
    NONE = 0, _("none")
    NOT_VALUABLE = 1, _("not worth a summary")
    PAGE_NOT_READY = 2, _("page not ready")
    DOWNLOAD_FAILED = 3, _("download failed")
    LARGE_FILE_SKIPPED = 4, _("files too large")
    API_FAILED = 5, _("API call failed")
    RETRY_LIMIT_EXCEEDED = 6, _("retry limit exceeded")


class Outcome(StrEnum):
    """How a step ended."""

    YES = "yes"
    NO = "no"
    WAIT = "wait"
    FETCH_FAILED = "fetch failed"
    ALL_TOO_LARGE = "all too large"
    API_FAILED = "api failed"
    CRASHED = "crashed"
    DRAFTED = "drafted"
    POSTED = "posted"


# How a timeline names what happened. The last four are not outcomes of steps.
EVENT_WORDS = {
    "yes": _("judged worth a summary"),
    "no": _("judged not worth a summary"),
    "wait": _("judged not ready"),
    "fetch failed": _("not fetched"),
    "all too large": _("documents too large"),
    "api failed": _("API call failed"),
    "crashed": _("crashed"),
    "drafted": _("draft written"),
    "posted": _("posted"),
    "summarised": _("summarised"),
    "retry": _("set to retry"),
    "skip": _("skipped"),
    "summary edited": _("summary edited"),
}


@dataclass(frozen=True)
class ItemState:
    status: Status
    reason: Reason | None
    retry_count: int
    last_checked_at: datetime


class WrongState(Exception):
    """A step with this outcome is not for an item in this status."""


# Steps that ended without a result.
FAILURES = frozenset({Outcome.FETCH_FAILED, Outcome.ALL_TOO_LARGE, Outcome.API_FAILED, Outcome.CRASHED})
WAITING = frozenset({Status.UNPROCESSED, Status.DEFERRED})
OPEN = WAITING | {Status.PENDING}

# Outcome: from which statuses, to which status (None: unchanged), with which reason (None: unchanged), counted.
RULES: dict[Outcome, tuple[frozenset[Status], Status | None, Reason | None, bool]] = {
    Outcome.YES: (WAITING, Status.PENDING, None, False),
    Outcome.NO: (WAITING, Status.DEFERRED, Reason.NOT_VALUABLE, True),
    Outcome.WAIT: (WAITING, Status.DEFERRED, Reason.PAGE_NOT_READY, True),
    Outcome.FETCH_FAILED: (OPEN, Status.DEFERRED, Reason.DOWNLOAD_FAILED, True),
    Outcome.ALL_TOO_LARGE: (OPEN, Status.DEFERRED, Reason.LARGE_FILE_SKIPPED, True),
    Outcome.API_FAILED: (OPEN, Status.DEFERRED, Reason.API_FAILED, True),
    Outcome.CRASHED: (OPEN, None, None, True),
    Outcome.DRAFTED: (frozenset({Status.PENDING}), None, None, False),
    Outcome.POSTED: (frozenset({Status.PENDING}), Status.PROCESSED, Reason.NONE, False),
}


def after(state: ItemState, outcome: Outcome, *, now: datetime, max_retries: int) -> ItemState:
    """The state that follows. Raises :class:`WrongState`."""
    allowed, status, reason, counts = RULES[outcome]
    if state.status not in allowed:
        raise WrongState(f"{outcome.value!r} is not possible for an item that is {state.status.name.lower()}")
    following = replace(
        state,
        status=state.status if status is None else status,
        reason=state.reason if reason is None else reason,
        retry_count=state.retry_count + counts,
        last_checked_at=now,
    )
    if counts and following.retry_count > max_retries:
        return replace(following, status=Status.PROCESSED, reason=Reason.RETRY_LIMIT_EXCEEDED)
    return following


def can_retry(status: Status, reason: Reason | None) -> bool:
    """What waits, and what was given up. Posted, skipped and pending items are left alone."""
    return status in WAITING or (status is Status.PROCESSED and reason is Reason.RETRY_LIMIT_EXCEEDED)


def can_skip(status: Status) -> bool:
    return status in OPEN
