"""PyGithub against the GitHub stand-in, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import github
import httpx
import pytest
from github import Auth, GithubException, GithubIntegration, UnknownObjectException
from github.Repository import Repository

from sandbox.launcher import SandboxHandle

NAME = "broker-sandbox/demo"
AUTH = {"Authorization": "Bearer any"}


def connect(sandbox: SandboxHandle, token: str = "any", **options) -> github.Github:
    """A client without its own pacing and retries, so that a test sees each answer as it came."""
    settings = {"retry": None, "seconds_between_requests": None, "seconds_between_writes": None, **options}
    return github.Github(base_url=sandbox.github_url, auth=Auth.Token(token), **settings)


@pytest.fixture
def repo(sandbox) -> Repository:
    return connect(sandbox).get_repo(NAME)


def open_many(sandbox: SandboxHandle, count: int, **fields) -> list[int]:
    issues = [{"title": f"issue {index}", **fields} for index in range(count)]
    return list(sandbox.control("POST", "github/issues", {"issues": issues})["numbers"])


# Listing


def test_listing_follows_every_page_once(sandbox):
    sandbox.reset("github", seed=False)
    sandbox.control("POST", "github/repositories", {"repository": "some/where"})
    issues = [{"title": f"issue {index}"} for index in range(250)]
    sandbox.control("POST", "github/issues", {"repository": "some/where", "issues": issues})
    repo = connect(sandbox, per_page=100).get_repo("some/where")
    sandbox.clear_calls()
    listed = [issue.number for issue in repo.get_issues(state="open", sort="created", direction="asc")]
    assert listed == list(range(1, 251))
    assert len(sandbox.calls("github")) == 3


def test_link_header_names_the_neighbours(sandbox):
    url = f"{sandbox.github_url}/repos/{NAME}/issues?state=all&per_page=10"
    first = sandbox.client.get(url, headers=AUTH)
    assert set(first.links) == {"next", "last"}
    second = sandbox.client.get(first.links["next"]["url"], headers=AUTH)
    assert set(second.links) == {"first", "prev", "next", "last"}
    assert "state=all" in second.links["next"]["url"]
    last = sandbox.client.get(first.links["last"]["url"], headers=AUTH)
    assert set(last.links) == {"first", "prev"}
    beyond = sandbox.client.get(f"{url}&page=99", headers=AUTH)
    assert beyond.json() == []
    pages = [first, second]
    while "next" in pages[-1].links:
        pages.append(sandbox.client.get(pages[-1].links["next"]["url"], headers=AUTH))
    numbers = [issue["number"] for page in pages for issue in page.json()]
    assert len(numbers) == len(set(numbers)) == len(sandbox.state("github")["repositories"][0]["issues"])


def test_since_is_inclusive_and_sees_every_change(repo):
    before = datetime.now(UTC).replace(microsecond=0)
    assert list(repo.get_issues(state="all", since=before + timedelta(hours=1))) == []
    issue = repo.get_issue(20)
    issue.add_to_labels("in-progress")
    assert [found.number for found in repo.get_issues(state="all", since=before)] == [20]
    updated = repo.get_issue(20).updated_at
    assert [found.number for found in repo.get_issues(state="all", since=updated)] == [20]
    assert list(repo.get_issues(state="all", since=updated + timedelta(seconds=1))) == []


def test_listing_filters_by_state_and_labels_and_marks_pulls(repo):
    assert {issue.state for issue in repo.get_issues(state="closed")} == {"closed"}
    both = [issue.number for issue in repo.get_issues(labels=["p0", "frontendcoder"])]
    assert both
    for number in both:
        assert {"P0", "FRONTENDCODER"} <= {label.name for label in repo.get_issue(number).labels}
    marked = {issue.number for issue in repo.get_issues(state="open") if issue.pull_request}
    assert marked == {pull.number for pull in repo.get_pulls(state="open")}
    assert len(marked) == 2


def test_etag_answers_304_without_cost_until_something_changes(sandbox):
    url = f"{sandbox.github_url}/repos/{NAME}/issues"
    first = sandbox.client.get(url, headers=AUTH)
    again = httpx.get(url, headers={**AUTH, "If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["x-ratelimit-used"] == first.headers["x-ratelimit-used"]
    open_many(sandbox, 1)
    changed = httpx.get(url, headers={**AUTH, "If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


# Issues, labels, comments


def test_labels_are_case_insensitive_and_made_on_demand(repo):
    issue = repo.get_issue(16)
    issue.add_to_labels("in-progress", "agent-7", "AGENT-7", "p1")
    names = [label.name for label in repo.get_issue(16).labels]
    assert names == ["P1", "BACKENDCODER", "performance", "in-progress", "agent-7"]
    assert repo.get_label("Agent-7").name == "agent-7"
    issue.remove_from_labels("IN-PROGRESS")
    issue.set_labels("needs-review", "P1")
    assert {label.name for label in issue.get_labels()} == {"needs-review", "P1"}
    issue.delete_labels()
    assert list(issue.get_labels()) == []


@pytest.mark.parametrize("name", ["日本語 ラベル", "a/b", "50% & more?", "#hash"])
def test_labels_with_any_characters(repo, name):
    issue = repo.get_issue(16)
    issue.add_to_labels(name)
    repo.get_label(name).edit(name, "123456", "described")
    assert [label.color for label in issue.get_labels() if label.name == name] == ["123456"]
    issue.remove_from_labels(name)
    assert name not in [label.name for label in issue.get_labels()]


def test_label_refusals(repo):
    issue = repo.get_issue(16)
    with pytest.raises(GithubException) as absent:
        issue.remove_from_labels("never-there")
    assert (absent.value.status, absent.value.data["message"]) == (404, "Label does not exist")
    with pytest.raises(GithubException) as too_long:
        issue.add_to_labels("x" * 51)
    assert too_long.value.status == 422
    issue.add_to_labels("x" * 50)
    with pytest.raises(GithubException) as twice:
        repo.create_label("p0", "ff0000")
    assert twice.value.status == 422
    assert twice.value.data["errors"][0]["code"] == "already_exists"
    with pytest.raises(GithubException) as color:
        repo.create_label("fresh", "red")
    assert color.value.data["errors"][0]["field"] == "color"


def test_repository_labels_are_renamed_and_deleted_everywhere(repo):
    repo.get_label("performance").edit("speed", "00ff00")
    assert "speed" in [label.name for label in repo.get_issue(16).labels]
    repo.get_label("speed").delete()
    assert "speed" not in [label.name for label in repo.get_issue(16).labels]
    assert "speed" not in [label.name for label in repo.get_labels()]


def test_issue_is_opened_edited_closed_and_reopened(repo):
    issue = repo.create_issue("日本語の件名", body="本文", labels=["P1", "brand-new"])
    assert [label.name for label in issue.labels] == ["P1", "brand-new"]
    issue.edit(title="二つ目", state="closed", state_reason="not_planned")
    closed = repo.get_issue(issue.number)
    assert (closed.title, closed.state, closed.state_reason) == ("二つ目", "closed", "not_planned")
    assert closed.closed_at is not None
    issue.edit(state="open")
    assert repo.get_issue(issue.number).closed_at is None


def test_comments(sandbox, repo):
    issue = repo.get_issue(16)
    comment = issue.create_comment("parked: 3 attempts")
    assert comment.user.login == "broker-bot"
    comment.edit("parked")
    assert [found.body for found in issue.get_comments()] == ["parked"]
    assert repo.get_issue(16).comments == 1
    other = connect(sandbox, "user:some-reviewer").get_repo(NAME).get_issue(16).create_comment("hello")
    assert other.user.login == "some-reviewer"
    comment.delete()
    assert [found.body for found in issue.get_comments()] == ["hello"]
    with pytest.raises(UnknownObjectException):
        issue.get_comment(comment.id)


# Refs, branches, pulls


def test_refs_as_git_would_have_them(repo):
    base = repo.get_git_ref("heads/main")
    repo.create_git_ref("refs/heads/feature/issue-16", base.object.sha)
    assert repo.get_branch("feature/issue-16").commit.sha == base.object.sha
    assert repo.get_git_ref("heads/feature/issue-16").ref == "refs/heads/feature/issue-16"
    assert "feature/issue-16" in [branch.name for branch in repo.get_branches()]
    for ref, sha, message in [
        ("refs/heads/feature/issue-16", base.object.sha, "Reference already exists"),
        ("refs/heads/other", "0" * 40, "Object does not exist"),
        ("refs/heads/a..b", base.object.sha, "not a valid ref name"),
        ("refs/heads/x.lock", base.object.sha, "not a valid ref name"),
        ("refs/heads/-f", base.object.sha, "not a valid ref name"),
        ("refs/heads/main/below", base.object.sha, "Reference update failed"),
    ]:
        with pytest.raises(GithubException) as refused:
            repo.create_git_ref(ref, sha)
        assert refused.value.status == 422
        assert message in refused.value.data["message"]
    repo.get_git_ref("heads/feature/issue-16").delete()
    with pytest.raises(UnknownObjectException):
        repo.get_git_ref("heads/feature/issue-16")
    with pytest.raises(GithubException) as missing:
        repo.get_branch("feature/issue-16")
    assert missing.value.status == 404


def test_a_pull_request_from_branch_to_merge(sandbox, repo):
    main = repo.get_git_ref("heads/main").object.sha
    repo.create_git_ref("refs/heads/feature/issue-16", main)
    with pytest.raises(GithubException) as empty:
        repo.create_pull(base="main", head="feature/issue-16", title="Faster", body="Closes #16")
    assert "No commits between" in empty.value.data["errors"][0]["message"]
    sandbox.control("POST", "github/push", {"branch": "feature/issue-16", "files": ["a.py", "b.py"]})
    pull = repo.create_pull(base="main", head="feature/issue-16", title="Faster", body="Closes #16")
    with pytest.raises(GithubException) as twice:
        repo.create_pull(base="main", head="feature/issue-16", title="Again")
    assert "already exists" in twice.value.data["errors"][0]["message"]
    with pytest.raises(GithubException) as headless:
        repo.create_pull(base="main", head="nowhere", title="Nothing")
    assert headless.value.data["errors"][0]["field"] == "head"
    assert (pull.head.ref, pull.base.ref, pull.base.sha) == ("feature/issue-16", "main", main)
    assert [file.filename for file in pull.get_files()] == ["a.py", "b.py"]
    assert [commit.sha for commit in pull.get_commits()] == [pull.head.sha]
    sandbox.control("POST", "github/push", {"branch": "feature/issue-16"})
    assert repo.get_pull(pull.number).head.sha != pull.head.sha
    assert pull.merge().merged
    merged = repo.get_pull(pull.number)
    assert (merged.merged, merged.state) == (True, "closed")
    assert repo.get_issue(16).state == "closed"
    assert repo.compare("main", "feature/issue-16").ahead_by == 0


def test_review_comments(repo):
    pull = repo.get_pull(32)
    seeded = list(pull.get_review_comments())
    assert (seeded[0].path, seeded[0].line) == ("services/delivery.py", 48)
    assert [review.state for review in pull.get_reviews()] == ["CHANGES_REQUESTED"]
    commit = repo.get_commit(pull.head.sha)
    made = pull.create_review_comment("Name the constant.", commit, "services/delivery.py", line=12)
    assert (made.line, made.user.login) == (12, "broker-bot")
    reply = pull.create_review_comment_reply(made.id, "Done.")
    assert reply.in_reply_to_id == made.id
    assert len(list(pull.get_review_comments())) == len(seeded) + 2
    assert repo.get_pull(32).review_comments == len(seeded) + 2
    with pytest.raises(GithubException) as refused:
        pull.create_review_comment("Where?", commit, "", line=1)
    assert refused.value.status == 422


# Who may, how often


def test_tokens(sandbox):
    anonymous = httpx.get(f"{sandbox.github_url}/repos/{NAME}")
    assert anonymous.status_code == 401
    assert anonymous.json()["message"] == "Requires authentication"
    with pytest.raises(github.BadCredentialsException):
        connect(sandbox, "bad-token").get_repo(NAME)
    assert connect(sandbox).get_user().login == "broker-bot"


@pytest.mark.parametrize(
    "path",
    [
        "/repos/no/where",
        f"/repos/{NAME}/issues/99999",
        f"/repos/{NAME}/issues/x",
        f"/repos/{NAME}/pulls/5",
        "/nothing",
    ],
)
def test_what_is_not_there_is_404(sandbox, path):
    answer = sandbox.client.get(sandbox.github_url + path, headers=AUTH)
    assert answer.status_code == 404
    assert answer.json()["message"] == "Not Found"


@pytest.mark.parametrize(
    ("body", "status"), [("{", 400), ("[]", 422), ("{}", 422), ('{"title": ""}', 422), ('{"title": 1}', 422)]
)
def test_bad_bodies(sandbox, body, status):
    url = f"{sandbox.github_url}/repos/{NAME}/issues"
    answer = httpx.post(url, headers=AUTH, content=body)
    assert answer.status_code == status


@pytest.mark.parametrize("query", ["state=both", "since=yesterday", "sort=size", "direction=up"])
def test_bad_queries(sandbox, query):
    answer = sandbox.client.get(f"{sandbox.github_url}/repos/{NAME}/issues?{query}", headers=AUTH)
    assert answer.status_code == 422


def test_the_rate_limit_counts_down_and_ends(sandbox):
    client = connect(sandbox)
    client.get_repo(NAME)
    before = client.get_rate_limit().resources.core
    assert (before.limit, before.used, before.remaining) == (5000, 1, 4999)
    sandbox.control("PATCH", "github/settings", {"rate_limit": 2})
    client.get_repo(NAME)
    with pytest.raises(github.RateLimitExceededException) as exhausted:
        client.get_repo(NAME)
    assert exhausted.value.status == 403
    assert (exhausted.value.headers or {})["x-ratelimit-remaining"] == "0"
    assert client.get_rate_limit().resources.core.remaining == 0
    sandbox.control("PATCH", "github/settings", {"exhausted_status": 429})
    assert sandbox.client.get(f"{sandbox.github_url}/user", headers=AUTH).status_code == 429
    sandbox.set_clock(3601)
    assert client.get_repo(NAME).full_name == NAME


def test_the_secondary_limit_counts_writes_only(sandbox):
    sandbox.control("PATCH", "github/settings", {"writes_per_minute": 2})
    repo = connect(sandbox).get_repo(NAME)
    issue = repo.get_issue(16)
    issue.add_to_labels("a")
    issue.add_to_labels("b")
    with pytest.raises(github.RateLimitExceededException) as refused:
        issue.add_to_labels("c")
    assert 1 <= int((refused.value.headers or {})["retry-after"]) <= 60
    assert [label.name for label in repo.get_issue(16).labels][-1] == "b"
    sandbox.set_clock(61)
    issue.add_to_labels("c")


def test_a_github_app_exchanges_its_key_for_a_token(sandbox):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    integration = GithubIntegration(auth=Auth.AppAuth(4001, pem), base_url=sandbox.github_url)
    installation = integration.get_repo_installation("broker-sandbox", "demo")
    client = installation.get_github_for_installation()
    comment = client.get_repo(NAME).get_issue(16).create_comment("by the app")
    assert comment.user.login == "broker-app[bot]"


# What a client makes of faults


def test_an_answer_lost_on_the_way_leaves_the_labels_on(sandbox, repo):
    issue = repo.get_issue(16)
    sandbox.fault("github", "lose_answer", method="POST", path="/issues/16/labels$")
    with pytest.raises(Exception, match=r"(?i)connection|remote"):
        issue.add_to_labels("in-progress")
    assert "in-progress" in [label.name for label in repo.get_issue(16).labels]


def test_an_outage_is_seen_as_one(sandbox, repo):
    sandbox.fault("github", "status", status=502, times=2)
    for _ in range(2):
        with pytest.raises(GithubException) as outage:
            repo.get_issue(16)
        assert outage.value.status == 502
    assert repo.get_issue(16).number == 16


# The seed


def test_the_seed_has_work_in_every_state(repo):
    issues = [issue for issue in repo.get_issues(state="open") if not issue.pull_request]
    labels = {issue.number: {label.name for label in issue.labels} for issue in issues}
    assert len(issues) >= 25
    first = [issue for issue in issues if "P0" in labels[issue.number]]
    ready = [
        issue for issue in first if "## 成果物" in issue.body and "needs-review" not in labels[issue.number]
    ]
    assert len(ready) >= 6
    roles = {"BACKENDCODER", "FRONTENDCODER", "UIUX", "DOCWRITER"}
    assert roles == roles & set().union(*(labels[issue.number] for issue in ready))
    assert any("## 成果物" not in issue.body for issue in first)
    assert any(":** main" in issue.body.split("ベースブランチ")[0] for issue in first)
    for special in ("epic", "story", "needs-review"):
        assert any(special in names for names in labels.values())
    linked = {pull.body for pull in repo.get_pulls(state="open")}
    reviews = [issue.number for issue in issues if "needs-review" in labels[issue.number]]
    assert linked == {f"Closes #{number}" for number in reviews}
    now = datetime.now(UTC)
    assert all(issue.updated_at <= now and issue.created_at <= issue.updated_at for issue in issues)
