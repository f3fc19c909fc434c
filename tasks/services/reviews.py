"""When a review is finished, what was reviewed is remembered: the same again is not offered again."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from tasks.github.client import client_for
from tasks.models import Assignment, Issue, PullRequest

log = get_logger(__name__)

SAME_SECOND = timedelta(seconds=5)  # clocks may differ a little


def digest_comments(comments: list[dict[str, Any]]) -> str:
    """A digest that changes when a review comment is added, edited or removed; empty for none."""
    if not comments:
        return ""
    facts = sorted((int(comment.get("id", 0)), str(comment.get("body", ""))) for comment in comments)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:39]


def store_digest(pull: PullRequest, digest: str, now: datetime) -> None:
    """GitHub's times have whole seconds: right after a change, another of the same second may still come."""
    is_settled = now - pull.updated_at > SAME_SECOND
    seen_at = pull.updated_at if is_settled else pull.updated_at - SAME_SECOND
    PullRequest.objects.filter(pk=pull.pk).update(comments_digest=digest, comments_seen_at=seen_at)


def remember_review(assignment: Assignment) -> None:
    """Take the pull request's head and comments as they are now: the reviewer's own comments are part of it.

    While GitHub is away the last known state has to do; a comment not yet seen then offers the review once more.
    """
    if assignment.pull_number is None:
        return
    pull = PullRequest.objects.filter(repository=assignment.repository, number=assignment.pull_number).first()
    if pull is None:
        return
    try:
        client = client_for(assignment.repository)
        raw = client.get_pull(pull.number)
        pull.head_sha = raw["head"]["sha"]
        pull.comments_digest = digest_comments(client.pull_comments(pull.number))
        pull.save(update_fields=["head_sha", "comments_digest"])
    except OutsideError as error:
        log.warning("review remembered without GitHub", pull=pull.number, error=str(error))
    Issue.objects.filter(repository=assignment.repository, number=assignment.number).update(
        reviewed_fingerprint=pull.fingerprint
    )
