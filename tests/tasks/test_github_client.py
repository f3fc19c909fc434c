"""The client against the stand-in over HTTP: what it asks, and one named error for all that goes wrong."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings

from broker_project.lib import errors
from broker_project.lib.config.dynamic import read_rate_limit
from broker_project.lib.config.outside import Source
from broker_project.lib.redis.embedded_server import free_port
from sandbox.launcher import SandboxHandle
from tasks.github import answers as github_answers
from tasks.github.client import GitHubClient, client_for
from tasks.models import Repository

REPO = "broker-sandbox/demo"
CODE = "/github/repos/broker-sandbox/demo"


@pytest.fixture
def client(sandbox: SandboxHandle, store: redis.Redis) -> GitHubClient:
    return GitHubClient(settings.BROKER.github, REPO)


def paths(sandbox: SandboxHandle) -> list[str]:
    """The calls since the last look, oldest first."""
    found = [f"{call['method']} {call['path'].removeprefix(CODE)}" for call in sandbox.calls("github")]
    sandbox.clear_calls()
    return found[::-1]


def add_issues(sandbox: SandboxHandle, count: int, **more: Any) -> list[int]:
    items = [{"title": f"Issue {n}", "labels": ["P1"], **more} for n in range(count)]
    return list(sandbox.control("POST", "github/issues", {"issues": items})["numbers"])


def numbers_of(listing: Any) -> list[int]:
    return [item["number"] for page in listing.pages for item in page.items]


# Listings


def test_a_full_listing_reads_every_page_of_open_issues_only(client, sandbox):
    added = add_issues(sandbox, 230)
    sandbox.clear_calls()
    listing = client.list_issues(since=None)
    found = numbers_of(listing)
    assert set(added) <= set(found)
    assert len(found) == len(set(found))
    state = {
        issue["number"]: issue["state"] for issue in sandbox.state("github")["repositories"][0]["issues"]
    }
    assert set(found) == {number for number, word in state.items() if word == "open"}
    assert len(paths(sandbox)) == 3
    assert listing.etag == ""  # a full first page proves nothing


def test_pages_are_asked_for_one_at_a_time(client, sandbox):
    add_issues(sandbox, 230)
    sandbox.clear_calls()
    pages = client.list_issues(since=None).pages
    assert len(paths(sandbox)) == 1
    next(pages)
    assert paths(sandbox) == []
    next(pages)
    assert len(paths(sandbox)) == 1


def test_since_lists_closed_ones_too_and_an_unchanged_listing_is_free(client, sandbox):
    sandbox.set_clock(3600)
    since = datetime.now(UTC) + timedelta(minutes=50)
    number = add_issues(sandbox, 1)[0]
    headers = {"Authorization": "token x"}
    sandbox.client.patch(f"{CODE}/issues/{number}", json={"state": "closed"}, headers=headers)
    listing = client.list_issues(since=since)
    items = [item for page in listing.pages for item in page.items]
    assert [(item["number"], item["state"]) for item in items] == [(number, "closed")]
    before = sandbox.control("GET", "github/settings")["rate_used"]
    again = client.list_issues(since=since, etag=listing.etag)
    assert again.is_unchanged
    assert list(again.pages) == []
    assert again.etag == listing.etag
    assert sandbox.control("GET", "github/settings")["rate_used"] == before


def test_open_pulls_and_their_etag(client, sandbox):
    listing = client.list_open_pulls()
    pulls = numbers_of(listing)
    assert len(pulls) == 2
    assert client.list_open_pulls(listing.etag).is_unchanged
    sandbox.client.post(
        f"{CODE}/issues/{pulls[0]}/labels", json={"labels": ["x"]}, headers={"Authorization": "token x"}
    )
    assert not client.list_open_pulls(listing.etag).is_unchanged


@pytest.mark.parametrize("relation", ['rel="next"', "rel=next"])
def test_a_first_page_with_others_behind_it_proves_nothing_however_short_it_is(client, sandbox, relation):
    number = add_issues(sandbox, 1)[0]
    link = f"<{sandbox.base_url}{CODE}/issues?state=open&page=1>; {relation}"
    sandbox.fault("github", "status", status=200, body=[], headers={"link": link, "etag": '"first"'})
    listing = client.list_issues(since=None)
    assert listing.etag == ""
    assert number in numbers_of(listing)


def test_a_listing_that_never_ends_is_given_up(client, sandbox):
    link = f'<{sandbox.base_url}{CODE}/issues?page=2>; rel="next"'
    sandbox.fault("github", "status", status=200, body=[], headers={"link": link}, times=0)
    with pytest.raises(errors.BadAnswer, match="does not end"):
        numbers_of(client.list_issues(since=None))


def test_single_looks(client, sandbox):
    number = numbers_of(client.list_open_pulls())[0]
    assert client.get_issue(number)["pull_request"]["url"].endswith(f"/pulls/{number}")
    assert client.get_pull(number)["head"]["ref"].startswith("feature/issue-")
    comments = client.pull_comments(number)
    assert {"path", "line", "body", "user"} <= comments[0].keys()
    assert client.default_branch() == "main"
    with pytest.raises(errors.Missing):
        client.get_issue(99999)


def test_an_issue_that_answers_from_another_repository_has_moved(client, sandbox):
    moved = {"number": 1, "repository_url": f"{sandbox.base_url}/github/repos/elsewhere/else"}
    sandbox.fault("github", "status", status=200, body=moved)
    with pytest.raises(errors.Missing, match="moved"):
        client.get_issue(1)
    sandbox.fault("github", "status", status=200, body=[moved])
    with pytest.raises(errors.Rejected, match="moved"):
        client.list_issues(since=None)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_renamed_repository_is_followed_with_query_and_body_but_to_no_other_host(client, sandbox, status):
    number = add_issues(sandbox, 1)[0]
    headers = {"Authorization": "token x"}
    sandbox.client.patch(f"{CODE}/issues/{number}", json={"state": "closed"}, headers=headers)
    sandbox.fault("github", "status", status=status, headers={"location": f"{CODE}/issues?state=closed"})
    items = [item for page in client.list_issues(since=None).pages for item in page.items]
    assert {item["state"] for item in items} == {"closed"}
    sandbox.fault(
        "github",
        "status",
        method="POST",
        status=status,
        headers={"location": f"{sandbox.base_url}{CODE}/issues/{number}/labels"},
    )
    assert client.add_labels(99999, ["followed"]) == ["P1", "followed"]
    sandbox.clear_calls()
    sandbox.fault(
        "github", "status", status=status, headers={"location": "http://elsewhere.example/"}, times=0
    )
    with pytest.raises(errors.Conflict):
        client.comment(number, "x")
    assert len(paths(sandbox)) == 1


# Branches, labels, comments


def test_a_branch_takes_two_requests_and_may_exist(client, sandbox):
    client.create_branch("feature/日本語-#1", client.head_of("main"))
    assert paths(sandbox) == ["GET /branches/main", "POST /git/refs"]
    client.create_branch("feature/日本語-#1", client.head_of("main"))
    client.create_branch("next", client.head_of("feature/日本語-#1"))
    branches = sandbox.state("github")["repositories"][0]["branches"]
    assert branches["next"] == branches["feature/日本語-#1"] == branches["main"]


@pytest.mark.parametrize(
    "said",
    [
        {"message": "Reference already exists"},
        {"message": "Validation Failed", "errors": ["Reference already exists"]},
        {
            "message": "Validation Failed",
            "errors": [{"resource": "Reference", "field": "ref", "code": "already_exists"}],
        },
    ],
)
def test_that_a_branch_exists_is_said_in_several_ways(client, sandbox, said: dict[str, Any]):
    sandbox.fault("github", "status", method="POST", status=422, body=said)
    client.create_branch("x", "a" * 40)
    assert paths(sandbox) == ["POST /git/refs"]


def test_a_missing_base_is_named(client, sandbox):
    with pytest.raises(errors.Missing, match="no branch 'gone/away'"):
        client.head_of("gone/away")
    assert paths(sandbox) == ["GET /branches/gone/away", "GET /git/ref/heads/gone/away"]


def test_another_422_is_a_refusal_with_githubs_words(client, sandbox):
    sandbox.fault("github", "status", method="POST", status=422, body={"message": "Reference update failed"})
    with pytest.raises(errors.Rejected, match="Reference update failed"):
        client.create_branch("x", client.head_of("main"))


def test_labels_go_on_in_one_request_and_come_off_one_by_one(client, sandbox):
    number = add_issues(sandbox, 1)[0]
    sandbox.clear_calls()
    assert client.add_labels(number, ["in-progress", "agent/1 ü"]) == ["P1", "in-progress", "agent/1 ü"]
    assert len(paths(sandbox)) == 1
    assert client.remove_label(number, "agent/1 ü") == ["P1", "in-progress"]
    assert client.remove_label(number, "agent/1 ü") is None
    with pytest.raises(errors.Missing):
        client.remove_label(99999, "in-progress")


def test_a_label_that_is_not_there_may_be_called_not_found(client, sandbox):
    number = add_issues(sandbox, 1)[0]
    sandbox.fault("github", "status", method="DELETE", status=404, body={"message": "Not Found"}, times=0)
    assert client.remove_label(number, "in-progress") is None
    with pytest.raises(errors.Missing):
        client.remove_label(99999, "in-progress")


def test_a_comment(client, sandbox):
    number = add_issues(sandbox, 1)[0]
    client.comment(number, "保留しました")
    comments = sandbox.state("github")["repositories"][0]["comments"]
    assert comments[-1]["number"] == number
    assert comments[-1]["body"] == "保留しました"


def test_pygithub_neither_paces_nor_repeats(client):
    with client._requester() as requester:
        given = requester.kwargs
    assert given["seconds_between_requests"] is given["seconds_between_writes"] is given["retry"] is None
    assert given["timeout"] == 15


def test_one_client_serves_many_threads(client, sandbox):
    """PyGithub keeps the address of a call on its connection; shared, threads would fetch each other's."""
    wanted = add_issues(sandbox, 8)
    wrong: list[tuple[int, int]] = []

    def look(number: int) -> None:
        for _ in range(10):
            got = client.get_issue(number)["number"]
            if got != number:
                wrong.append((number, got))

    threads = [threading.Thread(target=look, args=(number,)) for number in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Everything that can go wrong

SECONDARY = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ({"status": 401, "body": {"message": "Bad credentials"}}, errors.Unauthorised, "Bad credentials"),
        ({"status": 403, "body": {"message": "Resource not accessible"}}, errors.Unauthorised, "accessible"),
        ({"status": 403, "body": SECONDARY}, errors.RateLimited, "secondary"),
        ({"status": 403, "headers": {"retry-after": "7"}}, errors.RateLimited, "403"),
        ({"status": 429}, errors.RateLimited, "429"),
        ({"status": 404}, errors.Missing, "404"),
        ({"status": 410}, errors.Missing, "410"),
        ({"status": 409, "body": {"message": "Git Repository is empty."}}, errors.Conflict, "empty"),
        (
            {
                "status": 422,
                "body": {"message": "Validation Failed", "errors": [{"field": "ref", "code": "bad"}]},
            },
            errors.Rejected,
            "Validation Failed; ref bad",
        ),
        (
            {"status": 307, "headers": {"location": "http://elsewhere.example/"}},
            errors.Conflict,
            "moved",
        ),
        ({"status": 500}, errors.ServerFault, "500"),
        ({"status": 502, "body": "<html>Bad gateway"}, errors.ServerFault, "502"),
    ],
)
def test_a_status_is_one_error(
    client, sandbox, fault: dict[str, Any], kind: type[errors.OutsideError], words: str
):
    sandbox.fault("github", "status", **fault)
    with pytest.raises(errors.OutsideError, match=words) as caught:
        client.get_pull(1)
    assert type(caught.value) is kind
    assert caught.value.status == fault["status"]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("drop", errors.Unreachable),
        ("lose_answer", errors.Unreachable),
        ("truncate", errors.Unreachable),
        ("garbage", errors.BadAnswer),
    ],
)
def test_a_broken_answer_may_have_happened(client, sandbox, kind: str, wanted: type[errors.OutsideError]):
    number = add_issues(sandbox, 1)[0]
    sandbox.fault("github", kind)
    with pytest.raises(wanted) as caught:
        client.add_labels(number, ["late"])
    assert caught.value.may_have_happened
    issue = next(i for i in sandbox.state("github")["repositories"][0]["issues"] if i["number"] == number)
    assert ("late" in issue["labels"]) is (kind in ("lose_answer", "truncate"))


def test_nothing_is_repeated_behind_the_callers_back(client, sandbox):
    number = add_issues(sandbox, 1)[0]
    sandbox.clear_calls()
    sandbox.fault("github", "status", status=503)
    with pytest.raises(errors.ServerFault):
        client.comment(number, "once")
    assert len(paths(sandbox)) == 1


def test_no_answer_in_time(sandbox, store):
    client = GitHubClient(settings.BROKER.github, REPO, timeout_seconds=1)
    sandbox.fault("github", "stall", seconds=30)
    with pytest.raises(errors.TimedOut) as caught:
        client.default_branch()
    assert caught.value.may_have_happened


def test_nobody_there(store):
    config = replace(settings.BROKER.github, api_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(errors.Unreachable) as caught:
        GitHubClient(config, REPO).comment(1, "x")
    assert not caught.value.may_have_happened


def test_an_answer_of_another_shape(client, sandbox):
    sandbox.fault("github", "status", status=200, body=["not an object"])
    with pytest.raises(errors.BadAnswer):
        client.default_branch()
    sandbox.fault("github", "status", status=200, body={"not": "a list"})
    with pytest.raises(errors.BadAnswer):
        client.list_issues(since=None)


def test_no_secret_is_in_an_error(sandbox, store):
    token = "ghp_" + "a1B2" * 9
    config = replace(settings.BROKER.github, token=token)
    sandbox.fault("github", "status", status=422, body={"message": f"token {token} is not welcome"})
    with pytest.raises(errors.Rejected) as caught:
        GitHubClient(config, REPO).default_branch()
    assert token not in str(caught.value)
    assert token not in repr(config)


# The budget


def test_the_budget_is_recorded_and_a_limit_says_when_to_come_back(client, sandbox, store, monkeypatch):
    monkeypatch.setattr(github_answers, "_noted_at", float("-inf"))
    client.default_branch()
    plenty = read_rate_limit()
    assert plenty is not None
    assert (plenty.limit, plenty.remaining) == (5000, 4999)
    sandbox.control("PATCH", "github/settings", {"rate_used": 5000})
    with pytest.raises(errors.RateLimited) as caught:
        client.default_branch()
    assert caught.value.retry_after_seconds is not None
    assert 3500 < caught.value.retry_after_seconds <= 3601
    spent = read_rate_limit()
    assert spent is not None
    assert spent.remaining == 0
    assert json.loads(str(store.get("poppo:config:github:ratelimit"))).keys() == {
        "limit",
        "remaining",
        "reset",
    }


def test_a_plentiful_budget_is_noted_once_in_a_while(client, store, monkeypatch):
    monkeypatch.setattr(github_answers, "_noted_at", float("-inf"))
    for _ in range(5):
        client.default_branch()
    noted = read_rate_limit()
    assert noted is not None
    assert noted.remaining == 4999


def test_the_secondary_limit_names_its_own_time(client, sandbox):
    sandbox.control("PATCH", "github/settings", {"writes_per_minute": 1})
    number = add_issues(sandbox, 1)[0]
    client.add_labels(number, ["a"])
    with pytest.raises(errors.RateLimited) as caught:
        client.add_labels(number, ["b"])
    assert caught.value.retry_after_seconds is not None
    assert 0 < caught.value.retry_after_seconds <= 60


# Who asks


def test_a_github_app_asks_with_an_installation_token(sandbox, store):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    config = replace(settings.BROKER.github, token="", app_id="4001", app_private_key=pem)
    client = GitHubClient(config, REPO)
    number = add_issues(sandbox, 1)[0]
    sandbox.clear_calls()
    client.comment(number, "by the app")
    client.comment(number, "again")
    assert len(paths(sandbox)) == 4  # the installation and its token once, then one request a call
    assert sandbox.state("github")["repositories"][0]["comments"][-1]["author"] == "broker-app[bot]"


def test_a_damaged_key_is_named(sandbox, store):
    pem = "-----BEGIN RSA PRIVATE KEY-----\nnot a key\n-----END RSA PRIVATE KEY-----"
    config = replace(settings.BROKER.github, token="", app_id="4001", app_private_key=pem)
    with pytest.raises(errors.Unauthorised, match="GITHUB_APP_PRIVATE_KEY"):
        GitHubClient(config, REPO).default_branch()


def test_one_client_a_process_and_repository(settings, sandbox):
    one, other = Repository(full_name=REPO), Repository(full_name="broker-sandbox/other")
    assert client_for(one) is client_for(Repository(full_name=REPO))
    assert client_for(one) is not client_for(other)
    github = replace(settings.BROKER.github, source=Source.OFF, token="")
    settings.BROKER = replace(settings.BROKER, github=github)
    with pytest.raises(errors.SwitchedOff):
        client_for(one)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (None, []),
        ([], []),
        ([{"name": "P1", "color": "ededed"}, "old", {"id": 7}, {"name": None}], ["P1", "old"]),
        (
            [{"name": "In-Progress"}, {"name": "NEEDS-REVIEW"}, {"name": "Epic"}, {"name": "p1"}],
            ["in-progress", "needs-review", "epic", "p1"],
        ),
    ],
)
def test_names_of_labels(data: Any, names: list[str]):
    assert github_answers.label_names(data) == names


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('{"a": "x\\u0000y"}', {"a": "x\ufffdy"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "half \\ud83d"}', {"a": "half ?"}),
    ],
)
def test_texts_that_no_database_takes_are_mended(text: str, data: Any):
    assert github_answers.parse_json(text) == data
