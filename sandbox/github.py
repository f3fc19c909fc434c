"""The GitHub stand-in: REST v3 as PyGithub speaks it, webhooks out, several repositories."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from starlette.routing import BaseRoute

from sandbox.core import System, World, logger
from sandbox.github_code import CodeChanges
from sandbox.github_code_routes import code_routes
from sandbox.github_control import control_routes
from sandbox.github_http import ApiError, Gate
from sandbox.github_issue_routes import issue_routes
from sandbox.github_life import Life
from sandbox.github_pages import page_routes
from sandbox.github_pull_shapes import PullShapes
from sandbox.github_seed import seed
from sandbox.github_shapes import Json
from sandbox.github_state import GitHubState, Issue, Repository
from sandbox.github_webhooks import Webhooks

SHOWN_CLOSED = 10


class GitHub(System):
    name = "github"

    def __init__(self, world: World) -> None:
        self.state = GitHubState()
        self.shapes = PullShapes(f"{world.base_url}/{self.name}")
        self.webhooks = Webhooks(world)
        self.changes = CodeChanges(self)
        self.gate = Gate(self)
        self.life = Life(self)
        self._is_quiet = False
        super().__init__(world)

    def routes(self) -> list[BaseRoute]:
        return [*page_routes(self), *code_routes(self), *issue_routes(self)]

    def control_routes(self) -> list[BaseRoute]:
        return control_routes(self)

    def reset(self) -> None:
        self.state = GitHubState()
        self.life = Life(self)

    def seed(self) -> None:
        # No webhooks for the seeded data.
        self._is_quiet = True
        try:
            seed(self)
        finally:
            self._is_quiet = False

    def dump(self) -> Any:
        return self.state.dump()

    def load(self, data: Any) -> None:
        self.state = GitHubState.load(data)

    async def run(self) -> None:
        await asyncio.gather(self.webhooks.run(), self._live())

    async def _live(self) -> None:
        while self.world.lively:
            await asyncio.sleep(1.0)
            try:
                self.life.step()
            except ApiError as error:
                logger.warning("The lively people were refused: %s %s", error, error.body)

    @property
    def is_heard(self) -> bool:
        """Whether anybody receives an event; building its payload for nobody would be a waste."""
        wants_webhooks = self.state.settings.webhooks and self.world.broker_url is not None
        return not self._is_quiet and (wants_webhooks or self.world.lively)

    def announce(self, event: str, payload: Json) -> None:
        """Called with every change that somebody receives; sends the webhook and informs the simulated people."""
        self.life.notice(event, payload)
        if self.state.settings.webhooks:
            self.webhooks.send(event, payload)

    # Shapes that need counts

    def comment_counts(self, repo: Repository) -> Counter[int]:
        return Counter(comment.number for comment in repo.comments.values())

    def issue_shape(self, repo: Repository, issue: Issue) -> Json:
        return self.shapes.issue(repo, issue, self.comment_counts(repo)[issue.number])

    def pull_shape(self, repo: Repository, issue: Issue) -> Json:
        return self.shapes.pull(repo, issue, full=True, comments=self.comment_counts(repo)[issue.number])

    def overview(self) -> Json:
        sections: list[Json] = []
        for repo in self.state.repositories.values():
            newest = sorted(
                repo.issues.values(), key=lambda issue: (issue.updated_at, issue.number), reverse=True
            )
            issues = [issue for issue in newest if issue.pull is None]
            pulls = [issue for issue in newest if issue.pull]
            closed = [issue for issue in issues if issue.state == "closed"]
            sections.append(
                {
                    "title": f"{repo.full_name}: open issues",
                    "columns": ["#", "title", "labels", "updated"],
                    "rows": [self._issue_row(repo, issue) for issue in issues if issue.state == "open"],
                }
            )
            sections.append(
                {
                    "title": f"{repo.full_name}: recently closed",
                    "columns": ["#", "title", "labels", "updated"],
                    "rows": [self._issue_row(repo, issue) for issue in closed[:SHOWN_CLOSED]],
                }
            )
            sections.append(
                {
                    "title": f"{repo.full_name}: pull requests",
                    "columns": ["#", "title", "labels", "updated", "state", "head → base", "review comments"],
                    "rows": [
                        [
                            *self._issue_row(repo, issue),
                            "merged" if issue.pull.merged_at else issue.state,
                            f"{issue.pull.head} → {issue.pull.base}",
                            sum(comment.number == issue.number for comment in repo.review_comments.values()),
                        ]
                        for issue in pulls
                        if issue.pull
                    ],
                }
            )
            sections.append(
                {
                    "title": f"{repo.full_name}: branches",
                    "columns": ["name", "commit", "last message"],
                    "rows": [
                        [name, sha[:10], repo.commits[sha].message] for name, sha in repo.branches.items()
                    ],
                }
            )
        settings = self.state.settings
        sections.append(
            {
                "title": "Rate limit and webhooks",
                "columns": ["used", "limit", "webhooks"],
                "rows": [
                    [
                        settings.rate_used,
                        settings.rate_limit,
                        self._webhook_target() if settings.webhooks else "off",
                    ]
                ],
            }
        )
        return {"sections": sections}

    def _webhook_target(self) -> str:
        return self.world.broker_url or "no broker known"

    def _issue_row(self, repo: Repository, issue: Issue) -> list[Any]:
        page = "pull" if issue.pull else "issues"
        href = f"{self.shapes.html(repo)}/{page}/{issue.number}"
        return [issue.number, {"text": issue.title, "href": href}, repo.label_names(issue), issue.updated_at]
