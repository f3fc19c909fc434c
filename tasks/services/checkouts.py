"""One particular issue for one particular agent, through the same lock, index and assignment as any other."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.flags import parse_flag
from tasks.lifecycle import LIVE_STATES, AssignmentState, NotOffered, Offer, TaskType, classify, why_not
from tasks.models import Agent, Assignment, Repository
from tasks.offers.candidates import subjects
from tasks.offers.index import CLAIM_MEMORY_SECONDS, QUEUES, keys_of, review_delay
from tasks.services.assignment import AgentBusy, Assigned, Claim, Skipped, assign_claim

log = get_logger(__name__)

CLAIM_ONE = (Path(__file__).parents[1] / "offers" / "lua" / "claim_one.lua").read_text()


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
    subject = next(iter(subjects(repository, [number])), None)
    if subject is None:
        raise CheckoutRefused("unknown_issue", f"There is no open issue {number}.")
    verdict = classify(subject.facts, settings.BROKER.role_names, review_delay())
    if isinstance(verdict, NotOffered):
        code = "already_checked_out" if subject.facts.is_taken else "not_assignable"
        raise CheckoutRefused(code, f"Issue {number}: {verdict.reason}.")
    return verdict


def refuse_busy(agent: Agent) -> None:
    live = Assignment.objects.filter(agent=agent, state__in=LIVE_STATES).first()
    if live is not None:
        raise CheckoutRefused("agent_busy", f"{agent.name} works on issue {live.number}.")


def take_claim(repository: Repository, number: int, agent: Agent, now: datetime) -> None:
    """Lock the issue for the agent and take it off the index. Raises :class:`CheckoutRefused`."""
    found: Sequence[Any] = redis_client().eval(
        CLAIM_ONE, *claim_one_arguments(repository, number, agent, now)
    )
    if found[0] == "maintenance":
        reason = parse_flag(str(found[1])).reason
        raise CheckoutRefused("maintenance", f"Maintenance: {reason}" if reason else "Maintenance.")
    if found[0] == "locked":
        raise CheckoutRefused("locked", f"Issue {number} is being assigned to {found[1]}.")


def claim_one_arguments(repository: Repository, number: int, agent: Agent, now: datetime) -> list[Any]:
    """Number of keys, keys and arguments of ``claim_one.lua``."""
    own, keys = keyspace(), keys_of(repository)
    names = [own.key(k.FLAG_MAINTENANCE), own.key(k.TEMP, name=f"claim:{secrets.token_hex(8)}")]
    names.append(keys.key(k.ISSUE_LOCK, number=number))
    names += [keys.key(spec) for spec in (k.INDEX_ENTRIES, k.INDEX_WAITING, k.INDEX_CLAIMED)]
    names += [keys.key(k.QUEUE, priority=queue) for queue in QUEUES]
    stems = [keys.stem(spec) for spec in (k.INDEX_OFFER, k.INDEX_FLOAT)]
    return [
        len(names),
        *names,
        now.timestamp(),
        agent.name,
        k.ISSUE_LOCK_SECONDS,
        CLAIM_MEMORY_SECONDS,
        number,
        *stems,
    ]
