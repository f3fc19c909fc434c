"""GitHub's REST API for one repository, through PyGithub. Raises only the shared error tree.

What goes in and out is GitHub's own JSON. A call is one request and never sleeps:
PyGithub's pacing and its retries are off. What GitHub says about our budget is noted from every answer.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote

import jwt
import urllib3
from django.conf import settings
from django.utils import timezone
from github import Auth, Github, GithubException
from github.Requester import Requester

from broker_project.lib.config.outside import GitHubConfig, Source
from broker_project.lib.errors import (
    BadAnswer,
    Conflict,
    Missing,
    OutsideError,
    Rejected,
    SwitchedOff,
    TimedOut,
    Unauthorised,
    Unreachable,
)
from broker_project.lib.redaction import redact
from broker_project.lib.transport import call_limit
from tasks.github.answers import (
    SYSTEM,
    Json,
    as_object,
    as_objects,
    date_of,
    error_of,
    label_names,
    note_budget,
    parse_json,
)
from tasks.github.session import use_limited_connections

use_limited_connections()

USER_AGENT = "broker"
TIMEOUT_SECONDS = 15
PER_PAGE = 100
MAX_PAGES = 1000

# "Reference already exists", or the code already_exists among the errors.
EXISTS = re.compile(r"\balready[ _]exists\b", re.IGNORECASE)
NEXT_LINK = re.compile(r'<([^>]+)>;[^,]*\brel="?next\b')


@dataclass(frozen=True)
class Page:
    """What one answer of a listing held. It shows GitHub as it was not before ``asked_at``."""

    items: list[Json]
    asked_at: datetime


@dataclass(frozen=True)
class Listing:
    """The first answer has arrived; the other pages are asked for while ``pages`` is read, once.

    ``etag`` may be given the next time, and is empty where an unchanged first page would prove nothing.
    ``answered_at`` is the time by GitHub's clock.
    """

    is_unchanged: bool
    etag: str
    pages: Iterator[Page]
    answered_at: datetime | None = None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    data: Any
    asked_at: datetime


class BranchMissing(Missing):
    def __init__(self, branch: str) -> None:
        super().__init__(SYSTEM, f"there is no branch {branch!r}", status=404)
        self.branch = branch


class HasFullName(Protocol):
    full_name: str


class GitHubClient:
    """May be shared by threads."""

    def __init__(self, config: GitHubConfig, full_name: str, timeout_seconds: int = TIMEOUT_SECONDS) -> None:
        self.full_name = full_name
        self._config = config
        self._timeout_seconds = timeout_seconds
        self._path = f"/repos/{quote(full_name, safe='/')}"
        # PyGithub keeps a call's address and body on its connection: a requester serves one thread at a time.
        self._idle: deque[Requester] = deque()
        self._app_lock = threading.Lock()
        self._app_auth: Auth.AppInstallationAuth | None = None

    # Reading

    def list_issues(self, *, since: datetime | None, etag: str = "") -> Listing:
        """All open issues, or with ``since`` all that changed since then, open or not; pull requests too.

        Oldest first: what changes while pages are read makes no other slip by. Only in a listing of the open
        ones may one that is closed meanwhile do so.
        """
        parameters = {"sort": "created", "direction": "asc", "state": "open" if since is None else "all"}
        if since is not None:
            parameters["since"] = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # A first page of several stays as it is when something is added behind it, so its ETag proves nothing.
        return self._list(f"{self._path}/issues", parameters, etag, etag_of_full_page=False)

    def list_open_pulls(self, etag: str = "") -> Listing:
        """Open pull requests, the last changed first: "unchanged" means that none was opened or changed.

        One that was closed on a later page does not show; the listing of issues tells of it.
        """
        parameters = {"state": "open", "sort": "updated", "direction": "desc"}
        return self._list(f"{self._path}/pulls", parameters, etag, etag_of_full_page=True)

    def get_issue(self, number: int) -> Json:
        """Raises Missing for one that was deleted or moved to another repository."""
        found = as_object(self._call("GET", f"{self._path}/issues/{number}").data)
        if found.get("number") != number or not self._is_ours(found):
            raise Missing(SYSTEM, f"issue {number} was moved to another repository", status=404)
        return found

    def get_pull(self, number: int) -> Json:
        return as_object(self._call("GET", f"{self._path}/pulls/{number}").data)

    def pull_comments(self, number: int) -> list[Json]:
        """The review comments of a pull request, oldest first."""
        return self._list_all(f"{self._path}/pulls/{number}/comments", {})

    def default_branch(self) -> str:
        name = as_object(self._call("GET", self._path).data).get("default_branch")
        if not isinstance(name, str) or not name:
            raise BadAnswer(SYSTEM, "a repository without a default branch")
        return name

    def has_branch(self, name: str) -> bool:
        try:
            self.head_of(name)
        except Missing:
            return False
        return True

    # Writing

    def create_branch(self, name: str, sha: str) -> None:
        """Make ``name`` at a commit; one that exists is fine."""
        try:
            self._call("POST", f"{self._path}/git/refs", {"ref": f"refs/heads/{name}", "sha": sha})
        except Rejected as error:
            if not EXISTS.search(error.message):
                raise

    def head_of(self, branch: str) -> str:
        """The commit that a branch stands at. Raises BranchMissing without the branch."""
        quoted = quote(branch, safe="/")
        try:
            data = as_object(self._call("GET", f"{self._path}/branches/{quoted}").data)
            sha = as_object(data.get("commit")).get("sha")
        except Missing:
            try:
                data = as_object(self._call("GET", f"{self._path}/git/ref/heads/{quoted}").data)
            except Missing:
                raise BranchMissing(branch) from None
            sha = as_object(data.get("object")).get("sha")
        if not isinstance(sha, str) or not sha:
            raise BadAnswer(SYSTEM, "a branch without a commit")
        return sha

    def add_labels(self, number: int, names: Sequence[str]) -> list[str]:
        """In one request. Returns the labels that the issue or pull request has now."""
        answer = self._call("POST", f"{self._path}/issues/{number}/labels", {"labels": list(names)})
        return label_names(answer.data)

    def remove_label(self, number: int, name: str) -> list[str] | None:
        """Returns the labels that are left; None if this one was not there. Raises Missing without the issue."""
        try:
            answer = self._call("DELETE", f"{self._path}/issues/{number}/labels/{quote(name, safe='')}")
        except Missing as error:
            if "label does not exist" not in error.message.lower():
                self.get_issue(number)  # the answer does not say which of the two is missing
            return None
        return label_names(answer.data)

    def comment(self, number: int, body: str) -> None:
        self._call("POST", f"{self._path}/issues/{number}/comments", {"body": body})

    # One request

    def _list(self, path: str, parameters: dict[str, str], etag: str, *, etag_of_full_page: bool) -> Listing:
        headers = {"If-None-Match": etag} if etag else {}
        first = self._call("GET", path, parameters={**parameters, "per_page": str(PER_PAGE)}, headers=headers)
        if first.status == 304:
            return Listing(True, etag, iter(()))
        items = as_objects(first.data)
        for item in items:
            if not self._is_ours(item):
                raise Rejected(SYSTEM, f"{self.full_name} has moved: set the repository's new name")
        is_whole = len(items) < PER_PAGE and NEXT_LINK.search(first.headers.get("link", "")) is None
        is_telling = etag_of_full_page or is_whole
        etag = first.headers.get("etag", "") if is_telling else ""
        return Listing(False, etag, self._pages(first, items), date_of(first.headers))

    def _pages(self, answer: Answer, items: list[Json]) -> Iterator[Page]:
        seen: set[str] = set()
        yield Page(items, answer.asked_at)
        while (link := NEXT_LINK.search(answer.headers.get("link", ""))) is not None:
            url = link.group(1)
            if url in seen or len(seen) >= MAX_PAGES:
                raise BadAnswer(SYSTEM, "a listing that does not end")
            seen.add(url)
            answer = self._call("GET", url)
            yield Page(as_objects(answer.data), answer.asked_at)

    def _list_all(self, path: str, parameters: dict[str, str]) -> list[Json]:
        listing = self._list(path, parameters, "", etag_of_full_page=False)
        return [item for page in listing.pages for item in page.items]

    def _is_ours(self, item: Json) -> bool:
        """GitHub answers for a renamed repository or a moved issue from its new place."""
        url = item.get("repository_url")
        return not isinstance(url, str) or url.lower().endswith(f"/repos/{self.full_name.lower()}")

    def _call(
        self,
        method: str,
        url: str,
        body: Json | None = None,
        *,
        parameters: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        asked_at = timezone.now()
        with as_outside_errors(), self._requester() as requester:
            given = {"Accept": "application/vnd.github+json", **(headers or {})}
            status, answered, text = requester.requestJson(method, url, parameters, given, body)
        note_budget(answered)
        if status >= 300 and status != 304:
            raise error_of(status, answered, text)
        return Answer(status, answered, parse_json(text) if text else None, asked_at)

    @contextmanager
    def _requester(self) -> Iterator[Requester]:
        token = self._token()
        try:
            requester = self._idle.pop()
        except IndexError:
            requester = self._new_requester(Auth.Token(token))
        if requester.auth is None or requester.auth.token != token:
            requester.close()
            requester = self._new_requester(Auth.Token(token))
        try:
            yield requester
        finally:
            self._idle.append(requester)

    def _new_requester(self, auth: Auth.Auth) -> Requester:
        return Github(
            auth=auth,
            base_url=self._config.api_url,
            timeout=self._timeout_seconds,
            user_agent=USER_AGENT,
            retry=None,
            seconds_between_requests=None,
            seconds_between_writes=None,
        ).requester

    def _token(self) -> str:
        if self._config.token:
            return self._config.token
        # One thread renews an expired installation token, the others wait for it.
        with self._app_lock:
            try:
                if self._app_auth is None:
                    self._app_auth = self._find_installation()
                return self._app_auth.token
            except GithubException:
                self._app_auth = None  # the app may have been installed anew, under another number
                raise
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                name = type(error).__name__
                raise Unauthorised(SYSTEM, f"GITHUB_APP_PRIVATE_KEY cannot be used ({name})") from None

    def _find_installation(self) -> Auth.AppInstallationAuth:
        app = Auth.AppAuth(int(self._config.app_id), self._config.app_private_key)
        requester = self._new_requester(app)
        status, headers, text = requester.requestJson("GET", f"{self._path}/installation")
        if status != 200:
            raise error_of(status, headers, text)
        number = as_object(parse_json(text)).get("id")
        if not isinstance(number, int):
            raise BadAnswer(SYSTEM, "an installation without an id")
        return Auth.AppInstallationAuth(app, number, requester=requester)


@contextmanager
def as_outside_errors() -> Iterator[None]:
    """Whatever PyGithub and urllib3 raise, as one error of the shared tree."""
    try:
        yield
    except OutsideError:
        raise
    except urllib3.exceptions.NewConnectionError:  # refused, or a name without an address
        raise Unreachable(SYSTEM, "no connection", may_have_happened=False) from None
    except urllib3.exceptions.ConnectTimeoutError:
        raise TimedOut(SYSTEM, "no connection in time", may_have_happened=False) from None
    except urllib3.exceptions.TimeoutError:
        raise TimedOut(SYSTEM, "no answer in time") from None
    except urllib3.exceptions.SSLError as error:
        # A certificate is checked before anything is sent.
        is_certificate = isinstance(error.args[0], ssl.SSLCertVerificationError)
        raise Unreachable(SYSTEM, "no secure connection", may_have_happened=not is_certificate) from None
    except urllib3.exceptions.HTTPError:
        raise Unreachable(SYSTEM, "the connection broke off") from None
    except GithubException as error:
        # Only the fetching of an installation token comes this way.
        detail = error.data if isinstance(error.data, dict) else {}
        raise error_of(error.status, error.headers or {}, json.dumps(detail)) from None
    except RuntimeError as error:
        raise Conflict(SYSTEM, redact(str(error), 300)) from None  # sent to another host


# The clients of this process

_clients: dict[tuple[GitHubConfig, str], GitHubClient] = {}
_clients_lock = threading.Lock()


def forget_clients() -> None:
    global _clients, _clients_lock
    _clients, _clients_lock = {}, threading.Lock()


# A forked child must not share its parent's connections, nor wait for a lock that nobody will release.
os.register_at_fork(after_in_child=forget_clients)


def client_for(repository: HasFullName) -> GitHubClient:
    """The client of this process for a repository. Raises SwitchedOff without credentials."""
    config: GitHubConfig = settings.BROKER.github
    if config.source is Source.OFF:
        raise SwitchedOff(SYSTEM, "no credentials are set")
    with _clients_lock:
        key = (config, repository.full_name)
        if key not in _clients:
            seconds = int(call_limit(TIMEOUT_SECONDS))
            _clients[key] = GitHubClient(config, repository.full_name, seconds)
        return _clients[key]
