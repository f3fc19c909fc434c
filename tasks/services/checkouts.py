"""One particular issue for one particular agent, through the same lock, index and assignment as any other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from broker_project.lib.errors import ActionRefused, OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis.client import redis_client, run_script
from broker_project.lib.redis.flags import parse_flag
from tasks.lifecycle import LIVE_STATES, AssignmentState, NotOffered, Offer, TaskType, why_not
from tasks.models import Agent, Assignment, Repository
from tasks.offers.candidates import find_candidate
from tasks.offers.index import CLAIM_ONE, claim_one_arguments
from tasks.services.assignment import AgentBusy, Assigned, Claim, Skipped, assign_claim

log = get_logger(__name__)


def check_out(
    repository: Repository,
    number: int,
    agent: Agent,
    request_id: str,
    now: datetime,
    task_type: TaskType | None = None,
) -> Assignment:
    """Assign the issue to the agent, or raise :class:`ActionRefused`. The same id gives the same assignment.

    The priority gate does not apply: whoever names an issue has chosen. All other rules of ``explain`` do.
    """
    earlier = Assignment.objects.filter(agent=agent, request_id=request_id).first()
    if earlier is not None:
        if earlier.state == AssignmentState.CLAIMING:
            raise ActionRefused("This checkout is still being made.", code="being_assigned", is_final=False)
        return earlier
    offer = offer_of(repository, number)
    if reason := why_not(offer, agent.roles, offer.priority, now):
        raise ActionRefused(f"Issue {number}: {reason}.", code="not_assignable")
    if task_type is not None and task_type is not offer.task_type:
        raise ActionRefused(f"Issue {number} is a {offer.task_type} task.", code="wrong_task_type")
    refuse_busy(agent)
    take_claim(repository, number, agent, now)
    try:
        claim = Claim(repository, number, offer.task_type, agent.name, tuple(agent.roles), request_id)
        outcome = assign_claim(claim, agent)
    except OutsideError as error:
        log.warning("checkout undone", issue=number, agent=agent.name, error=str(error))
        raise ActionRefused(
            f"GitHub did not take the assignment: {error.message}", code="github_failed", is_final=False
        ) from error
    if isinstance(outcome, Skipped):
        raise ActionRefused(f"Issue {number}: {outcome.reason}.", code="not_assignable")
    if isinstance(outcome, AgentBusy):
        refuse_busy(agent)
        raise ActionRefused(f"{agent.name} is being given another task.", code="agent_busy", is_final=False)
    assert isinstance(outcome, Assigned)
    return outcome.assignment


def offer_of(repository: Repository, number: int) -> Offer:
    candidate = find_candidate(repository, number)
    if candidate is None:
        raise ActionRefused(f"There is no open issue {number}.", code="unknown_issue")
    verdict = candidate.verdict
    if isinstance(verdict, NotOffered):
        code = "already_checked_out" if candidate.facts.is_taken else "not_assignable"
        raise ActionRefused(f"Issue {number}: {verdict.reason}.", code=code)
    return verdict


def refuse_busy(agent: Agent) -> None:
    live = Assignment.objects.filter(agent=agent, state__in=LIVE_STATES).first()
    if live is not None:
        raise ActionRefused(f"{agent.name} works on issue {live.number}.", code="agent_busy")


def take_claim(repository: Repository, number: int, agent: Agent, now: datetime) -> None:
    """Lock the issue for the agent and take it off the index. Raises :class:`ActionRefused`."""
    arguments = claim_one_arguments(repository, number, agent.name, secrets.token_hex(8), now)
    found: Sequence[Any] = run_script(redis_client(), CLAIM_ONE, *arguments)
    if found[0] == "maintenance":
        reason = parse_flag(str(found[1])).reason
        raise ActionRefused(f"Maintenance: {reason}" if reason else "Maintenance.", code="maintenance")
    if found[0] == "locked":
        raise ActionRefused(f"Issue {number} is being assigned to {found[1]}.", code="locked")
