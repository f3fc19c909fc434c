"""What Redis shows of single issues: seed 000's caches and seed 002's status and metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.batch import Batch
from broker_project.lib.redis.keyspace import Keyspace
from tasks.github.answers import label_names
from tasks.lifecycle import NEEDS_REVIEW, IssueStatus, status_word
from tasks.models import Repository
from tasks.offers.candidates import Subject

SHOW = (Path(__file__).parent / "lua" / "issue_show.lua").read_text()
ENDED_STATE_SECONDS = 7 * 86400  # how long a closed issue still shows how it ended


def queue_issues(
    batch: Batch,
    repository: Repository,
    keys: Keyspace,
    numbers: Sequence[int],
    found: Mapping[int, Subject],
    raws: Mapping[int, dict[str, Any]],
    now: datetime,
) -> None:
    """Queue what keeps the keys of these issues right. Only what differs from what Redis has is written.

    ``raws`` has GitHub's JSON of the open ones. What is neither there nor in ``found`` is closed; a pull request with
    a fix task is no open issue either.
    """
    specs = (k.ISSUE, k.REVIEW_DETECTED, k.REVIEW_DELAY, k.ISSUE_STATUS, k.ISSUE_METADATA)
    names = [keys.key(spec, number=number) for number in numbers for spec in specs]
    given = [word for number in numbers for word in _shown(found.get(number), raws.get(number))]
    batch.eval(SHOW, len(names), *names, repository.full_name, now.isoformat(), ENDED_STATE_SECONDS, *given)


def _shown(subject: Subject | None, raw: dict[str, Any] | None) -> list[str]:
    """The arguments of ``lua/issue_show.lua`` for one issue."""
    text = "" if raw is None else json.dumps(raw, ensure_ascii=False)
    if subject is None:
        return [text, "", "", "", "", ""]
    facts, issue = subject.facts, subject.issue
    word = IssueStatus.PROCESSING if facts.is_taken else status_word(facts.labels, is_open=True)
    detected_at = issue.review_detected_at if issue and NEEDS_REVIEW in facts.labels else None
    return [
        text,
        str(word),
        detected_at.isoformat() if detected_at else "",
        facts.title[:500],
        issue.html_url if issue else "",
        json.dumps(facts.labels, ensure_ascii=False),
    ]


def short_form(raw: dict[str, Any]) -> str:
    """An issue inside ``open_issues``: GitHub's own fields, without the body (that is in ``issue:{n}``)."""
    kept = ("id", "number", "title", "html_url", "state", "created_at", "updated_at")
    short = {name: raw[name] for name in kept if name in raw}
    short["labels"] = [{"name": name} for name in label_names(raw.get("labels"))]
    return json.dumps(short, ensure_ascii=False, separators=(",", ":"))
