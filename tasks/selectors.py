"""What pages, metrics and ``explain`` show of tasks. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import Count

from tasks.facts import subjects
from tasks.index import review_delay
from tasks.lifecycle import Gate, NotOffered, Offer, best_bucket, classify, why_not
from tasks.models import Assignment, Issue, Repository


@dataclass(frozen=True)
class Explained:
    repository: str
    number: int
    title: str
    priority: int | None
    offered: bool
    reason: str


def explanation(
    repositories: Iterable[Repository], agent_roles: Collection[str], now: datetime
) -> list[Explained]:
    """Every open issue and fix task with why it is, or is not, on offer to an agent with these roles.

    The same rules as the index in Redis, worked out from the rows.
    """
    rows = [
        (repository, subject, classify(subject.facts, settings.BROKER.role_names, review_delay()))
        for repository in repositories
        for subject in subjects(repository)
    ]
    offers = [verdict for _, _, verdict in rows if isinstance(verdict, Offer)]
    open_priorities = [
        subject.facts.priority
        for _, subject, _ in rows
        if subject.counts_as_open and subject.facts.priority is not None
    ]
    best = best_bucket(Gate(settings.BROKER.priority_gate), offers, open_priorities, agent_roles, now)
    found = []
    for repository, subject, verdict in rows:
        reason = (
            verdict.reason if isinstance(verdict, NotOffered) else why_not(verdict, agent_roles, best, now)
        )
        facts = subject.facts
        found.append(
            Explained(
                repository.full_name,
                facts.number,
                facts.title,
                facts.priority,
                offered=not reason,
                reason=reason or "on offer",
            )
        )
    return sorted(found, key=lambda row: (not row.offered, row.number))


def assignment_counts() -> dict[str, int]:
    return dict(Assignment.objects.values_list("state").annotate(Count("pk")))


def open_issue_count() -> int:
    return Issue.objects.filter(is_open=True).count()
