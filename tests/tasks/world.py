"""A small repository on the stand-in, synced, and agents that talk to the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx
import redis
from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from sandbox.launcher import SandboxHandle
from tasks.agents_api.agent_cache import agent_cache
from tasks.models import Assignment, Issue, Repository
from tasks.repositories import forget_repositories
from tasks.services.repositories import configured_repository
from tasks.services.sync import sync_repository
from tests.support.asgi_client import AsgiClient, running_application

CODE = "/github/repos/broker-sandbox/demo"
PERSON = {"Authorization": "token user:maintainer"}
BODY = "## 成果物\n- something\n"


@dataclass
class World:
    sandbox: SandboxHandle
    store: redis.Redis
    repository: Repository
    ends: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def client(self) -> AsgiClient:
        """The application, started by the first call to it."""
        return self.ends.enter_context(running_application())

    # GitHub, as people use it

    def github(self, method: str, path: str, data: Any = None) -> Any:
        answer = self.sandbox.client.request(method, CODE + path, json=data, headers=PERSON)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def open_issue(self, *labels: str, title: str = "an issue", body: str = BODY) -> int:
        number: int = self.github("POST", "/issues", {"title": title, "body": body, "labels": list(labels)})[
            "number"
        ]
        return number

    def open_pull(self, closes: int, branch: str, *labels: str) -> int:
        self.push(branch)
        data = {"title": f"PR for {closes}", "head": branch, "base": "main", "body": f"Closes #{closes}"}
        number: int = self.github("POST", "/pulls", data)["number"]
        if labels:
            self.github("POST", f"/issues/{number}/labels", {"labels": list(labels)})
        return number

    def push(self, branch: str) -> None:
        """A commit on a branch, which is made if there is none."""
        if not self.has_branch(branch):
            sha = self.github("GET", "/branches/main")["commit"]["sha"]
            self.github("POST", "/git/refs", {"ref": f"refs/heads/{branch}", "sha": sha})
        self.sandbox.control("POST", "github/push", {"branch": branch})

    def labels(self, number: int) -> set[str]:
        return {label["name"] for label in self.github("GET", f"/issues/{number}/labels")}

    def has_branch(self, name: str) -> bool:
        answer = self.sandbox.client.get(f"{CODE}/branches/{name}", headers=PERSON)
        return bool(answer.status_code == 200)

    def sync(self) -> dict[str, int]:
        self.repository.refresh_from_db()
        return dict(sync_repository(self.repository, timezone.now(), lambda text: None))

    def requests(self) -> list[str]:
        calls = reversed(self.sandbox.calls("github"))
        return [f"{call['method']} {call['path']}" for call in calls]

    # The API, as agents use it

    def ask(self, agent: str = "agent-1", timeout: float = 0, **more: Any) -> httpx.Response:
        body = {"agent_id": agent, "timeout": timeout, **more}
        return self.client.post("/api/v1/request-task", body)

    def post(self, path: str, data: Any = None) -> httpx.Response:
        return self.client.post(f"/api/v1{path}", data or {})

    def get(self, path: str) -> httpx.Response:
        return self.client.get(f"/api/v1{path}")

    def given(self, agent: str = "agent-1", **more: Any) -> dict[str, Any]:
        answer = self.ask(agent, **more)
        assert answer.status_code == 200, (answer.status_code, answer.content)
        task: dict[str, Any] = answer.json()
        return task

    # Rows and keys

    def key(self, spec: k.KeySpec, **fields: Any) -> str:
        return keyspace().key(spec, **fields)

    def issue(self, number: int) -> Issue:
        return Issue.objects.get(repository=self.repository, number=number)

    def assignment(self, assignment_id: int) -> Assignment:
        return Assignment.objects.get(pk=assignment_id)

    def live(self) -> Sequence[int]:
        rows = Assignment.objects.filter(state__in=["claiming", "live"])
        return list(rows.values_list("number", flat=True))

    def status_of(self, number: int) -> str:
        return str(self.store.hget(self.key(k.ISSUE_STATUS, number=number), "status"))


@contextmanager
def new_world(sandbox: SandboxHandle, store: redis.Redis) -> Iterator[World]:
    """An empty repository; tests open the issues they are about."""
    sandbox.reset("github", seed=False)
    sandbox.control("POST", "github/repositories", {"repository": "broker-sandbox/demo"})
    forget_repositories()
    agent_cache.clear()  # the rows of the last test are gone
    world = World(sandbox, store, configured_repository())
    world.sync()
    sandbox.clear_calls()
    with world.ends:
        yield world
