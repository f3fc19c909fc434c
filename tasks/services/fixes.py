"""Fix tasks: review comments that are to be mended on the pull request's own branch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from broker_project.lib.errors import Missing
from broker_project.lib.redis import keys as k
from tasks.github.client import client_for
from tasks.models import FixTask, PullRequest, Repository
from tasks.offers.projector import project
from tasks.reasons import Reason, ReasonCode
from tasks.services.events import make_event
from tasks.services.snapshots import apply_pull


class UnknownPullRequest(Exception):
    pass


def repository_of_pull(repositories: Sequence[Repository], number: int) -> Repository:
    """The repository that has such an open pull request; the first one if none is known to."""
    known = set(
        PullRequest.objects.filter(repository__in=repositories, number=number, is_open=True).values_list(
            "repository_id", flat=True
        )
    )
    return next((repository for repository in repositories if repository.pk in known), repositories[0])


def request_fix(
    repository: Repository, pull_number: int, comments: list[str], who: str, now: datetime
) -> FixTask:
    """Put a fix task on offer; a second one for the same pull request adds its comments to the first."""
    find_pull(repository, pull_number, now)
    expires_at = now + timedelta(seconds=k.CANDIDATE_SECONDS)
    with transaction.atomic():
        fix, created = FixTask.objects.select_for_update().get_or_create(
            repository=repository,
            pull_number=pull_number,
            state=FixTask.State.OPEN,
            defaults={"comments": comments, "created_at": now, "expires_at": expires_at},
        )
        if not created:
            fix.comments = list(dict.fromkeys([*fix.comments, *comments]))
            fix.expires_at = expires_at
            fix.save(update_fields=["comments", "expires_at"])
        event = make_event(
            repository,
            pull_number,
            "fix wanted",
            now=now,
            who=who,
            to_status="open",
            reason=Reason.of(ReasonCode.REVIEW_COMMENTS, count=len(comments)),
        )
        event.save(force_insert=True)
    project(repository, [pull_number], now)
    return fix


def find_pull(repository: Repository, number: int, now: datetime) -> PullRequest:
    pulls = PullRequest.objects.filter(repository=repository, number=number, is_open=True)
    if pull := pulls.first():
        return pull
    try:
        raw = client_for(repository).get_pull(number)
    except Missing:
        raise UnknownPullRequest(number) from None
    project(repository, apply_pull(repository, raw, now), now)
    if pull := pulls.first():
        return pull
    raise UnknownPullRequest(number)
