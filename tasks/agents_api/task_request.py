"""One request for a task: claim in Redis, assign, or wait and claim again, until there is an answer.

Waiting costs no thread. What may block (the database, GitHub) runs in the hub's pool.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils import timezone

from broker_project.lib.config.dynamic import LONG_POLL_SECONDS, value_of
from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from tasks.agents_api import answers
from tasks.agents_api.answers import Answer
from tasks.agents_api.authentication import Caller, Visitor
from tasks.agents_api.long_poll import Hub, Waiter, Woken
from tasks.agents_api.schemas import RequestTask
from tasks.lifecycle import AssignmentState, TaskType
from tasks.models import Assignment, Repository
from tasks.offers.index import CLAIM, ClaimRequest, claim_arguments
from tasks.offers.projector import rebuild_if_needed
from tasks.services.assignment import AgentBusy, Assigned, Claim, assign_claim
from tasks.services.leases import finish_previous

log = get_logger(__name__)

MAX_CLAIMS = 50  # claims of one request before it waits again
REPLAY_LOOK_SECONDS = 0.2
# A repeated request waits so long for the first one's answer, however short its own timeout. After a 204 the agent
# would ask anew, and that would end the task it never heard of.
REPLAY_WAIT_SECONDS = 60.0


@dataclass(slots=True)
class TaskRequest:
    hub: Hub
    visitor: Visitor
    caller: Caller
    body: RequestTask
    is_first_check: bool = True
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    tried: set[tuple[int, int]] = field(default_factory=set)

    @property
    def timeout_seconds(self) -> float:
        if "timeout" in self.body.model_fields_set:
            return float(self.body.timeout or 0)
        return float(value_of(LONG_POLL_SECONDS))

    @property
    def roles(self) -> tuple[str, ...]:
        """The agent's own roles, narrowed by what it asks for. Asked for but not its own: nothing fits."""
        asked = tuple(self.body.roles or ())
        if not self.caller.roles or not asked:
            return asked or self.caller.roles
        both = tuple(role for role in asked if role in self.caller.roles)
        return both or ("-",)

    async def answer(self, waiter: Waiter, timeout_seconds: float) -> Answer | None:
        """A task, or why there is none. None if the client has gone. Raises Refused, RedisError, OperationalError."""
        deadline = self.hub.loop.time() + timeout_seconds
        if replayed := await self.replayed():
            return replayed
        while not waiter.is_gone:
            answer = await self.claim_and_act(timeout_seconds)
            if answer is not None:
                return answer
            self.is_first_check = False
            remaining_seconds = deadline - self.hub.loop.time()
            woken = Woken.TIMEOUT
            if remaining_seconds > 0:
                woken = await self.hub.wait(waiter, remaining_seconds)
            if woken in (Woken.TIMEOUT, Woken.CLOSING):
                return await self.replayed() or answers.nothing(timeout_seconds)
            if woken is Woken.REDIS:
                return answers.redis_down()
            # Its token may have been revoked while it waited.
            await self.hub.refresh_agents()
            self.visitor.check_still_allowed(self.caller.name)
        return None

    async def claim_and_act(self, timeout_seconds: float) -> Answer | None:
        """Claim until there is an answer. None if nothing is on offer."""
        repositories = await self.hub.repositories()
        for _ in range(MAX_CLAIMS):
            arguments = self.claim_arguments(repositories, timezone.now())
            found = await self.hub.run_script(CLAIM, arguments)
            if found[0] == "none":
                return None
            if found[0] == "maintenance":
                return answers.maintenance(found[1])
            outcome = await self.hub.in_thread(self.act, found, repositories)
            if isinstance(outcome, AgentBusy):
                # Another request of the same agent has the task; if it has the same id, this one returns it, too.
                return await self.replayed() or answers.nothing(timeout_seconds)
            if outcome is not None:
                return outcome
        return None

    def claim_arguments(self, repositories: Sequence[Repository], now: datetime) -> list[Any]:
        request = ClaimRequest(self.caller.name, self.roles, self.token, self.is_first_check)
        return claim_arguments(request, repositories, now)

    async def replayed(self) -> Answer | None:
        """The task of an earlier request with this id. Waits for one that is still being assigned."""
        if self.body.request_id is None:
            return None
        give_up_at = self.hub.loop.time() + REPLAY_WAIT_SECONDS
        while True:
            earlier = await self.hub.in_thread(self.earlier_assignment)
            if earlier is None:
                return None
            if earlier.state != AssignmentState.CLAIMING:
                return Answer(200, {**earlier.answer, "state": earlier.state})
            if self.hub.is_closing or self.hub.loop.time() >= give_up_at:
                return answers.nothing(0)
            await asyncio.sleep(REPLAY_LOOK_SECONDS)

    # In a thread of the pool

    def act(self, found: Sequence[Any], repositories: Sequence[Repository]) -> Answer | AgentBusy | None:
        """Do what the claim script asks for. None: claim again."""
        repository = repositories[int(found[1]) - 1]
        if found[0] == "unbuilt":
            rebuild_if_needed(repository, timezone.now())
            return None
        if found[0] == "finish":
            self.finish_previous(repository, [int(number) for number in found[2:]], timezone.now())
            return None
        self.is_first_check = False
        self.token = secrets.token_hex(8)
        return self.assign(self.claim(repository, found))

    def claim(self, repository: Repository, found: Sequence[Any]) -> Claim:
        number, task_type = int(found[2]), TaskType(json.loads(found[3])["t"])
        return Claim(repository, number, task_type, self.caller.name, self.roles, self.body.request_id)

    def assign(self, claim: Claim) -> Answer | AgentBusy | None:
        try:
            outcome = assign_claim(claim, self.caller.agent)
        except OutsideError as error:
            log.warning("assignment undone", issue=claim.number, agent=claim.agent_name, error=str(error))
            message = f"GitHub did not take the assignment: {error.message}"
            return answers.problem(502, "github_failed", message, int(error.retry_after_seconds or 30))
        if isinstance(outcome, Assigned):
            return Answer(200, outcome.answer)
        if isinstance(outcome, AgentBusy):
            return outcome
        log.info("candidate skipped", issue=claim.number, reason=str(outcome.reason))
        return None

    def finish_previous(self, repository: Repository, numbers: list[int], now: datetime) -> None:
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
            # What is left cannot be finished now. It does not keep the agent from new work.
            self.is_first_check = False

    def earlier_assignment(self) -> Assignment | None:
        return (
            Assignment.objects.filter(agent__name=self.caller.name, request_id=self.body.request_id)
            .only("state", "answer")
            .first()
        )
