"""Simulated people: they open issues and comment, and turn an agent's finished work into a pull request."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sandbox.github_seed import NAME, OWNER, read_drafts
from sandbox.github_shapes import Json
from sandbox.github_state import Issue, Repository

if TYPE_CHECKING:
    from sandbox.github import GitHub

STEP_SECONDS = 45
PULL_DELAY_SECONDS = 5
MAX_ACTIONS = 40
REMARKS = (
    ("support-desk", "同じ問い合わせがもう 1 件ありました。"),
    ("qa-team", "I can reproduce it on the staging system."),
    ("product-owner", "今週中に直せると助かります。"),
    ("ops-team", "Nothing unusual in the logs since the last release."),
)


class Life:
    """`step` is called about once a second; it does nothing until something is due."""

    def __init__(self, github: GitHub) -> None:
        self.github = github
        self.actions = 0
        self._next_at: datetime | None = None
        self._in_progress: set[tuple[str, int]] = set()
        self._finished: dict[tuple[str, int], datetime] = {}

    def notice(self, event: str, payload: Json) -> None:
        """Remember which issues agents worked on and which of them are now up for review."""
        if event != "issues" or not self.github.world.lively:
            return
        key = (payload["repository"]["full_name"], payload["issue"]["number"])
        label = str(payload.get("label", {}).get("name", "")).lower()
        if payload["action"] == "labeled" and label == "in-progress":
            self._in_progress.add(key)
        elif payload["action"] == "labeled" and label == "needs-review" and key in self._in_progress:
            self._in_progress.discard(key)
            self._finished[key] = self.github.world.clock.now() + timedelta(seconds=PULL_DELAY_SECONDS)

    def step(self) -> None:
        now = self.github.world.clock.now()
        for key, due_at in list(self._finished.items()):
            if due_at <= now:
                del self._finished[key]
                self._open_pull(*key)
        if self._next_at is None:
            self._next_at = now + timedelta(seconds=STEP_SECONDS)
        elif self._next_at <= now and self.actions < MAX_ACTIONS:
            self._next_at = now + timedelta(seconds=STEP_SECONDS)
            self._act()

    def _act(self) -> None:
        repo = self.github.state.find(OWNER, NAME)
        if repo is None:
            return
        turn, self.actions = self.actions, self.actions + 1
        changes = self.github.changes
        if turn % 2 == 0:
            drafts = read_drafts("github_life.md")
            draft = drafts[turn // 2 % len(drafts)]
            changes.create_issue(repo, draft.author, draft.title, draft.body, draft.labels)
            return
        open_issues = [
            issue for issue in repo.issues.values() if issue.state == "open" and issue.pull is None
        ]
        if open_issues:
            author, text = REMARKS[turn // 2 % len(REMARKS)]
            changes.add_comment(repo, author, open_issues[turn * 7 % len(open_issues)], text)

    def _open_pull(self, full_name: str, number: int) -> None:
        repo = self.github.state.find(*full_name.split("/", 1))
        issue = repo.issues.get(number) if repo else None
        if repo is None or issue is None or issue.state != "open":
            return
        branch = self._branch(repo, issue)
        if branch is None:
            return
        changes = self.github.changes
        changes.push_commit(repo, "coding-agent", branch, issue.title)
        changes.open_pull(
            repo,
            "coding-agent",
            {
                "title": issue.title,
                "head": branch,
                "base": repo.default_branch,
                "body": f"Closes #{issue.number}",
            },
        )

    def _branch(self, repo: Repository, issue: Issue) -> str | None:
        """The branch made for the issue, unless an open pull request has it already."""
        taken = {other.pull.head for other in repo.issues.values() if other.pull and other.state == "open"}
        wanted = f"issue-{issue.number}"
        for name in repo.branches:
            parts = name.replace("/", " ").split()
            if name not in taken and any(part == wanted or part.startswith(f"{wanted}-") for part in parts):
                return name
        return None
