"""What changes the GitHub stand-in. Each change bumps `updated_at` and sends the event that GitHub would."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sandbox.core import iso
from sandbox.github_http import ApiError, invalid, not_found
from sandbox.github_shapes import Json
from sandbox.github_state import Comment, Issue, Label, Repository, label_color

if TYPE_CHECKING:
    from sandbox.github import GitHub

MAX_LABEL_CHARACTERS = 50
MAX_TITLE_CHARACTERS = 256
MAX_BODY_CHARACTERS = 65536
MAX_LABELS = 100
STATE_REASONS = ("completed", "not_planned", "duplicate", "reopened")


class Changes:
    """Issues, labels and comments. Bad input raises ApiError with GitHub's wording."""

    def __init__(self, github: GitHub) -> None:
        self.github = github

    def now(self) -> str:
        return iso(self.github.world.clock.now())

    def emit(self, event: str, action: str, repo: Repository, actor: str, **parts: Any) -> None:
        if not self.github.is_heard:
            return
        shapes = self.github.shapes
        self.github.announce(
            event,
            {"action": action, **parts, "repository": shapes.repository(repo), "sender": shapes.user(actor)},
        )

    def emit_issue(self, action: str, repo: Repository, actor: str, issue: Issue, **parts: Any) -> None:
        """An `issues` event, or a `pull_request` event for a pull request."""
        if not self.github.is_heard:
            return
        if issue.pull:
            shape = self.github.pull_shape(repo, issue)
            self.emit("pull_request", action, repo, actor, number=issue.number, pull_request=shape, **parts)
        else:
            self.emit("issues", action, repo, actor, issue=self.github.issue_shape(repo, issue), **parts)

    def bump(self, repo: Repository, issue: Issue) -> None:
        issue.updated_at = repo.updated_at = self.now()
        self.github.world.touch()

    # Labels

    def create_label(
        self, repo: Repository, actor: str, name: str, color: str | None, description: Any
    ) -> Label:
        self.check_label_name(name)
        if name.lower() in repo.labels:
            raise invalid("Label", "name", "already_exists")
        label = Label(
            self.github.state.next_id(),
            name,
            _color(color or label_color(name)),
            _text(description, "description"),
        )
        repo.labels[name.lower()] = label
        self.github.world.touch()
        self.emit("label", "created", repo, actor, label=self.github.shapes.label(repo, label))
        return label

    def edit_label(self, repo: Repository, actor: str, label: Label, data: Json) -> None:
        new_name = data.get("new_name", label.name)
        self.check_label_name(new_name)
        before, after = label.name.lower(), new_name.lower()
        if after != before and after in repo.labels:
            raise invalid("Label", "name", "already_exists")
        color = _color(data.get("color", label.color))
        description = _text(data.get("description", label.description), "description")
        label.name, label.color, label.description = new_name, color, description
        if after != before:
            repo.labels = {after if key == before else key: value for key, value in repo.labels.items()}
            for issue in repo.issues.values():
                issue.labels = [after if key == before else key for key in issue.labels]
        self.github.world.touch()
        self.emit("label", "edited", repo, actor, label=self.github.shapes.label(repo, label), changes={})

    def delete_label(self, repo: Repository, actor: str, label: Label) -> None:
        shape = self.github.shapes.label(repo, label)
        key = label.name.lower()
        for issue in repo.issues.values():
            if key in issue.labels:
                issue.labels.remove(key)
                self.bump(repo, issue)
        del repo.labels[key]
        self.github.world.touch()
        self.emit("label", "deleted", repo, actor, label=shape)

    def check_label_name(self, name: Any) -> None:
        if not isinstance(name, str) or not name.strip():
            raise invalid("Label", "name", "missing_field")
        if len(name) > MAX_LABEL_CHARACTERS:
            message = f"name is too long (maximum is {MAX_LABEL_CHARACTERS} characters)"
            raise invalid("Label", "name", "custom", message)

    def add_labels(self, repo: Repository, actor: str, issue: Issue, names: Iterable[Any]) -> None:
        """Adds the labels that the issue lacks; one that the repository lacks is created."""
        wanted = list(names)
        for name in wanted:
            self.check_label_name(name)
        if len(set(issue.labels) | {name.lower() for name in wanted}) > MAX_LABELS:
            raise invalid("Issue", "labels", "custom", f"an issue has at most {MAX_LABELS} labels")
        for name in wanted:
            key = name.lower()
            if key not in repo.labels:
                self.create_label(repo, actor, name, None, None)
            if key in issue.labels:
                continue
            issue.labels.append(key)
            self.bump(repo, issue)
            label = self.github.shapes.label(repo, repo.labels[key])
            self.emit_issue("labeled", repo, actor, issue, label=label)

    def remove_label(self, repo: Repository, actor: str, issue: Issue, name: str) -> None:
        key = name.lower()
        if key not in issue.labels:
            raise not_found("Label does not exist")
        issue.labels.remove(key)
        self.bump(repo, issue)
        label = self.github.shapes.label(repo, repo.labels[key])
        self.emit_issue("unlabeled", repo, actor, issue, label=label)

    def set_labels(self, repo: Repository, actor: str, issue: Issue, names: Iterable[Any]) -> None:
        wanted = list(names)
        for name in wanted:
            self.check_label_name(name)
        keys = {name.lower() for name in wanted}
        for key in [key for key in issue.labels if key not in keys]:
            self.remove_label(repo, actor, issue, key)
        self.add_labels(repo, actor, issue, wanted)

    # Issues

    def create_issue(
        self,
        repo: Repository,
        actor: str,
        title: Any,
        body: Any = None,
        labels: Iterable[Any] = (),
        assignees: Iterable[str] = (),
    ) -> Issue:
        checked_title, checked_body = self._title(title), self._body(body)
        names = list(labels)
        for name in names:
            self.check_label_name(name)
        now = self.now()
        repo.last_number += 1
        issue = Issue(
            self.github.state.next_id(), repo.last_number, checked_title, checked_body, actor, now, now
        )
        issue.assignees = list(assignees)
        for name in names:
            if name.lower() not in repo.labels:
                self.create_label(repo, actor, name, None, None)
            if name.lower() not in issue.labels:
                issue.labels.append(name.lower())
        repo.issues[issue.number] = issue
        self.bump(repo, issue)
        self.emit_issue("opened", repo, actor, issue)
        for key in issue.labels:  # GitHub also sends these when an issue is opened with labels
            label = self.github.shapes.label(repo, repo.labels[key])
            self.emit_issue("labeled", repo, actor, issue, label=label)
        return issue

    def edit_issue(self, repo: Repository, actor: str, issue: Issue, data: Json) -> None:
        title = self._title(data["title"]) if "title" in data else issue.title
        body = self._body(data["body"]) if "body" in data else issue.body
        state = data.get("state", issue.state)
        if state not in ("open", "closed"):
            raise invalid("Issue", "state")
        reason = data.get("state_reason")
        if reason is not None and reason not in STATE_REASONS:
            raise invalid("Issue", "state_reason")
        labels = label_names(data["labels"]) if data.get("labels") is not None else None
        changes: Json = {}
        if title != issue.title:
            changes["title"] = {"from": issue.title}
        if body != issue.body:
            changes["body"] = {"from": issue.body or ""}
        issue.title, issue.body = title, body
        if changes:
            self.bump(repo, issue)
            self.emit_issue("edited", repo, actor, issue, changes=changes)
        if isinstance(data.get("assignees"), list):
            issue.assignees = [str(login) for login in data["assignees"]]
            self.bump(repo, issue)
        if labels is not None:
            self.set_labels(repo, actor, issue, labels)
        if state == "closed" and issue.state == "open":
            self.close_issue(repo, actor, issue, reason or "completed")
        elif state == "open" and issue.state == "closed":
            self.reopen_issue(repo, actor, issue)

    def close_issue(self, repo: Repository, actor: str, issue: Issue, reason: str = "completed") -> None:
        issue.state, issue.closed_at, issue.closed_by = "closed", self.now(), actor
        issue.state_reason = None if issue.pull else reason
        self.bump(repo, issue)
        self.emit_issue("closed", repo, actor, issue)

    def reopen_issue(self, repo: Repository, actor: str, issue: Issue) -> None:
        if issue.pull and issue.pull.merged_at:
            raise invalid("PullRequest", "state")
        issue.state, issue.closed_at, issue.closed_by = "open", None, None
        issue.state_reason = None if issue.pull else "reopened"
        self.bump(repo, issue)
        self.emit_issue("reopened", repo, actor, issue)

    def _title(self, title: Any) -> str:
        if not isinstance(title, str) or not title.strip():
            raise invalid("Issue", "title", "missing_field")
        if len(title) > MAX_TITLE_CHARACTERS:
            message = f"title is too long (maximum is {MAX_TITLE_CHARACTERS} characters)"
            raise invalid("Issue", "title", "custom", message)
        return title

    def _body(self, body: Any) -> str | None:
        if body is not None and not isinstance(body, str):
            raise invalid("Issue", "body")
        if body is not None and len(body) > MAX_BODY_CHARACTERS:
            message = f"body is too long (maximum is {MAX_BODY_CHARACTERS} characters)"
            raise invalid("Issue", "body", "custom", message)
        return body

    # Comments

    def add_comment(self, repo: Repository, actor: str, issue: Issue, body: Any) -> Comment:
        text = self.comment_body(body)
        now = self.now()
        comment = Comment(self.github.state.next_id(), issue.number, actor, text, now, now)
        repo.comments[comment.id] = comment
        self.bump(repo, issue)
        self._emit_comment("created", repo, actor, issue, comment)
        return comment

    def edit_comment(self, repo: Repository, actor: str, comment: Comment, body: Any) -> None:
        before, comment.body = comment.body, self.comment_body(body)
        comment.updated_at = self.now()
        issue = repo.issues[comment.number]
        self.bump(repo, issue)
        self._emit_comment("edited", repo, actor, issue, comment, changes={"body": {"from": before}})

    def delete_comment(self, repo: Repository, actor: str, comment: Comment) -> None:
        del repo.comments[comment.id]
        issue = repo.issues[comment.number]
        self.bump(repo, issue)
        self._emit_comment("deleted", repo, actor, issue, comment)

    def comment_body(self, body: Any) -> str:
        if not isinstance(body, str) or not body.strip():
            raise invalid("IssueComment", "body", "missing_field")
        if len(body) > MAX_BODY_CHARACTERS:
            raise invalid("IssueComment", "body", "custom", "body is too long")
        return body

    def _emit_comment(
        self, action: str, repo: Repository, actor: str, issue: Issue, comment: Comment, **parts: Any
    ) -> None:
        if not self.github.is_heard:
            return
        self.emit(
            "issue_comment",
            action,
            repo,
            actor,
            issue=self.github.issue_shape(repo, issue),
            comment=self.github.shapes.comment(repo, comment),
            **parts,
        )


def label_names(data: Any) -> list[Any]:
    """Names from what clients send: `["a"]`, `[{"name": "a"}]` or `{"labels": …}` around either."""
    if isinstance(data, dict):
        data = data.get("labels", [])
    if isinstance(data, str):
        data = [data]
    if not isinstance(data, list):
        raise ApiError(422, "Invalid request.\n\n'labels' is not an array.")
    return [item.get("name") if isinstance(item, dict) else item for item in data]


def _color(color: Any) -> str:
    if not isinstance(color, str) or not re.fullmatch(r"[0-9a-fA-F]{6}", color):
        raise invalid("Label", "color")
    return color.lower()


def _text(value: Any, name: str) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > 100):
        raise invalid("Label", name)
    return value
