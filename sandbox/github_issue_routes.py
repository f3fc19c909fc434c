"""Endpoints of issues, labels, comments, users, apps and limits."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, Route

from sandbox.core import from_iso, iso
from sandbox.github_changes import label_names
from sandbox.github_http import WRITES, Ask, Handler, Reply, invalid, not_found
from sandbox.github_shapes import Json, user_id
from sandbox.github_state import Comment, Issue, Label, Repository

if TYPE_CHECKING:
    from sandbox.github import GitHub

REPO = "/repos/{owner}/{repo}"
INSTALLATION_ID = 7001
APP_ID = 4001
APP_PERMISSIONS = {"contents": "write", "issues": "write", "metadata": "read", "pull_requests": "write"}
INSTALLATION_TOKEN_SECONDS = 3600


def since(ask: Ask) -> str:
    """The `since` parameter in the form of our stored times; empty if it is not given."""
    text = ask.query.get("since")
    if not text:
        return ""
    try:
        return iso(from_iso(text.replace(" ", "+")))
    except ValueError as error:
        raise invalid("Issue", "since") from error


def issue_routes(github: GitHub) -> list[BaseRoute]:
    shapes, changes = github.shapes, github.changes

    async def get_repository(ask: Ask) -> Reply:
        return Reply(shapes.full_repository(ask.repo()))

    # Issues

    async def list_issues(ask: Ask) -> Reply:
        repo, state = ask.repo(), ask.choice("state", ("open", "closed", "all"))
        sort = ask.choice("sort", ("created", "updated", "comments"))
        direction = ask.choice("direction", ("desc", "asc"))
        after = since(ask)
        wanted = {name.strip().lower() for name in ask.query.get("labels", "").split(",") if name.strip()}
        creator = ask.query.get("creator", "").lower()
        counts = github.comment_counts(repo)
        chosen = [
            issue
            for issue in repo.issues.values()
            if state in ("all", issue.state)
            and issue.updated_at >= after
            and wanted <= set(issue.labels)
            and creator in ("", issue.author.lower())
        ]

        def key(issue: Issue) -> tuple[Any, int]:
            by: Any = {"created": issue.created_at, "updated": issue.updated_at}.get(
                sort, counts[issue.number]
            )
            return by, issue.number

        chosen.sort(key=key, reverse=direction == "desc")
        page, headers = ask.page(chosen)
        return Reply([shapes.issue(repo, issue, counts[issue.number]) for issue in page], headers=headers)

    async def create_issue(ask: Ask) -> Reply:
        repo, data = ask.repo(), await ask.json_object()
        assignees = data.get("assignees") if isinstance(data.get("assignees"), list) else []
        issue = changes.create_issue(
            repo,
            ask.actor,
            data.get("title"),
            data.get("body"),
            label_names(data.get("labels") or []),
            [str(login) for login in assignees or []],
        )
        return Reply(
            github.issue_shape(repo, issue), 201, {"location": f"{shapes.api(repo)}/issues/{issue.number}"}
        )

    async def get_issue(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(github.issue_shape(repo, ask.issue(repo)))

    async def edit_issue(ask: Ask) -> Reply:
        repo = ask.repo()
        issue = ask.issue(repo)
        changes.edit_issue(repo, ask.actor, issue, await ask.json_object())
        return Reply(github.issue_shape(repo, issue))

    # Labels

    def labels_reply(repo: Repository, issue: Issue) -> Reply:
        return Reply(shapes.labels(repo, issue))

    async def list_issue_labels(ask: Ask) -> Reply:
        repo = ask.repo()
        page, headers = ask.page(shapes.labels(repo, ask.issue(repo)))
        return Reply(page, headers=headers)

    async def add_issue_labels(ask: Ask) -> Reply:
        repo = ask.repo()
        issue = ask.issue(repo)
        changes.add_labels(repo, ask.actor, issue, label_names(await ask.json()))
        return labels_reply(repo, issue)

    async def set_issue_labels(ask: Ask) -> Reply:
        repo = ask.repo()
        issue = ask.issue(repo)
        changes.set_labels(repo, ask.actor, issue, label_names(await ask.json()))
        return labels_reply(repo, issue)

    async def clear_issue_labels(ask: Ask) -> Reply:
        repo = ask.repo()
        changes.set_labels(repo, ask.actor, ask.issue(repo), [])
        return Reply(status=204)

    async def remove_issue_label(ask: Ask) -> Reply:
        repo = ask.repo()
        issue = ask.issue(repo)
        changes.remove_label(repo, ask.actor, issue, ask.param("name"))
        return labels_reply(repo, issue)

    def label(ask: Ask, repo: Repository) -> Label:
        found = repo.labels.get(ask.param("name").lower())
        if found is None:
            raise not_found()
        return found

    async def list_labels(ask: Ask) -> Reply:
        repo = ask.repo()
        page, headers = ask.page(sorted(repo.labels.values(), key=lambda label: label.name.lower()))
        return Reply([shapes.label(repo, found) for found in page], headers=headers)

    async def create_label(ask: Ask) -> Reply:
        repo, data = ask.repo(), await ask.json_object()
        made = changes.create_label(
            repo, ask.actor, data.get("name", ""), data.get("color"), data.get("description")
        )
        return Reply(shapes.label(repo, made), 201)

    async def get_label(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(shapes.label(repo, label(ask, repo)))

    async def edit_label(ask: Ask) -> Reply:
        repo = ask.repo()
        found = label(ask, repo)
        changes.edit_label(repo, ask.actor, found, await ask.json_object())
        return Reply(shapes.label(repo, found))

    async def delete_label(ask: Ask) -> Reply:
        repo = ask.repo()
        changes.delete_label(repo, ask.actor, label(ask, repo))
        return Reply(status=204)

    # Comments

    def comment(ask: Ask, repo: Repository) -> Comment:
        found = repo.comments.get(ask.number("comment"))
        if found is None:
            raise not_found()
        return found

    def comments_reply(ask: Ask, repo: Repository, found: list[Comment]) -> Reply:
        after = since(ask)
        page, headers = ask.page([item for item in found if item.updated_at >= after])
        return Reply([shapes.comment(repo, item) for item in page], headers=headers)

    async def list_issue_comments(ask: Ask) -> Reply:
        repo = ask.repo()
        number = ask.issue(repo).number
        return comments_reply(ask, repo, [item for item in repo.comments.values() if item.number == number])

    async def list_comments(ask: Ask) -> Reply:
        repo = ask.repo()
        return comments_reply(ask, repo, list(repo.comments.values()))

    async def create_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        issue, data = ask.issue(repo), await ask.json_object()
        made = changes.add_comment(repo, ask.actor, issue, data.get("body"))
        shape = shapes.comment(repo, made)
        return Reply(shape, 201, {"location": shape["url"]})

    async def get_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(shapes.comment(repo, comment(ask, repo)))

    async def edit_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        found, data = comment(ask, repo), await ask.json_object()
        changes.edit_comment(repo, ask.actor, found, data.get("body"))
        return Reply(shapes.comment(repo, found))

    async def delete_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        changes.delete_comment(repo, ask.actor, comment(ask, repo))
        return Reply(status=204)

    # Who is asking, and how much more

    async def get_user(ask: Ask) -> Reply:
        return Reply(shapes.private_user(ask.actor))

    async def get_permission(ask: Ask) -> Reply:
        ask.repo()
        login = ask.param("login")
        permissions = {"pull": True, "triage": True, "push": True, "maintain": False, "admin": False}
        user = {**shapes.user(login), "permissions": permissions, "role_name": "write"}
        return Reply({"permission": "write", "role_name": "write", "user": user})

    async def rate_limit(ask: Ask) -> Reply:
        core = github.gate.rate()
        other = {"limit": 30, "remaining": 30, "reset": core["reset"], "used": 0}
        resources = {"core": core, "search": other, "graphql": {**other, "limit": 5000, "remaining": 5000}}
        return Reply({"resources": resources, "rate": core})

    # GitHub App

    def installation(owner: str) -> Json:
        return {
            "id": INSTALLATION_ID,
            "client_id": "Iv1.sandbox",
            "account": shapes.user(owner),
            "repository_selection": "all",
            "access_tokens_url": f"{shapes.root}/app/installations/{INSTALLATION_ID}/access_tokens",
            "repositories_url": f"{shapes.root}/installation/repositories",
            "html_url": f"{shapes.root}/settings/installations/{INSTALLATION_ID}",
            "app_id": APP_ID,
            "app_slug": "broker-app",
            "target_id": user_id(owner),
            "target_type": "Organization",
            "permissions": APP_PERMISSIONS,
            "events": ["issues", "issue_comment", "pull_request", "pull_request_review_comment", "label"],
            "created_at": "2020-01-01T00:00:00Z",
            "updated_at": "2020-01-01T00:00:00Z",
            "single_file_name": None,
            "has_multiple_single_files": False,
            "single_file_paths": [],
            "suspended_by": None,
            "suspended_at": None,
        }

    async def get_installation(ask: Ask) -> Reply:
        return Reply(installation(ask.repo().owner))

    async def list_installations(ask: Ask) -> Reply:
        owners = dict.fromkeys(repo.owner for repo in github.state.repositories.values())
        page, headers = ask.page([installation(owner) for owner in owners])
        return Reply(page, headers=headers)

    async def create_token(ask: Ask) -> Reply:
        if ask.number("installation") != INSTALLATION_ID:
            raise not_found()
        expires_at = github.world.clock.now() + timedelta(seconds=INSTALLATION_TOKEN_SECONDS)
        token = {
            "token": f"ghs_{secrets.token_hex(18)}",
            "expires_at": iso(expires_at),
            "permissions": APP_PERMISSIONS,
            "repository_selection": "all",
        }
        return Reply(token, 201)

    async def nothing(ask: Ask) -> Reply:
        raise not_found()

    table: list[tuple[str, str, Handler]] = [
        ("GET", REPO, get_repository),
        ("GET", f"{REPO}/issues", list_issues),
        ("POST", f"{REPO}/issues", create_issue),
        ("GET", f"{REPO}/issues/comments", list_comments),
        ("GET", f"{REPO}/issues/comments/{{comment}}", get_comment),
        ("PATCH", f"{REPO}/issues/comments/{{comment}}", edit_comment),
        ("DELETE", f"{REPO}/issues/comments/{{comment}}", delete_comment),
        ("GET", f"{REPO}/issues/{{number}}", get_issue),
        ("PATCH", f"{REPO}/issues/{{number}}", edit_issue),
        ("GET", f"{REPO}/issues/{{number}}/comments", list_issue_comments),
        ("POST", f"{REPO}/issues/{{number}}/comments", create_comment),
        ("GET", f"{REPO}/issues/{{number}}/labels", list_issue_labels),
        ("POST", f"{REPO}/issues/{{number}}/labels", add_issue_labels),
        ("PUT", f"{REPO}/issues/{{number}}/labels", set_issue_labels),
        ("DELETE", f"{REPO}/issues/{{number}}/labels", clear_issue_labels),
        ("DELETE", f"{REPO}/issues/{{number}}/labels/{{name:path}}", remove_issue_label),
        ("GET", f"{REPO}/labels", list_labels),
        ("POST", f"{REPO}/labels", create_label),
        ("GET", f"{REPO}/labels/{{name:path}}", get_label),
        ("PATCH", f"{REPO}/labels/{{name:path}}", edit_label),
        ("DELETE", f"{REPO}/labels/{{name:path}}", delete_label),
        ("GET", f"{REPO}/collaborators/{{login}}/permission", get_permission),
        ("GET", f"{REPO}/installation", get_installation),
        ("GET", "/app/installations", list_installations),
        ("POST", "/app/installations/{installation}/access_tokens", create_token),
        ("GET", "/user", get_user),
    ]
    routes: list[BaseRoute] = [
        Route(path, github.gate.endpoint(handler), methods=[method]) for method, path, handler in table
    ]
    routes.append(Route("/rate_limit", github.gate.endpoint(rate_limit, counted=False), methods=["GET"]))
    routes.append(Route("/{path:path}", github.gate.endpoint(nothing), methods=["GET", *WRITES]))
    return routes
