"""GitHub's JSON of issues and pull requests as unsaved rows. What makes no sense raises BadAnswer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from django.utils.dateparse import parse_datetime

from broker_project.lib.errors import BadAnswer
from tasks.github.answers import SYSTEM, Json, label_names, relabelled
from tasks.lifecycle import closed_issues, priority_of
from tasks.models import Issue, PullRequest, Repository

MAX_NUMBER = 2**31 - 1


def read_issue(repository: Repository, raw: Json) -> Issue:
    user = raw.get("user")
    issue = Issue(
        repository=repository,
        **common_values(raw),
        author=str(user.get("login") or "")[:100] if isinstance(user, dict) else "",
        author_association=str(raw.get("author_association") or "")[:30],
        raw=raw,
    )
    issue.priority = priority_of(issue.labels)
    return issue


def read_pull(repository: Repository, raw: Json) -> PullRequest:
    head, base = side(raw, "head"), side(raw, "base")
    return PullRequest(
        repository=repository,
        **common_values(raw),
        head_ref=text(head, "ref")[:250],
        head_sha=text(head, "sha")[:64],
        base_ref=text(base, "ref")[:250],
        closes=closed_issues(raw.get("body") or "", repository.full_name),
    )


def read_pull_as_issue(repository: Repository, raw: Json) -> PullRequest:
    """A pull request in a listing of issues: without its branches."""
    closes = closed_issues(raw.get("body") or "", repository.full_name)
    return PullRequest(repository=repository, **common_values(raw), closes=closes)


def common_values(raw: Json) -> dict[str, Any]:
    body = raw.get("body")
    if body is not None and not isinstance(body, str):
        refuse("body")
    if raw.get("state") not in ("open", "closed"):
        refuse("state")
    return {
        "number": read_number(raw),
        "title": text(raw, "title"),
        "body": body or "",
        "is_open": raw["state"] == "open",
        "labels": label_names(raw.get("labels")),
        "html_url": text(raw, "html_url"),
        "opened_at": time(raw, "created_at"),
        "updated_at": time(raw, "updated_at"),
    }


def read_number(raw: Json) -> int:
    """A number that the column holds. Raises BadAnswer."""
    number = raw.get("number")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= MAX_NUMBER:
        refuse("number")
    return number


def side(raw: Json, name: str) -> Json:
    value = raw.get(name)
    if not isinstance(value, dict):
        refuse(name)
    return value


def text(raw: Json, name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str):
        refuse(name)
    return value


def time(raw: Json, name: str) -> datetime:
    try:
        value = parse_datetime(text(raw, name))
    except ValueError:
        value = None
    # Near the ends of the calendar a time has no equal in UTC, and the database wants that.
    if value is None or value.tzinfo is None or not 1970 <= value.year < 9999:
        refuse(name)
    return value


def refuse(name: str) -> NoReturn:
    raise BadAnswer(SYSTEM, f"an issue or pull request without a proper {name!r}")


def set_labels(issue: Issue, labels: Sequence[str]) -> None:
    """The labels of an issue wherever it keeps them: its own list, its priority and GitHub's JSON."""
    issue.labels = list(labels)
    issue.priority = priority_of(labels)
    issue.raw = relabelled(issue.raw, labels)
