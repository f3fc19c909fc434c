"""GitHub's shapes of pull requests, reviews, branches and commits, and what lies between two commits."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from sandbox.github_shapes import Json, Shapes, node_id
from sandbox.github_state import EMPTY_TREE, Commit, Issue, Repository, Review, ReviewComment


class PullShapes(Shapes):
    def pull(self, repo: Repository, issue: Issue, *, full: bool, comments: int = 0) -> Json:
        """A pull request as a listing gives it, or with `full` as its own address does."""
        pull = issue.pull
        assert pull is not None
        api, html = self.api(repo), f"{self.html(repo)}/pull/{issue.number}"
        url = f"{api}/pulls/{issue.number}"
        links = {
            "self": url,
            "html": html,
            "issue": f"{api}/issues/{issue.number}",
            "comments": f"{api}/issues/{issue.number}/comments",
            "review_comments": f"{url}/comments",
            "review_comment": f"{api}/pulls/comments{{/number}}",
            "commits": f"{url}/commits",
            "statuses": f"{api}/statuses/{pull.head_sha}",
        }
        shape: Json = {
            "url": url,
            "id": issue.id,
            "node_id": node_id("PR", issue.id),
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "issue_url": links["issue"],
            "number": issue.number,
            "state": issue.state,
            "locked": issue.locked,
            "title": issue.title,
            "user": self.user(issue.author),
            "body": issue.body,
            "created_at": issue.created_at,
            "updated_at": issue.updated_at,
            "closed_at": issue.closed_at,
            "merged_at": pull.merged_at,
            "merge_commit_sha": pull.merge_sha,
            "assignee": self._user_or_none(issue.assignees[0] if issue.assignees else None),
            "assignees": [self.user(login) for login in issue.assignees],
            "requested_reviewers": [],
            "requested_teams": [],
            "labels": self.labels(repo, issue),
            "milestone": None,
            "draft": pull.draft,
            "commits_url": links["commits"],
            "review_comments_url": links["review_comments"],
            "review_comment_url": links["review_comment"],
            "comments_url": links["comments"],
            "statuses_url": links["statuses"],
            "head": self._side(repo, pull.head, pull.head_sha),
            "base": self._side(repo, pull.base, pull.base_sha),
            "_links": {name: {"href": href} for name, href in links.items()},
            "author_association": self._association(repo, issue.author),
            "auto_merge": None,
            "active_lock_reason": None,
        }
        if full:
            files = self.changed_files(repo, issue)
            open_and_clean = issue.state == "open"
            shape |= {
                "merged": pull.merged_at is not None,
                "mergeable": True if open_and_clean else None,
                "rebaseable": True if open_and_clean else None,
                "mergeable_state": "clean" if open_and_clean else "unknown",
                "merged_by": self._user_or_none(pull.merged_by),
                "comments": comments,
                "review_comments": sum(c.number == issue.number for c in repo.review_comments.values()),
                "maintainer_can_modify": False,
                "commits": len(commits_between(repo, pull.base_sha, pull.head_sha)),
                "additions": 10 * len(files),
                "deletions": 2 * len(files),
                "changed_files": len(files),
            }
        return shape

    def _side(self, repo: Repository, ref: str, sha: str) -> Json:
        return {
            "label": f"{repo.owner}:{ref}",
            "ref": ref,
            "sha": sha,
            "user": self.user(repo.owner),
            "repo": self.repository(repo),
        }

    def changed_files(self, repo: Repository, issue: Issue) -> list[Json]:
        assert issue.pull is not None
        commits = commits_between(repo, issue.pull.base_sha, issue.pull.head_sha)
        names = dict.fromkeys(name for commit in commits for name in commit.files)
        sha = issue.pull.head_sha
        return [
            {
                "sha": hashlib.sha1(f"{sha}{name}".encode()).hexdigest(),
                "filename": name,
                "status": "modified",
                "additions": 10,
                "deletions": 2,
                "changes": 12,
                "blob_url": f"{self.html(repo)}/blob/{sha}/{name}",
                "raw_url": f"{self.html(repo)}/raw/{sha}/{name}",
                "contents_url": f"{self.api(repo)}/contents/{name}?ref={sha}",
                "patch": "@@ -1,4 +1,12 @@",
            }
            for name in names
        ]

    def review_comment(self, repo: Repository, comment: ReviewComment) -> Json:
        api, html = self.api(repo), f"{self.html(repo)}/pull/{comment.number}#discussion_r{comment.id}"
        url, pull_url = f"{api}/pulls/comments/{comment.id}", f"{api}/pulls/{comment.number}"
        shape: Json = {
            "url": url,
            "pull_request_review_id": comment.review_id,
            "id": comment.id,
            "node_id": node_id("PRRC", comment.id),
            "diff_hunk": "@@ -1,4 +1,12 @@",
            "path": comment.path,
            "position": comment.line,
            "original_position": comment.line,
            "commit_id": comment.commit_sha,
            "original_commit_id": comment.commit_sha,
            "user": self.user(comment.author),
            "body": comment.body,
            "created_at": comment.created_at,
            "updated_at": comment.updated_at,
            "html_url": html,
            "pull_request_url": pull_url,
            "author_association": self._association(repo, comment.author),
            "_links": {"self": {"href": url}, "html": {"href": html}, "pull_request": {"href": pull_url}},
            "reactions": self._reactions(url),
            "start_line": None,
            "original_start_line": None,
            "start_side": None,
            "side": comment.side,
            "subject_type": "line" if comment.line else "file",
        }
        if comment.line is not None:
            shape |= {"line": comment.line, "original_line": comment.line}
        if comment.in_reply_to is not None:
            shape["in_reply_to_id"] = comment.in_reply_to
        return shape

    def review(self, repo: Repository, review: Review) -> Json:
        html = f"{self.html(repo)}/pull/{review.number}#pullrequestreview-{review.id}"
        pull_url = f"{self.api(repo)}/pulls/{review.number}"
        return {
            "id": review.id,
            "node_id": node_id("PRR", review.id),
            "user": self.user(review.author),
            "body": review.body,
            "state": review.state,
            "html_url": html,
            "pull_request_url": pull_url,
            "author_association": self._association(repo, review.author),
            "_links": {"html": {"href": html}, "pull_request": {"href": pull_url}},
            "submitted_at": review.submitted_at,
            "commit_id": review.commit_sha,
        }

    def ref(self, repo: Repository, branch: str) -> Json:
        sha = repo.branches[branch]
        return {
            "ref": f"refs/heads/{branch}",
            "node_id": node_id("REF", f"{repo.id}:{branch}"),
            "url": f"{self.api(repo)}/git/refs/heads/{quote(branch)}",
            "object": {"sha": sha, "type": "commit", "url": f"{self.api(repo)}/git/commits/{sha}"},
        }

    def short_branch(self, repo: Repository, branch: str) -> Json:
        sha = repo.branches[branch]
        return {
            "name": branch,
            "commit": {"sha": sha, "url": f"{self.api(repo)}/commits/{sha}"},
            "protected": False,
        }

    def branch(self, repo: Repository, branch: str) -> Json:
        url = f"{self.api(repo)}/branches/{quote(branch)}"
        return {
            "name": branch,
            "commit": self.commit(repo, repo.commits[repo.branches[branch]]),
            "_links": {"self": url, "html": f"{self.html(repo)}/tree/{quote(branch)}"},
            "protected": False,
            "protection": {
                "enabled": False,
                "required_status_checks": {"enforcement_level": "off", "contexts": [], "checks": []},
            },
            "protection_url": f"{url}/protection",
        }

    def commit(self, repo: Repository, commit: Commit, *, full: bool = False) -> Json:
        api, html = self.api(repo), self.html(repo)
        person = {
            "name": commit.author,
            "email": f"{commit.author}@users.noreply.sandbox.invalid",
            "date": commit.created_at,
        }
        shape: Json = {
            "sha": commit.sha,
            "node_id": node_id("C", commit.sha),
            "commit": {
                "author": person,
                "committer": person,
                "message": commit.message,
                "tree": {"sha": EMPTY_TREE, "url": f"{api}/git/trees/{EMPTY_TREE}"},
                "url": f"{api}/git/commits/{commit.sha}",
                "comment_count": 0,
                "verification": {
                    "verified": False,
                    "reason": "unsigned",
                    "signature": None,
                    "payload": None,
                    "verified_at": None,
                },
            },
            "url": f"{api}/commits/{commit.sha}",
            "html_url": f"{html}/commit/{commit.sha}",
            "comments_url": f"{api}/commits/{commit.sha}/comments",
            "author": self.user(commit.author),
            "committer": self.user(commit.author),
            "parents": [
                {"sha": sha, "url": f"{api}/commits/{sha}", "html_url": f"{html}/commit/{sha}"}
                for sha in commit.parents
            ],
        }
        if full:
            shape["stats"] = {"total": 12 * len(commit.files), "additions": 10 * len(commit.files)}
            shape["stats"]["deletions"] = 2 * len(commit.files)
            shape["files"] = []
        return shape


def commits_between(repo: Repository, base_sha: str, head_sha: str) -> list[Commit]:
    """What head has and base has not, oldest first, along the first parents."""
    known = set()
    sha: str | None = base_sha
    while sha and sha in repo.commits and sha not in known:
        known.add(sha)
        parents = repo.commits[sha].parents
        sha = parents[0] if parents else None
    found: list[Commit] = []
    sha = head_sha
    while sha and sha in repo.commits and sha not in known:
        known.add(sha)
        found.append(repo.commits[sha])
        parents = repo.commits[sha].parents
        sha = parents[0] if parents else None
    return found[::-1]
