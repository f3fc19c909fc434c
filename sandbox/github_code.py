"""Branches, commits, pull requests and reviews of the GitHub stand-in."""

from __future__ import annotations

import re
from typing import Any

from sandbox.github_changes import Changes
from sandbox.github_http import ApiError, invalid
from sandbox.github_pull_shapes import commits_between
from sandbox.github_shapes import Json
from sandbox.github_state import Commit, Issue, Pull, Repository, Review, ReviewComment, make_sha

CLOSING_WORDS = re.compile(r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+#(\d+)", re.IGNORECASE)
REVIEW_STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}
FORBIDDEN_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.lock(/|$)|(^|/)\.|\.$|/$|^-|^@$")


def is_ref_name(name: str) -> bool:
    """Whether git accepts it as a branch name."""
    return bool(name) and not name.startswith("/") and FORBIDDEN_IN_REF.search(name) is None


def closed_by_text(body: str | None) -> list[int]:
    """The issues that a pull request's text says it closes, each once, in order."""
    return list(dict.fromkeys(int(number) for number in CLOSING_WORDS.findall(body or "")))


class CodeChanges(Changes):
    def create_branch(self, repo: Repository, name: str, sha: Any) -> None:
        if not is_ref_name(name):
            raise ApiError(422, f"refs/heads/{name} is not a valid ref name.")
        if name in repo.branches:
            raise ApiError(422, "Reference already exists")
        if not isinstance(sha, str) or sha not in repo.commits:
            raise ApiError(422, "Object does not exist")
        # git keeps refs as files and folders: `a` and `a/b` cannot both exist.
        if any(other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in repo.branches):
            raise ApiError(422, "Reference update failed")
        repo.branches[name] = sha
        self.github.world.touch()

    def move_branch(self, repo: Repository, actor: str, name: str, sha: Any, *, force: bool) -> None:
        if not isinstance(sha, str) or sha not in repo.commits:
            raise ApiError(422, "Object does not exist")
        if not force and commits_between(repo, sha, repo.branches[name]):
            raise ApiError(422, "Update is not a fast forward")
        self._set_head(repo, actor, name, sha)

    def delete_branch(self, repo: Repository, actor: str, name: str) -> None:
        if name not in repo.branches:
            raise ApiError(422, "Reference does not exist")
        if name == repo.default_branch:
            raise ApiError(422, "Cannot delete the default branch")
        del repo.branches[name]
        self.github.world.touch()
        for issue in repo.issues.values():
            if issue.pull and issue.state == "open" and issue.pull.head == name:
                self.close_issue(repo, actor, issue)

    def push_commit(
        self, repo: Repository, actor: str, branch: str, message: str, files: list[str] | None = None
    ) -> Commit:
        """What `git push` of one commit does; open pull requests from the branch get it as well."""
        parent = repo.branches.get(branch)
        parents = [parent] if parent else []
        sha = make_sha(repo.full_name, branch, message, self.github.state.next_id(), *parents)
        commit = Commit(sha, message, actor, self.now(), parents, files or ["README.md"])
        repo.commits[sha] = commit
        self._set_head(repo, actor, branch, sha)
        return commit

    def _set_head(self, repo: Repository, actor: str, branch: str, sha: str) -> None:
        repo.branches[branch] = sha
        self.github.world.touch()
        for issue in repo.issues.values():
            pull = issue.pull
            if pull and issue.state == "open" and pull.head == branch and pull.head_sha != sha:
                before, pull.head_sha = pull.head_sha, sha
                self.bump(repo, issue)
                self.emit_issue("synchronize", repo, actor, issue, before=before, after=sha)

    # Pull requests

    def open_pull(self, repo: Repository, actor: str, data: Json) -> Issue:
        for name in ("head", "base"):
            if not isinstance(data.get(name), str) or not data[name]:
                raise invalid("PullRequest", name, "missing_field")
        title, body = self._title(data.get("title")), self._body(data.get("body"))
        head = data["head"].removeprefix(f"{repo.owner}:")
        base = data["base"]
        if head not in repo.branches:
            raise invalid("PullRequest", "head")
        if base not in repo.branches:
            raise invalid("PullRequest", "base")
        for other in repo.issues.values():
            if other.pull and other.state == "open" and (other.pull.head, other.pull.base) == (head, base):
                raise _custom(f"A pull request already exists for {repo.owner}:{head}.")
        head_sha, base_sha = repo.branches[head], repo.branches[base]
        if not commits_between(repo, base_sha, head_sha):
            raise _custom(f"No commits between {base} and {head}")
        now = self.now()
        repo.last_number += 1
        issue = Issue(self.github.state.next_id(), repo.last_number, title, body, actor, now, now)
        issue.pull = Pull(head, base, head_sha, base_sha, draft=data.get("draft") is True)
        repo.issues[issue.number] = issue
        self.bump(repo, issue)
        self.emit_issue("opened", repo, actor, issue)
        return issue

    def edit_pull(self, repo: Repository, actor: str, issue: Issue, data: Json) -> None:
        assert issue.pull is not None
        base = data.get("base", issue.pull.base)
        if base not in repo.branches and base != issue.pull.base:
            raise invalid("PullRequest", "base")
        if base != issue.pull.base:
            before = {"base": {"ref": {"from": issue.pull.base}, "sha": {"from": issue.pull.base_sha}}}
            issue.pull.base, issue.pull.base_sha = base, repo.branches[base]
            self.bump(repo, issue)
            self.emit_issue("edited", repo, actor, issue, changes=before)
        fields = ("title", "body", "state")
        self.edit_issue(repo, actor, issue, {name: data[name] for name in fields if name in data})

    def merge_pull(self, repo: Repository, actor: str, issue: Issue) -> str:
        """Merges, closes the pull request and the issues that it says it closes; gives the merge commit."""
        pull = issue.pull
        assert pull is not None
        if issue.state != "open" or pull.draft:
            raise ApiError(405, "Pull Request is not mergeable")
        message = f"Merge pull request #{issue.number} from {repo.owner}/{pull.head}"
        commit = self.push_commit(repo, actor, pull.base, message, [])
        # First parent is the work itself, so that what was merged counts as contained.
        commit.parents = [pull.head_sha, *commit.parents]
        pull.merged_at, pull.merge_sha, pull.merged_by = self.now(), commit.sha, actor
        self.close_issue(repo, actor, issue)
        for number in closed_by_text(issue.body):
            linked = repo.issues.get(number)
            if linked and linked.pull is None and linked.state == "open":
                self.close_issue(repo, actor, linked)
        return commit.sha

    # Reviews

    def add_review(self, repo: Repository, actor: str, issue: Issue, data: Json) -> Review:
        assert issue.pull is not None
        event = data.get("event", "COMMENT")
        if event not in REVIEW_STATES:
            raise invalid("PullRequestReview", "event")
        body = data.get("body") or ""
        if not isinstance(body, str) or (not body and event != "APPROVE" and not data.get("comments")):
            raise invalid("PullRequestReview", "body", "missing_field")
        review = Review(
            self.github.state.next_id(),
            issue.number,
            actor,
            body,
            REVIEW_STATES[event],
            issue.pull.head_sha,
            self.now(),
        )
        repo.reviews[review.id] = review
        for item in data.get("comments") or []:
            self.add_review_comment(repo, actor, issue, item, review_id=review.id)
        self.bump(repo, issue)
        self.emit(
            "pull_request_review",
            "submitted",
            repo,
            actor,
            review=self.github.shapes.review(repo, review),
            pull_request=self.github.pull_shape(repo, issue),
        )
        return review

    def add_review_comment(
        self, repo: Repository, actor: str, issue: Issue, data: Any, *, review_id: int | None = None
    ) -> ReviewComment:
        assert issue.pull is not None
        if not isinstance(data, dict):
            raise invalid("PullRequestReviewComment", "body", "missing_field")
        body = self.comment_body(data.get("body"))
        now, reply_to = self.now(), data.get("in_reply_to")
        if reply_to is not None:
            parent = repo.review_comments.get(reply_to) if isinstance(reply_to, int) else None
            if parent is None or parent.number != issue.number:
                raise invalid("PullRequestReviewComment", "in_reply_to")
            path, line, sha = parent.path, parent.line, parent.commit_sha
        else:
            path, line = data.get("path") or "", data.get("line", data.get("position"))
            sha = data.get("commit_id") or issue.pull.head_sha
            if not isinstance(path, str) or not path.strip():
                raise invalid("PullRequestReviewComment", "path", "missing_field")
            if sha not in repo.commits:
                raise invalid("PullRequestReviewComment", "commit_id")
            if line is not None and (isinstance(line, bool) or not isinstance(line, int) or line < 1):
                raise invalid("PullRequestReviewComment", "line")
        side = data.get("side", "RIGHT")
        if side not in ("LEFT", "RIGHT"):
            raise invalid("PullRequestReviewComment", "side")
        comment_id = self.github.state.next_id()
        comment = ReviewComment(
            comment_id, issue.number, actor, body, path, line, side, sha, now, now, reply_to, review_id
        )
        repo.review_comments[comment.id] = comment
        self.bump(repo, issue)
        self.emit_review_comment("created", repo, actor, issue, comment)
        return comment

    def emit_review_comment(
        self, action: str, repo: Repository, actor: str, issue: Issue, comment: ReviewComment, **parts: Any
    ) -> None:
        if not self.github.is_heard:
            return
        self.emit(
            "pull_request_review_comment",
            action,
            repo,
            actor,
            comment=self.github.shapes.review_comment(repo, comment),
            pull_request=self.github.pull_shape(repo, issue),
            **parts,
        )

    def edit_review_comment(self, repo: Repository, actor: str, comment: ReviewComment, body: Any) -> None:
        before, comment.body = comment.body, self.comment_body(body)
        comment.updated_at = self.now()
        issue = repo.issues[comment.number]
        self.bump(repo, issue)
        changes = {"body": {"from": before}}
        self.emit_review_comment("edited", repo, actor, issue, comment, changes=changes)

    def delete_review_comment(self, repo: Repository, actor: str, comment: ReviewComment) -> None:
        del repo.review_comments[comment.id]
        issue = repo.issues[comment.number]
        self.bump(repo, issue)
        self.emit_review_comment("deleted", repo, actor, issue, comment)


def _custom(message: str) -> ApiError:
    error = {"resource": "PullRequest", "code": "custom", "message": message}
    return ApiError(422, "Validation Failed", [error])
