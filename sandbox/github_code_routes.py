"""Endpoints of pull requests, reviews, refs, branches and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, Route

from sandbox.github_http import ApiError, Ask, Handler, Reply, not_found
from sandbox.github_issue_routes import REPO, since
from sandbox.github_pull_shapes import commits_between
from sandbox.github_state import Commit, Issue, Repository, ReviewComment

if TYPE_CHECKING:
    from sandbox.github import GitHub

HEADS = "heads/"


def code_routes(github: GitHub) -> list[BaseRoute]:
    shapes, changes = github.shapes, github.changes

    # Pull requests

    async def list_pulls(ask: Ask) -> Reply:
        repo, state = ask.repo(), ask.choice("state", ("open", "closed", "all"), "PullRequest")
        sort = ask.choice("sort", ("created", "updated", "popularity", "long-running"), "PullRequest")
        fallback = "desc" if sort == "created" else "asc"
        direction = ask.query.get("direction") or fallback
        head = ask.query.get("head", "").removeprefix(f"{repo.owner}:")
        base = ask.query.get("base", "")
        chosen = [
            issue
            for issue in repo.issues.values()
            if issue.pull
            and state in ("all", issue.state)
            and head in ("", issue.pull.head)
            and base in ("", issue.pull.base)
        ]

        def key(issue: Issue) -> tuple[Any, int]:
            return (issue.updated_at if sort == "updated" else issue.created_at), issue.number

        chosen.sort(key=key, reverse=direction == "desc")
        page, headers = ask.page(chosen)
        return Reply([shapes.pull(repo, issue, full=False) for issue in page], headers=headers)

    async def create_pull(ask: Ask) -> Reply:
        repo = ask.repo()
        issue = changes.open_pull(repo, ask.actor, await ask.json_object())
        shape = github.pull_shape(repo, issue)
        return Reply(shape, 201, {"location": shape["url"]})

    async def get_pull(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(github.pull_shape(repo, ask.pull(repo)))

    async def edit_pull(ask: Ask) -> Reply:
        repo = ask.repo()
        issue = ask.pull(repo)
        changes.edit_pull(repo, ask.actor, issue, await ask.json_object())
        return Reply(github.pull_shape(repo, issue))

    async def merge_pull(ask: Ask) -> Reply:
        repo = ask.repo()
        sha = changes.merge_pull(repo, ask.actor, ask.pull(repo))
        return Reply({"sha": sha, "merged": True, "message": "Pull Request successfully merged"})

    async def list_pull_commits(ask: Ask) -> Reply:
        repo = ask.repo()
        pull = ask.pull(repo).pull
        assert pull is not None
        page, headers = ask.page(commits_between(repo, pull.base_sha, pull.head_sha))
        return Reply([shapes.commit(repo, commit) for commit in page], headers=headers)

    async def list_pull_files(ask: Ask) -> Reply:
        repo = ask.repo()
        page, headers = ask.page(shapes.changed_files(repo, ask.pull(repo)))
        return Reply(page, headers=headers)

    # Reviews

    def review_comment(ask: Ask, repo: Repository) -> ReviewComment:
        found = repo.review_comments.get(ask.number("comment"))
        if found is None:
            raise not_found()
        return found

    def review_comments_reply(ask: Ask, repo: Repository, found: list[ReviewComment]) -> Reply:
        after = since(ask)
        page, headers = ask.page([item for item in found if item.updated_at >= after])
        return Reply([shapes.review_comment(repo, item) for item in page], headers=headers)

    async def list_review_comments(ask: Ask) -> Reply:
        repo = ask.repo()
        number = ask.pull(repo).number
        found = [item for item in repo.review_comments.values() if item.number == number]
        return review_comments_reply(ask, repo, found)

    async def list_all_review_comments(ask: Ask) -> Reply:
        repo = ask.repo()
        return review_comments_reply(ask, repo, list(repo.review_comments.values()))

    async def create_review_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        made = changes.add_review_comment(repo, ask.actor, ask.pull(repo), await ask.json_object())
        shape = shapes.review_comment(repo, made)
        return Reply(shape, 201, {"location": shape["url"]})

    async def reply_to_review_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        issue, parent = ask.pull(repo), review_comment(ask, repo)
        if parent.number != issue.number:
            raise not_found()
        data = await ask.json_object()
        made = changes.add_review_comment(
            repo, ask.actor, issue, {"body": data.get("body"), "in_reply_to": parent.id}
        )
        return Reply(shapes.review_comment(repo, made), 201)

    async def get_review_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(shapes.review_comment(repo, review_comment(ask, repo)))

    async def edit_review_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        found, data = review_comment(ask, repo), await ask.json_object()
        changes.edit_review_comment(repo, ask.actor, found, data.get("body"))
        return Reply(shapes.review_comment(repo, found))

    async def delete_review_comment(ask: Ask) -> Reply:
        repo = ask.repo()
        changes.delete_review_comment(repo, ask.actor, review_comment(ask, repo))
        return Reply(status=204)

    async def list_reviews(ask: Ask) -> Reply:
        repo = ask.repo()
        number = ask.pull(repo).number
        page, headers = ask.page([item for item in repo.reviews.values() if item.number == number])
        return Reply([shapes.review(repo, item) for item in page], headers=headers)

    async def create_review(ask: Ask) -> Reply:
        repo = ask.repo()
        made = changes.add_review(repo, ask.actor, ask.pull(repo), await ask.json_object())
        return Reply(shapes.review(repo, made))

    # Refs and branches

    def branch_of_ref(ask: Ask, repo: Repository) -> str:
        ref = ask.param("ref")
        branch = ref.removeprefix(HEADS)
        if not ref.startswith(HEADS) or branch not in repo.branches:
            raise not_found()
        return branch

    async def get_ref(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(shapes.ref(repo, branch_of_ref(ask, repo)))

    async def list_refs(ask: Ask) -> Reply:
        repo = ask.repo()
        prefix = str(ask.request.path_params.get("ref", ""))
        found = [name for name in sorted(repo.branches) if f"{HEADS}{name}".startswith(prefix)]
        page, headers = ask.page(found)
        return Reply([shapes.ref(repo, name) for name in page], headers=headers)

    async def create_ref(ask: Ask) -> Reply:
        repo, data = ask.repo(), await ask.json_object()
        ref = data.get("ref")
        if not isinstance(ref, str) or not ref.startswith("refs/") or ref.count("/") < 2:
            raise ApiError(422, "Reference name must start with 'refs/' and contain at least two slashes.")
        if not ref.startswith("refs/heads/"):
            raise ApiError(422, "The sandbox keeps only branches.")
        branch = ref.removeprefix("refs/heads/")
        changes.create_branch(repo, branch, data.get("sha"))
        shape = shapes.ref(repo, branch)
        return Reply(shape, 201, {"location": shape["url"]})

    async def update_ref(ask: Ask) -> Reply:
        repo, data = ask.repo(), await ask.json_object()
        branch = ask.param("ref").removeprefix(HEADS)
        if branch not in repo.branches:
            raise ApiError(422, "Reference does not exist")
        changes.move_branch(repo, ask.actor, branch, data.get("sha"), force=data.get("force") is True)
        return Reply(shapes.ref(repo, branch))

    async def delete_ref(ask: Ask) -> Reply:
        changes.delete_branch(ask.repo(), ask.actor, ask.param("ref").removeprefix(HEADS))
        return Reply(status=204)

    async def list_branches(ask: Ask) -> Reply:
        repo = ask.repo()
        page, headers = ask.page(sorted(repo.branches))
        return Reply([shapes.short_branch(repo, name) for name in page], headers=headers)

    async def get_branch(ask: Ask) -> Reply:
        repo = ask.repo()
        name = ask.param("branch")
        if name not in repo.branches:
            raise not_found("Branch not found")
        return Reply(shapes.branch(repo, name))

    # Commits

    def commit(repo: Repository, text: str) -> Commit:
        """By branch, whole id or the beginning of one."""
        sha = repo.branches.get(text.removeprefix(HEADS), text)
        found = [item for item in repo.commits.values() if len(sha) >= 7 and item.sha.startswith(sha)]
        if not found:
            raise ApiError(422, f"No commit found for SHA: {text}")
        return found[0]

    async def get_commit(ask: Ask) -> Reply:
        repo = ask.repo()
        return Reply(shapes.commit(repo, commit(repo, ask.param("sha")), full=True))

    async def list_commits(ask: Ask) -> Reply:
        repo = ask.repo()
        if not repo.branches:
            raise ApiError(409, "Git Repository is empty.")
        tip = commit(repo, ask.query.get("sha") or repo.default_branch)
        page, headers = ask.page(commits_between(repo, "", tip.sha)[::-1])
        return Reply([shapes.commit(repo, item) for item in page], headers=headers)

    async def compare(ask: Ask) -> Reply:
        repo = ask.repo()
        first, dots, second = ask.param("basehead").partition("...")
        if not dots:
            raise not_found()
        base, head = commit(repo, first), commit(repo, second)
        ahead = commits_between(repo, base.sha, head.sha)
        behind = commits_between(repo, head.sha, base.sha)
        status = {(False, False): "identical", (True, False): "ahead", (False, True): "behind"}
        url = f"{shapes.api(repo)}/compare/{first}...{second}"
        html = f"{shapes.html(repo)}/compare/{first}...{second}"
        shape = {
            "url": url,
            "html_url": html,
            "permalink_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "base_commit": shapes.commit(repo, base),
            "merge_base_commit": shapes.commit(repo, base),
            "status": status.get((bool(ahead), bool(behind)), "diverged"),
            "ahead_by": len(ahead),
            "behind_by": len(behind),
            "total_commits": len(ahead),
            "commits": [shapes.commit(repo, item) for item in ahead],
            "files": [],
        }
        return Reply(shape)

    table: list[tuple[str, str, Handler]] = [
        ("GET", f"{REPO}/pulls", list_pulls),
        ("POST", f"{REPO}/pulls", create_pull),
        ("GET", f"{REPO}/pulls/comments", list_all_review_comments),
        ("GET", f"{REPO}/pulls/comments/{{comment}}", get_review_comment),
        ("PATCH", f"{REPO}/pulls/comments/{{comment}}", edit_review_comment),
        ("DELETE", f"{REPO}/pulls/comments/{{comment}}", delete_review_comment),
        ("GET", f"{REPO}/pulls/{{number}}", get_pull),
        ("PATCH", f"{REPO}/pulls/{{number}}", edit_pull),
        ("PUT", f"{REPO}/pulls/{{number}}/merge", merge_pull),
        ("GET", f"{REPO}/pulls/{{number}}/commits", list_pull_commits),
        ("GET", f"{REPO}/pulls/{{number}}/files", list_pull_files),
        ("GET", f"{REPO}/pulls/{{number}}/comments", list_review_comments),
        ("POST", f"{REPO}/pulls/{{number}}/comments", create_review_comment),
        ("POST", f"{REPO}/pulls/{{number}}/comments/{{comment}}/replies", reply_to_review_comment),
        ("GET", f"{REPO}/pulls/{{number}}/reviews", list_reviews),
        ("POST", f"{REPO}/pulls/{{number}}/reviews", create_review),
        ("GET", f"{REPO}/git/ref/{{ref:path}}", get_ref),
        ("GET", f"{REPO}/git/matching-refs/{{ref:path}}", list_refs),
        ("GET", f"{REPO}/git/refs", list_refs),
        ("POST", f"{REPO}/git/refs", create_ref),
        ("GET", f"{REPO}/git/refs/{{ref:path}}", get_ref),
        ("PATCH", f"{REPO}/git/refs/{{ref:path}}", update_ref),
        ("DELETE", f"{REPO}/git/refs/{{ref:path}}", delete_ref),
        ("GET", f"{REPO}/branches", list_branches),
        ("GET", f"{REPO}/branches/{{branch:path}}", get_branch),
        ("GET", f"{REPO}/commits", list_commits),
        ("GET", f"{REPO}/commits/{{sha:path}}", get_commit),
        ("GET", f"{REPO}/compare/{{basehead:path}}", compare),
    ]
    return [Route(path, github.gate.endpoint(handler), methods=[method]) for method, path, handler in table]
