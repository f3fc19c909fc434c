"""What the ``mirin`` channel can be asked to do (seed 002), through the same services as the HTTP API.

Whoever may publish on this Redis is trusted: an ``agentId`` is taken at its word, there are no tokens here.
Keep the Redis of a broker to those who may speak for every agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError
from pydantic.alias_generators import to_camel

from broker_project.lib.errors import ActionRefused
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import redis_client
from tasks.agents_api.answers import Refused, check_github_is_on
from tasks.lifecycle import AssignmentState, NotOffered, TaskType
from tasks.models import Assignment, Repository
from tasks.offers.heartbeat import lease_expires_at
from tasks.offers.index import keys_of
from tasks.offers.projector import read_rows
from tasks.offers.redis_view import status_of
from tasks.reasons import Reason, ReasonCode
from tasks.services.admin_actions import release
from tasks.services.agents import agent_named, name_problem
from tasks.services.checkouts import check_out
from tasks.services.leases import (
    LeaseLost,
    complete_assignment,
    fail_assignment,
    release_assignment,
    restore_heartbeat,
    save_heartbeat,
)

PROCESS_ID = re.compile(r"issue-([1-9][0-9]{0,8})-(.{1,50})")
REQUEST_ID_PREFIX = "mirin:"  # the HTTP API's request ids are others

Fields = dict[str, Any]
IssueNumber = Annotated[StrictInt, Field(ge=1, le=2_000_000_000)]


class Incoming(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", str_max_length=50_000)


class OfIssue(Incoming):
    issue_number: IssueNumber


class OfProcess(Incoming):
    """Which agent on which issue: by ``processId``, or by ``issueNumber`` and ``agentId``."""

    process_id: StrictStr | None = None
    issue_number: IssueNumber | None = None
    agent_id: StrictStr | None = None

    def resolve(self) -> tuple[int, str]:
        """Issue and agent. Raises :class:`ActionRefused` if they are not said, or said in two ways."""
        number, agent = self.issue_number, self.agent_id
        if self.process_id is not None:
            match = PROCESS_ID.fullmatch(self.process_id)
            if match is None:
                raise ActionRefused(
                    "processId: a process is called issue-{number}-{agent}.", code="bad_request"
                )
            if number not in (None, int(match[1])) or agent not in (None, match[2]):
                raise ActionRefused(
                    "processId names another issue or agent than the rest.", code="bad_request"
                )
            number, agent = int(match[1]), match[2]
        if number is None or agent is None:
            raise ActionRefused("Name the processId, or issueNumber and agentId.", code="bad_request")
        if problem := name_problem(agent):
            raise ActionRefused(f"agentId: {problem}.", code="bad_request")
        return number, agent


class Checkout(OfProcess):
    task_type: Literal["development", "review", "fix"] | None = None


class Checkin(OfProcess):
    status: Literal["completed", "needs-review", "error", "failed", "released", "cancelled", "open"] = (
        "completed"
    )
    result: Any = None
    reason: StrictStr | None = None


class Beat(OfProcess):
    progress: Annotated[StrictStr, Field(max_length=2000)] | None = None


class Cleanup(Incoming):
    process_id: StrictStr


def checkout_issue(repository: Repository, asked: Checkout, request_id: str, now: datetime) -> Fields:
    number, name = asked.resolve()
    try:
        check_github_is_on()
    except Refused as refused:
        raise ActionRefused(str(refused), code=refused.code) from None
    agent = agent_named(name)
    if not agent.is_enabled:
        raise ActionRefused("This agent is switched off.", code="agent_disabled")
    wanted = TaskType(asked.task_type) if asked.task_type else None
    assignment = check_out(repository, number, agent, REQUEST_ID_PREFIX + request_id, now, wanted)
    if assignment.number != number:
        raise ActionRefused(
            f"This requestId belongs to the checkout of issue {assignment.number}.", code="bad_request"
        )
    return {**described(assignment), "task": assignment.answer}


def checkin_issue(repository: Repository, asked: Checkin, request_id: str, now: datetime) -> Fields:
    number, name = asked.resolve()
    assignment = last_of(repository, number, name)
    try:
        if asked.status in ("completed", "needs-review"):
            ended = complete_assignment(assignment, name, asked.result, None, now)
        elif asked.status in ("error", "failed"):
            reason = asked.reason or (asked.result if isinstance(asked.result, str) else "")
            ended = fail_assignment(assignment, name, reason or Reason.of(ReasonCode.CHECKED_IN_FAILED), now)
        else:
            ended = release_assignment(assignment, name, now)
    except LeaseLost:
        assignment.refresh_from_db()
        raise ActionRefused(
            f"Issue {number} is no longer with {name}: it was {assignment.state}.", code="not_owner"
        ) from None
    return described(ended)


def heartbeat(repository: Repository, asked: Beat, request_id: str, now: datetime) -> Fields:
    number, name = asked.resolve()
    assignment = last_of(repository, number, name)
    try:
        beaten = save_heartbeat(assignment.pk, name, asked.progress or "", now)
    except LeaseLost:
        raise ActionRefused(
            f"The lease is lost: the assignment is {assignment.state}.", code="lease_lost"
        ) from None
    restore_heartbeat(beaten, now)
    return {**described(beaten), "cancel": beaten.is_cancelled}


def get_issue_status(repository: Repository, asked: OfIssue, request_id: str, now: datetime) -> Fields:
    number = asked.issue_number
    (rows,) = read_rows(repository, [number], now)
    source = rows.issue or rows.pull
    if source is None:
        raise ActionRefused(f"There is no issue {number}.", code="unknown_issue")
    verdict = rows.candidate.verdict if rows.candidate is not None else None
    reason = verdict.reason if isinstance(verdict, NotOffered) else None
    if verdict is None:
        reason = Reason.of(ReasonCode.CLOSED)
    found: Fields = {
        "issueNumber": number,
        "title": source.title,
        "labels": source.labels,
        "url": source.html_url,
        "repository": repository.full_name,
        "reason": str(reason) if reason is not None else "",
    }
    return {**found, **(described(rows.live) if rows.live else {}), "status": str(status_of(rows)[0])}


def list_processing_issues(repository: Repository, asked: Incoming, request_id: str, now: datetime) -> Fields:
    live = Assignment.objects.filter(repository=repository, state=AssignmentState.LIVE)
    rows = live.select_related("agent", "repository").order_by("number")
    return {"issues": [described(assignment) for assignment in rows]}


def cleanup_process(repository: Repository, asked: Cleanup, request_id: str, now: datetime) -> Fields:
    """End a process's assignment as released, and forget it among the zombies."""
    number, name = OfProcess.model_validate({"processId": asked.process_id}).resolve()
    assignment = last_of(repository, number, name, "unknown_process")
    is_released = True
    try:
        release(assignment, who="mirin", now=now)
    except ActionRefused:
        is_released = False
    redis_client().srem(keys_of(repository).key(k.PROCESSES_ZOMBIES), asked.process_id)
    assignment.refresh_from_db()
    return {**described(assignment), "released": is_released}


Action = Callable[[Repository, Any, str, datetime], Fields]
ACTIONS: dict[str, tuple[type[Incoming], Action]] = {
    "checkout_issue": (Checkout, checkout_issue),
    "checkin_issue": (Checkin, checkin_issue),
    "heartbeat": (Beat, heartbeat),
    "get_issue_status": (OfIssue, get_issue_status),
    "list_processing_issues": (Incoming, list_processing_issues),
    "cleanup_process": (Cleanup, cleanup_process),
}


def perform(repository: Repository, document: Fields, now: datetime) -> Fields:
    """Do what a request asks for; what it returns goes into the response. Raises :class:`ActionRefused`."""
    name = document.get("action")
    if not isinstance(name, str) or name not in ACTIONS:
        raise ActionRefused(
            f"There is no such action; there are {', '.join(ACTIONS)}.", code="unknown_action"
        )
    model, action = ACTIONS[name]
    try:
        asked = model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ActionRefused(f"{place}: {first['msg']}.", code="bad_request") from error
    return action(repository, asked, str(document["requestId"]), now)


def described(assignment: Assignment) -> Fields:
    started = assignment.started_at or assignment.created_at
    found: Fields = {
        "issueNumber": assignment.number,
        "processId": assignment.process_id,
        "agentId": assignment.agent.name,
        "assignmentId": assignment.pk,
        "state": str(assignment.state),
        "taskType": str(assignment.task_type),
        "branch": assignment.branch,
        "startedAt": started.isoformat(),
        "lastHeartbeatAt": assignment.last_heartbeat_at.isoformat(),
    }
    if assignment.state == AssignmentState.LIVE:
        found["leaseExpiresAt"] = lease_expires_at(assignment.last_heartbeat_at).isoformat()
    return found


def live_on(repository: Repository, number: int) -> Assignment | None:
    rows = Assignment.objects.select_related("agent", "repository")
    return rows.filter(repository=repository, number=number, state=AssignmentState.LIVE).first()


def last_of(repository: Repository, number: int, agent: str, unknown: str = "not_checked_out") -> Assignment:
    """The agent's last assignment of the issue. :class:`ActionRefused` if it never had one, or another has it."""
    rows = Assignment.objects.select_related("agent", "repository")
    found = rows.filter(repository=repository, number=number, agent__name=agent).order_by("-id").first()
    if found is not None and found.state == AssignmentState.LIVE:
        return found
    holder = live_on(repository, number)
    if holder is not None:
        raise ActionRefused(f"Issue {number} is with {holder.agent.name}.", code="not_owner")
    if found is None:
        raise ActionRefused(f"{agent} has not checked out issue {number}.", code=unknown)
    return found
