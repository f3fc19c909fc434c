"""GitHub's REST shapes, made from the records. Nothing here changes state."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import quote

from sandbox.github_state import Comment, Issue, Label, Repository

Json = dict[str, Any]

OUTSIDER = "stranger"  # the login of somebody who has no part in any repository

USER_LINKS = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
REPOSITORY_LINKS = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}
REACTIONS = ("+1", "-1", "laugh", "hooray", "confused", "heart", "rocket", "eyes")


def node_id(kind: str, number: int | str) -> str:
    return f"{kind}_{base64.urlsafe_b64encode(str(number).encode()).decode().rstrip('=')}"


def user_id(login: str) -> int:
    """The same login always has the same id, without a table of users."""
    return 10_000 + int.from_bytes(hashlib.sha256(login.encode()).digest()[:3], "big")


class Shapes:
    """Renders records; `root` is the address of the stand-in, both API and pages."""

    def __init__(self, root: str) -> None:
        self.root = root

    def user(self, login: str) -> Json:
        api = f"{self.root}/users/{login}"
        return {
            "login": login,
            "id": user_id(login),
            "node_id": node_id("U", user_id(login)),
            "avatar_url": f"{self.root}/avatars/{login}",
            "gravatar_id": "",
            "url": api,
            "html_url": f"{self.root}/{login}",
            **{name: api + path for name, path in USER_LINKS.items()},
            "type": "Bot" if login.endswith("[bot]") else "User",
            "user_view_type": "public",
            "site_admin": False,
        }

    def _user_or_none(self, login: str | None) -> Json | None:
        return self.user(login) if login else None

    def private_user(self, login: str) -> Json:
        return {
            **self.user(login),
            "name": login,
            "company": None,
            "blog": "",
            "location": None,
            "email": None,
            "hireable": None,
            "bio": None,
            "twitter_username": None,
            "public_repos": 1,
            "public_gists": 0,
            "followers": 0,
            "following": 0,
            "created_at": "2020-01-01T00:00:00Z",
            "updated_at": "2020-01-01T00:00:00Z",
            "private_gists": 0,
            "total_private_repos": 0,
            "owned_private_repos": 0,
            "disk_usage": 0,
            "collaborators": 0,
            "two_factor_authentication": True,
        }

    def api(self, repo: Repository) -> str:
        return f"{self.root}/repos/{repo.full_name}"

    def html(self, repo: Repository) -> str:
        return f"{self.root}/{repo.full_name}"

    def repository(self, repo: Repository) -> Json:
        api, html = self.api(repo), self.html(repo)
        open_count = sum(issue.state == "open" for issue in repo.issues.values())
        return {
            "id": repo.id,
            "node_id": node_id("R", repo.id),
            "name": repo.name,
            "full_name": repo.full_name,
            "private": repo.private,
            "owner": {**self.user(repo.owner), "type": "Organization"},
            "html_url": html,
            "description": repo.description,
            "fork": False,
            "url": api,
            **{name: api + path for name, path in REPOSITORY_LINKS.items()},
            "created_at": repo.created_at,
            "updated_at": repo.updated_at,
            "pushed_at": repo.updated_at,
            "git_url": f"git://sandbox.invalid/{repo.full_name}.git",
            "ssh_url": f"git@sandbox.invalid:{repo.full_name}.git",
            "clone_url": f"{html}.git",
            "svn_url": html,
            "homepage": None,
            "size": 128,
            "stargazers_count": 0,
            "watchers_count": 0,
            "language": "Python",
            "has_issues": True,
            "has_projects": True,
            "has_downloads": True,
            "has_wiki": False,
            "has_pages": False,
            "has_discussions": False,
            "forks_count": 0,
            "mirror_url": None,
            "archived": False,
            "disabled": False,
            "open_issues_count": open_count,
            "license": None,
            "allow_forking": True,
            "is_template": False,
            "web_commit_signoff_required": False,
            "topics": [],
            "visibility": "private" if repo.private else "public",
            "forks": 0,
            "open_issues": open_count,
            "watchers": 0,
            "default_branch": repo.default_branch,
            "permissions": {"admin": True, "maintain": True, "push": True, "triage": True, "pull": True},
        }

    def full_repository(self, repo: Repository) -> Json:
        return {
            **self.repository(repo),
            "temp_clone_token": "",
            "allow_squash_merge": True,
            "allow_merge_commit": True,
            "allow_rebase_merge": True,
            "allow_auto_merge": False,
            "delete_branch_on_merge": False,
            "network_count": 0,
            "subscribers_count": 0,
        }

    def label(self, repo: Repository, label: Label) -> Json:
        return {
            "id": label.id,
            "node_id": node_id("LA", label.id),
            "url": f"{self.api(repo)}/labels/{quote(label.name, safe='')}",
            "name": label.name,
            "color": label.color,
            "default": False,
            "description": label.description,
        }

    def labels(self, repo: Repository, issue: Issue) -> list[Json]:
        return [self.label(repo, repo.labels[key]) for key in issue.labels]

    def _reactions(self, url: str) -> Json:
        return {"url": f"{url}/reactions", "total_count": 0, **dict.fromkeys(REACTIONS, 0)}

    def _association(self, repo: Repository, login: str) -> str:
        if login == OUTSIDER:
            return "NONE"
        return "OWNER" if login == repo.owner else "MEMBER"

    def issue(self, repo: Repository, issue: Issue, comments: int) -> Json:
        url = f"{self.api(repo)}/issues/{issue.number}"
        page = "pull" if issue.pull else "issues"
        html = f"{self.html(repo)}/{page}/{issue.number}"
        shape: Json = {
            "url": url,
            "repository_url": self.api(repo),
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            "html_url": html,
            "id": issue.id,
            "node_id": node_id("PR" if issue.pull else "I", issue.id),
            "number": issue.number,
            "title": issue.title,
            "user": self.user(issue.author),
            "labels": self.labels(repo, issue),
            "state": issue.state,
            "locked": issue.locked,
            "assignee": self._user_or_none(issue.assignees[0] if issue.assignees else None),
            "assignees": [self.user(login) for login in issue.assignees],
            "milestone": None,
            "comments": comments,
            "created_at": issue.created_at,
            "updated_at": issue.updated_at,
            "closed_at": issue.closed_at,
            "author_association": self._association(repo, issue.author),
            "active_lock_reason": None,
            "body": issue.body,
            "closed_by": self._user_or_none(issue.closed_by),
            "reactions": self._reactions(url),
            "timeline_url": f"{url}/timeline",
            "performed_via_github_app": None,
            "state_reason": issue.state_reason,
        }
        if issue.pull:
            shape["draft"] = issue.pull.draft
            shape["pull_request"] = {
                "url": f"{self.api(repo)}/pulls/{issue.number}",
                "html_url": html,
                "diff_url": f"{html}.diff",
                "patch_url": f"{html}.patch",
                "merged_at": issue.pull.merged_at,
            }
        return shape

    def comment(self, repo: Repository, comment: Comment) -> Json:
        url = f"{self.api(repo)}/issues/comments/{comment.id}"
        issue = repo.issues[comment.number]
        page = "pull" if issue.pull else "issues"
        return {
            "url": url,
            "html_url": f"{self.html(repo)}/{page}/{comment.number}#issuecomment-{comment.id}",
            "issue_url": f"{self.api(repo)}/issues/{comment.number}",
            "id": comment.id,
            "node_id": node_id("IC", comment.id),
            "user": self.user(comment.author),
            "created_at": comment.created_at,
            "updated_at": comment.updated_at,
            "author_association": self._association(repo, comment.author),
            "body": comment.body,
            "reactions": self._reactions(url),
            "performed_via_github_app": None,
        }
