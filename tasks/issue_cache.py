"""What Redis shows of single issues: seed 000's caches and seed 002's status and metadata."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import redis

from broker_project.lib import keyspace as k
from broker_project.lib.keyspace import Keyspace
from tasks.facts import Subject
from tasks.github_answers import label_names
from tasks.lifecycle import NEEDS_REVIEW, IssueStatus, status_word
from tasks.models import Repository

ENDED_STATE_SECONDS = 7 * 86400  # how long a closed issue still shows how it ended


def cache_issue(
    pipe: redis.client.Pipeline,
    keys: Keyspace,
    subject: Subject | None,
    raw: dict[str, Any] | None,
    number: int,
) -> None:
    """Queue the commands that keep seed 000's keys of one issue right."""
    detected_keys = [keys.key(spec, number=number) for spec in (k.REVIEW_DETECTED, k.REVIEW_DELAY)]
    if raw is None:
        pipe.delete(keys.key(k.ISSUE, number=number), *detected_keys)
        if subject is None:  # closed; a pull request with a fix task is no open issue either
            for spec in (k.ISSUE_STATUS, k.ISSUE_METADATA):
                pipe.expire(keys.key(spec, number=number), ENDED_STATE_SECONDS)
        return
    pipe.set(keys.key(k.ISSUE, number=number), json.dumps(raw, ensure_ascii=False))
    detected_at = subject.issue.review_detected_at if subject and subject.issue else None
    if detected_at and NEEDS_REVIEW in (subject.facts.labels if subject else ()):
        for key in detected_keys:
            pipe.set(key, detected_at.isoformat())
    else:
        pipe.delete(*detected_keys)


def show_issue(
    pipe: redis.client.Pipeline, keys: Keyspace, repository: Repository, subject: Subject, now: datetime
) -> None:
    """Queue what seed 002's keys say of an open issue. A status that is there stays: its changes are told as they
    happen."""
    facts, number = subject.facts, subject.facts.number
    status = keys.key(k.ISSUE_STATUS, number=number)
    word = IssueStatus.PROCESSING if facts.is_taken else status_word(facts.labels, is_open=True)
    pipe.hsetnx(status, "status", str(word))
    pipe.hsetnx(status, "updatedAt", now.isoformat())
    pipe.hset(
        keys.key(k.ISSUE_METADATA, number=number),
        mapping={
            "title": facts.title[:500],
            "url": subject.issue.html_url if subject.issue else "",
            "labels": json.dumps(facts.labels, ensure_ascii=False),
            "repository": repository.full_name,
        },
    )


def short_form(raw: dict[str, Any]) -> str:
    """An issue inside ``open_issues``: GitHub's own fields, without the body (that is in ``issue:{n}``)."""
    kept = ("id", "number", "title", "html_url", "state", "created_at", "updated_at")
    short = {name: raw[name] for name in kept if name in raw}
    short["labels"] = [{"name": name} for name in label_names(raw.get("labels"))]
    return json.dumps(short, ensure_ascii=False, separators=(",", ":"))
