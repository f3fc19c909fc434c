"""One particular issue for one particular agent, through the same lock, index and assignment as any other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis.client import redis_client, run_script
from broker_project.lib.redis.flags import parse_flag
from tasks.lifecycle import LIVE_STATES, AssignmentState, NotOffered, Offer, TaskType, why_not
from tasks.models import Agent, Assignment, Repository
from tasks.offers.candidates import find_candidate
from tasks.offers.index import CLAIM_ONE, claim_one_arguments
from tasks.services.assignment import AgentBusy, Assigned, Claim, Skipped, assign_claim

log = get_logger(__name__)


class CheckoutRefused(Exception):
    """``is_final`` is false where the same request may succeed in a moment."""

    def __init__(self, code: str, message: str, *, is_final: bool = True) -> None:
        super().__init__(message)
        self.code, self.message, self.is_final = code, message, is_final


def check_out(
    repository: Repository,
    number: int,
    agent: Agent,
    request_id: str,
    now: datetime,
    task_type: TaskType | None = None,
) -> Assignment:
    """Assign the issue to the agent, or raise :class:`CheckoutRefused`. The same id gives the same assignment.

    The priority gate does not apply: whoever names an issue has chosen. All other rules of ``explain`` do.
    """
    earlier = Assignment.objects.filter(agent=agent, request_id=request_id).first()
    if earlier is not None:
        if earlier.state == AssignmentState.CLAIMING:
            raise CheckoutRefused("being_assigned", "This checkout is still being made.", is_final=False)
        return earlier
    offer = offer_of(repository, number)
    if reason := why_not(offer, agent.roles, offer.priority, now):
        raise CheckoutRefused("not_assignable", f"Issue {number}: {reason}.")
    if task_type is not None and task_type is not offer.task_type:
        raise CheckoutRefused("wrong_task_type", f"Issue {number} is a {offer.task_type} task.")
    refuse_busy(agent)
    take_claim(repository, number, agent, now)
    try:
        claim = Claim(repository, number, offer.task_type, agent.name, tuple(agent.roles), request_id)
        outcome = assign_claim(claim, agent)
    except OutsideError as error:
        log.warning("checkout undone", issue=number, agent=agent.name, error=str(error))
        raise CheckoutRefused(
            "github_failed", f"GitHub did not take the assignment: {error.message}", is_final=False
        ) from error
    if isinstance(outcome, Skipped):
        raise CheckoutRefused("not_assignable", f"Issue {number}: {outcome.reason}.")
    if isinstance(outcome, AgentBusy):
        refuse_busy(agent)
        raise CheckoutRefused("agent_busy", f"{agent.name} is being given another task.", is_final=False)
    assert isinstance(outcome, Assigned)
    return outcome.assignment


def offer_of(repository: Repository, number: int) -> Offer:
    candidate = find_candidate(repository, number)
    if candidate is None:
        raise CheckoutRefused("unknown_issue", f"There is no open issue {number}.")
    verdict = candidate.verdict
    if isinstance(verdict, NotOffered):
        code = "already_checked_out" if candidate.facts.is_taken else "not_assignable"
        raise CheckoutRefused(code, f"Issue {number}: {verdict.reason}.")
    return verdict


def refuse_busy(agent: Agent) -> None:
    live = Assignment.objects.filter(agent=agent, state__in=LIVE_STATES).first()
    if live is not None:
        raise CheckoutRefused("agent_busy", f"{agent.name} works on issue {live.number}.")


def take_claim(repository: Repository, number: int, agent: Agent, now: datetime) -> None:
    """Lock the issue for the agent and take it off the index. Raises :class:`CheckoutRefused`."""
    arguments = claim_one_arguments(repository, number, agent.name, secrets.token_hex(8), now)
    found: Sequence[Any] = run_script(redis_client(), CLAIM_ONE, *arguments)
    if found[0] == "maintenance":
        reason = parse_flag(str(found[1])).reason
        raise CheckoutRefused("maintenance", f"Maintenance: {reason}" if reason else "Maintenance.")
    if found[0] == "locked":
        raise CheckoutRefused("locked", f"Issue {number} is being assigned to {found[1]}.")
