"""Two optional gates before handing out, for repositories that strangers write in. Off, they cost nothing.

The author gate (``BROKER_AUTHOR_GATE=writers``) offers only issues whose author may write to the repository. The
approval gate (``BROKER_APPROVAL_GATE=1``) takes an issue off offer when its title or text is edited after its approval,
until somebody has looked at the difference: see :mod:`tasks.services.approvals`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from django.conf import settings

from broker_project.lib.config.dynamic import REVIEW_DELAY_MINUTES, value_of
from tasks.lifecycle import NEEDS_REVIEW, IssueFacts, NotOffered, Offer, classify
from tasks.models import EditedIssue, Issue
from tasks.reasons import Reason, ReasonCode

# GitHub's words for those who own the repository, belong to its organisation or were invited to it.
WRITERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})


def review_delay() -> timedelta:
    return timedelta(minutes=value_of(REVIEW_DELAY_MINUTES))


def decide(facts: IssueFacts) -> Offer | NotOffered:
    """Whether an issue can be handed out, by the settings in force."""
    return classify(facts, settings.BROKER.role_names, review_delay())


def is_author_refused(issue: Issue) -> bool:
    return settings.BROKER.author_gate == "writers" and issue.author_association not in WRITERS


def edited_issues(issues: Iterable[Issue]) -> Collection[int]:
    """Primary keys of those that wait for a look; asks nothing while the gate is off."""
    if not settings.BROKER.approval_gate:
        return ()
    keys = [issue.pk for issue in issues]
    return set(EditedIssue.objects.filter(issue_id__in=keys).values_list("issue_id", flat=True))


def withheld_reason(issue: Issue, edited: Collection[int]) -> Reason | None:
    """Why a gate keeps an issue back; None if none does."""
    if is_author_refused(issue):
        return Reason.of(ReasonCode.FOREIGN_AUTHOR)
    return Reason.of(ReasonCode.EDITED) if issue.pk in edited else None


def is_approved_by_labels(issue: Issue) -> bool:
    """Whoever gives an issue its role and priority, or asks for its review, has read it: only writers can."""
    is_meant = issue.priority is not None or NEEDS_REVIEW in issue.labels
    return is_meant and bool(set(issue.labels) & settings.BROKER.role_names)


def index_mark(full_name: str) -> str:
    """What the index was built for. Another gate means another index; with both off it is the repository alone."""
    gates = [
        name
        for name, is_on in (
            ("author", settings.BROKER.author_gate == "writers"),
            ("approval", settings.BROKER.approval_gate),
        )
        if is_on
    ]
    return " ".join([full_name, *gates])
