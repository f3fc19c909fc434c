"""The state of the GitHub stand-in: plain records, dumped and loaded as JSON.

Times are ISO texts in UTC.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

LABEL_COLORS = {
    "p0": "b60205",
    "p1": "d93f0b",
    "p2": "fbca04",
    "p3": "0e8a16",
    "in-progress": "1d76db",
    "needs-review": "5319e7",
    "review-done": "0e8a16",
    "parked": "6a737d",
}
DEFAULT_LABEL_COLOR = "ededed"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass
class Label:
    id: int
    name: str
    color: str = DEFAULT_LABEL_COLOR
    description: str | None = None


@dataclass
class Commit:
    sha: str
    message: str
    author: str
    created_at: str
    parents: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass
class Pull:
    """What a pull request has beyond being an issue."""

    head: str
    base: str
    head_sha: str
    base_sha: str
    draft: bool = False
    merged_at: str | None = None
    merge_sha: str | None = None
    merged_by: str | None = None


@dataclass
class Issue:
    id: int
    number: int
    title: str
    body: str | None
    author: str
    created_at: str
    updated_at: str
    state: str = "open"
    state_reason: str | None = None
    closed_at: str | None = None
    closed_by: str | None = None
    locked: bool = False
    labels: list[str] = field(default_factory=list)  # lower-cased names, keys of Repository.labels
    assignees: list[str] = field(default_factory=list)
    pull: Pull | None = None


@dataclass
class Comment:
    id: int
    number: int  # of the issue
    author: str
    body: str
    created_at: str
    updated_at: str


@dataclass
class ReviewComment:
    id: int
    number: int  # of the pull request
    author: str
    body: str
    path: str
    line: int | None
    side: str
    commit_sha: str
    created_at: str
    updated_at: str
    in_reply_to: int | None = None
    review_id: int | None = None


@dataclass
class Review:
    id: int
    number: int  # of the pull request
    author: str
    body: str
    state: str
    commit_sha: str
    submitted_at: str


@dataclass
class Repository:
    id: int
    owner: str
    name: str
    created_at: str
    updated_at: str
    default_branch: str = "main"
    description: str | None = None
    private: bool = False
    last_number: int = 0
    labels: dict[str, Label] = field(default_factory=dict)
    issues: dict[int, Issue] = field(default_factory=dict)
    comments: dict[int, Comment] = field(default_factory=dict)
    review_comments: dict[int, ReviewComment] = field(default_factory=dict)
    reviews: dict[int, Review] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"

    def label_names(self, issue: Issue) -> list[str]:
        return [self.labels[key].name for key in issue.labels]

    def dump(self) -> dict[str, Any]:
        data = dict(vars(self))
        data["labels"] = [vars(label) for label in self.labels.values()]
        data["issues"] = [
            {**vars(issue), "pull": vars(issue.pull) if issue.pull else None}
            for issue in self.issues.values()
        ]
        for name in ("comments", "review_comments", "reviews", "commits"):
            data[name] = [vars(record) for record in data[name].values()]
        return data

    @classmethod
    def load(cls, data: dict[str, Any]) -> Repository:
        plain = {name: value for name, value in data.items() if not isinstance(value, list)}
        repository = cls(**{**plain, "branches": dict(data.get("branches", {}))})
        for item in data.get("labels", []):
            label = Label(**item)
            repository.labels[label.name.lower()] = label
        for item in data.get("issues", []):
            pull = Pull(**item["pull"]) if item.get("pull") else None
            lists = {"labels": list(item.get("labels", [])), "assignees": list(item.get("assignees", []))}
            issue = Issue(**{**item, **lists, "pull": pull})
            unknown = [key for key in issue.labels if key not in repository.labels]
            if unknown:
                raise ValueError(f"issue {issue.number} has labels that the repository lacks: {unknown}")
            repository.issues[issue.number] = issue
        for item in data.get("comments", []):
            repository.comments[item["id"]] = Comment(**item)
        for item in data.get("review_comments", []):
            repository.review_comments[item["id"]] = ReviewComment(**item)
        for item in data.get("reviews", []):
            repository.reviews[item["id"]] = Review(**item)
        for item in data.get("commits", []):
            repository.commits[item["sha"]] = Commit(**item)
        repository.last_number = max([repository.last_number, *repository.issues])
        return repository


@dataclass
class Settings:
    """What tests and people may set; see `PATCH /_sandbox/github/settings`."""

    webhooks: bool = True
    rate_limit: int = 5000  # requests an hour
    rate_used: int = 0
    rate_reset_at: int = 0  # Unix seconds, as in x-ratelimit-reset
    exhausted_status: int = 403
    writes_per_minute: int = 0  # 0: no secondary limit


@dataclass
class GitHubState:
    last_id: int = 1000
    settings: Settings = field(default_factory=Settings)
    repositories: dict[str, Repository] = field(default_factory=dict)  # by lower-cased owner/name

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def find(self, owner: str, name: str) -> Repository | None:
        return self.repositories.get(f"{owner}/{name}".lower())

    def dump(self) -> dict[str, Any]:
        return {
            "last_id": self.last_id,
            "settings": vars(self.settings),
            "repositories": [repository.dump() for repository in self.repositories.values()],
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> GitHubState:
        state = cls(last_id=int(data.get("last_id", 1000)), settings=Settings(**data.get("settings", {})))
        for item in data.get("repositories", []):
            repository = Repository.load(item)
            state.repositories[repository.full_name.lower()] = repository
        return state


def label_color(name: str) -> str:
    return LABEL_COLORS.get(name.lower(), DEFAULT_LABEL_COLOR)


def make_sha(*parts: object) -> str:
    """A commit id that depends on nothing but the parts."""
    return hashlib.sha1("\0".join(map(str, parts)).encode()).hexdigest()
