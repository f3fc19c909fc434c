"""One request for a task, from the validated body to the answer, whoever carries it.

The ASGI entry (:mod:`tasks.agents_api.entry`) and Django's views (:mod:`tasks.agents_api.api`) both drive it; they
differ in how a claim reaches Redis and in how they wait.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from broker_project.lib.config.outside import Source
from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis.flags import parse_flag
from tasks.agents_api.agent_cache import Caller, directory
from tasks.agents_api.schemas import RequestTask
from tasks.lifecycle import AssignmentState, TaskType
from tasks.models import Assignment, Repository
from tasks.offers.index import ClaimRequest, claim_arguments
from tasks.offers.projector import rebuild_if_needed
from tasks.services.assignment import AgentBusy, Assigned, Claim, assign_claim
from tasks.services.leases import finish_previous

log = get_logger(__name__)

MAX_SKIPS = 50  # candidates that one request looks at before it waits again


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any] | None = None
    retry_after_seconds: int | None = None


def problem(status: int, code: str, message: str, retry_after_seconds: int | None = None) -> Answer:
    return Answer(status, {"error": code, "message": message}, retry_after_seconds)


@dataclass(frozen=True)
class AgentGotOne:
    """Another request of the same agent has the task."""


@dataclass
class TaskRequest:
    """The state of one request. ``claim`` and ``act`` alternate until there is an answer or nothing to give."""

    caller: Caller
    body: RequestTask
    is_first_check: bool = True
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    tried: set[tuple[int, int]] = field(default_factory=set)

    @property
    def roles(self) -> tuple[str, ...]:
        """The agent's own roles, narrowed by what it asks for. Asked for but not its own: nothing fits."""
        asked = tuple(self.body.roles or ())
        if not self.caller.roles or not asked:
            return asked or self.caller.roles
        both = tuple(role for role in asked if role in self.caller.roles)
        return both or ("-",)

    def claim_arguments(self, repositories: Sequence[Repository], now: datetime) -> list[Any]:
        request = ClaimRequest(self.caller.name, self.roles, self.token, self.is_first_check)
        return claim_arguments(request, repositories, now)

    def act(self, found: Sequence[Any], repositories: Sequence[Repository]) -> Answer | AgentGotOne | None:
        """Do what a claim asks for. Blocks on the database and GitHub. None: ask Redis again."""
        now = timezone.now()
        kind = found[0]
        if kind == "unbuilt":
            rebuild_if_needed(repositories[int(found[1]) - 1], now)
            return None
        if kind == "finish":
            self.finish(repositories[int(found[1]) - 1], [int(number) for number in found[2:]], now)
            return None
        return self.assign(self.claim(found, repositories))

    def claim(self, found: Sequence[Any], repositories: Sequence[Repository]) -> Claim:
        """What Redis has claimed for this request."""
        self.is_first_check = False
        self.token = secrets.token_hex(8)
        repository, number, task_type = (
            repositories[int(found[1]) - 1],
            int(found[2]),
            TaskType(json.loads(found[3])["t"]),
        )
        return Claim(repository, number, task_type, self.caller.name, self.roles, self.body.request_id)

    def assign(self, claim: Claim) -> Answer | AgentGotOne | None:
        """None: this issue was skipped, ask Redis again."""
        try:
            outcome = assign_claim(claim, directory.known(claim.agent_name))
        except OutsideError as error:
            log.warning("assignment undone", issue=claim.number, agent=claim.agent_name, error=str(error))
            message = f"GitHub did not take the assignment: {error.message}"
            return problem(502, "github_failed", message, int(error.retry_after_seconds or 30))
        if isinstance(outcome, Assigned):
            return Answer(200, outcome.answer)
        if isinstance(outcome, AgentBusy):
            return AgentGotOne()
        log.info("candidate skipped", issue=claim.number, reason=str(outcome.reason))
        return None

    def finish(self, repository: Repository, numbers: list[int], now: datetime) -> None:
        """End what this agent had. One failure does not stop the others."""
        untried = [number for number in dict.fromkeys(numbers) if (repository.pk, number) not in self.tried]
        for number in untried:
            self.tried.add((repository.pk, number))
            try:
                finish_previous(repository, number, self.caller.name, now)
            except OutsideError as error:
                log.warning(
                    "previous task not finished", issue=number, agent=self.caller.name, error=str(error)
                )
        if not untried:
            # What is left could not be finished now; it does not keep the agent from new work.
            self.is_first_check = False

    def replay(self) -> Answer | bool:
        """The answer this request id was given before; True: it is still being made; False: there is none."""
        assignment = (
            Assignment.objects.filter(agent__name=self.caller.name, request_id=self.body.request_id)
            .only("state", "answer")
            .first()
        )
        if assignment is None:
            return False
        if assignment.state == AssignmentState.CLAIMING:
            return True
        return Answer(200, {**assignment.answer, "state": assignment.state})


def refusal_before_claim() -> Answer | None:
    if settings.BROKER.github.source is Source.OFF:
        return problem(
            503, "github_off", "GitHub is not configured: set GITHUB_REPOSITORY and GITHUB_TOKEN.", 60
        )
    return None


def maintenance_answer(value: str) -> Answer:
    reason = parse_flag(value).reason
    return problem(503, "maintenance", f"Maintenance: {reason}" if reason else "Maintenance.", 60)


def redis_down_answer() -> Answer:
    return problem(503, "redis_down", "Redis does not answer; please come back.", 5)


def database_down_answer() -> Answer:
    return problem(503, "database_down", "The database does not take this now; please come back.", 5)


def stopping_answer() -> Answer:
    return problem(503, "stopping", "The server is stopping; please come back.", 5)


def nothing_answer(timeout: float) -> Answer:
    return Answer(204, retry_after_seconds=5 if timeout == 0 else 1)
