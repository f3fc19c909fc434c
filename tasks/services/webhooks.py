"""What GitHub tells us by webhook, applied at once. A hint: the next poll mends what was missed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from django.conf import settings
from django.db import IntegrityError, transaction

from broker_project.lib.errors import OutsideError, SwitchedOff
from broker_project.lib.logs import get_logger
from tasks.github.answers import Json, as_object
from tasks.github.client import client_for
from tasks.github.rows import read_number, read_pull
from tasks.lifecycle import NEEDS_REVIEW, our_word
from tasks.models import Issue, PullRequest, Repository, WebhookDelivery
from tasks.offers.projector import project
from tasks.services.repositories import configured_repository
from tasks.services.reviews import digest_comments, store_digest
from tasks.services.snapshot_labels import LabelEvent, SnapshotSource
from tasks.services.snapshots import apply_issues, apply_pulls, close_vanished

log = get_logger(__name__)


class Received(StrEnum):
    APPLIED = "applied"
    REPEATED = "repeated"
    IGNORED = "ignored"
    PONG = "pong"


def receive_webhook(delivery_id: str, event: str, payload: Json, now: datetime) -> Received:
    """Apply one delivery: rows, then index, before this returns. Raises BadAnswer on a payload without sense.

    The delivery's id is used up in the same transaction as its change, so what failed may be sent again.
    """
    if event == "ping":
        return Received.PONG
    handler = HANDLERS.get(event)
    if handler is None:
        return Received.IGNORED
    repository = find_repository(payload)
    if repository is None:
        return Received.IGNORED
    if WebhookDelivery.objects.filter(pk=delivery_id).exists():
        return Received.REPEATED
    digest = fetch_digest(repository, payload) if event == "pull_request_review_comment" else None
    try:
        with transaction.atomic():
            WebhookDelivery.objects.create(delivery_id=delivery_id, event=event, received_at=now)
            numbers = handler(repository, payload, now)
            if digest is not None:
                store_comments(repository, payload, digest, now)
            # A late snapshot may undo what the last poll saw: the next one must not take 304 for an answer.
            Repository.objects.filter(pk=repository.pk).update(issues_etag="", pulls_etag="")
    except IntegrityError:
        if WebhookDelivery.objects.filter(pk=delivery_id).exists():
            return Received.REPEATED
        raise
    project(repository, numbers, now)
    return Received.APPLIED


def find_repository(payload: Json) -> Repository | None:
    """The enabled repository that a payload is about; None for others."""
    about = payload.get("repository")
    name = about.get("full_name") if isinstance(about, dict) else None
    if not isinstance(name, str):
        return None
    found = Repository.objects.filter(full_name__iexact=name).first()
    if found is None and name.lower() == settings.BROKER.github.repository.lower():
        try:
            found = configured_repository()
        except SwitchedOff:
            return None
    return found if found is not None and found.is_enabled else None


def on_issue(repository: Repository, payload: Json, now: datetime) -> set[int]:
    issue = as_object(payload.get("issue"))
    if payload.get("action") in ("deleted", "transferred") and "comment" not in payload:
        return close_vanished(repository, read_number(issue), now, who=sender(payload))
    return apply_issues(repository, [issue], source_of(payload, now)).numbers


def on_pull(repository: Repository, payload: Json, now: datetime) -> set[int]:
    return apply_pulls(repository, [as_object(payload.get("pull_request"))], source_of(payload, now)).numbers


def on_label(repository: Repository, payload: Json, now: datetime) -> set[int]:
    """A label that was renamed or deleted changes any number of issues, and says so of none."""
    if payload.get("action") in ("edited", "deleted"):
        Repository.objects.filter(pk=repository.pk).update(last_full_sync_at=None)
    return set()


HANDLERS: dict[str, Callable[[Repository, Json, datetime], set[int]]] = {
    "issues": on_issue,
    "issue_comment": on_issue,
    "pull_request": on_pull,
    "pull_request_review_comment": on_pull,
    "label": on_label,
}


def source_of(payload: Json, now: datetime) -> SnapshotSource:
    return SnapshotSource(now, label_event=label_event(payload), who=sender(payload))


def label_event(payload: Json) -> LabelEvent | None:
    action, label = payload.get("action"), payload.get("label")
    name = label.get("name") if isinstance(label, dict) else None
    if action not in ("labeled", "unlabeled") or not isinstance(name, str):
        return None
    return LabelEvent(our_word(name), action == "labeled")


def sender(payload: Json) -> str:
    about = payload.get("sender")
    login = about.get("login") if isinstance(about, dict) else None
    return f"github:{login}" if isinstance(login, str) else "github"


# Review comments


def fetch_digest(repository: Repository, payload: Json) -> str | None:
    """All comments of the pull request, if a review may wait for them; None leaves it to the next poll."""
    pull = read_pull(repository, as_object(payload.get("pull_request")))
    waiting = Issue.objects.filter(repository=repository, is_open=True, number__in=pull.closes)
    if not any(NEEDS_REVIEW in labels for labels in waiting.values_list("labels", flat=True)):
        return None
    try:
        return digest_comments(client_for(repository).pull_comments(pull.number))
    except OutsideError as error:
        log.warning("review comments are left to the next poll", pull=pull.number, error=str(error))
        return None


def store_comments(repository: Repository, payload: Json, digest: str, now: datetime) -> None:
    pull = PullRequest.objects.filter(repository=repository, number=payload["pull_request"]["number"]).first()
    if pull is not None:
        store_digest(pull, digest, now)
