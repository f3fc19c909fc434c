"""Who is calling the agent API: from which address, how often, and with whose token.

Every call passes through here first, whether :mod:`tasks.agents_api.entry` or django-ninja serves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest

from broker_project.lib.config.access import Rate
from broker_project.lib.rate_limits import Address, TooManyRequests, address_of, limits
from tasks.agents_api.agent_cache import AgentCache, agent_cache
from tasks.agents_api.answers import Refused, problem
from tasks.models import Agent


@dataclass(frozen=True)
class Caller:
    """``agent`` is None for a name that the database does not know yet, which only the open mode allows."""

    name: str
    agent: Agent | None = None
    has_token: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.agent.roles) if self.agent else ()


def identify(authorization: str, agent_id: str | None, agents: AgentCache = agent_cache) -> Caller:
    """Who sent this ``Authorization`` header. Raises Refused with 401 or 403.

    With tokens the token decides, and a different ``agent_id`` beside it is refused. In open mode the id is enough,
    and an unknown token is ignored.
    """
    scheme, _, token = authorization.partition(" ")
    agent = None
    if scheme.lower() == "bearer" and token.strip():
        agent = agents.by_token(token.strip())
    has_token = agent is not None
    if agent is None and settings.BROKER.agent_auth != "open":
        raise Refused(problem(401, "unauthorised", "Send the agent's token as a bearer token."))
    if agent is None:
        agent = agents.by_name(agent_id or "")
    if agent is None:
        return Caller(agent_id or "")
    if not agent.is_enabled:
        raise Refused(problem(403, "agent_disabled", "This agent is switched off."))
    if has_token and agent_id is not None and agent_id != agent.name:
        raise Refused(problem(403, "wrong_agent", "The token belongs to another agent."))
    return Caller(agent.name, agent, has_token)


@dataclass(slots=True)
class Visitor:
    """A call whose address has been counted, before it is known who it is."""

    address: Address
    authorization: str

    def identify(self, agent_id: str | None) -> Caller:
        """Who is calling, counted. ``agent_cache`` must be fresh. Raises Refused with 401, 403 or 429.

        A good token is never refused for bad ones from the same address: one agent with an old token must not stop a
        fleet behind one address.
        """
        try:
            caller = identify(self.authorization, agent_id)
        except Refused as refused:
            if refused.answer.status == 401:
                self.count(Rate.REFUSED)
            raise
        if caller.has_token:
            self.count(Rate.AGENT, caller.name)
        return caller

    def check_still_allowed(self, name: str) -> None:
        """Raises Refused if the agent of that name may not ask any more. Counts nothing."""
        identify(self.authorization, name)

    def count(self, kind: Rate, key: str = "") -> None:
        if self.address.is_exempt:
            return
        try:
            limits().count(kind, self.address, key)
        except TooManyRequests as error:
            seconds = error.retry_after_seconds
            message = f"Too many requests; come back in {seconds} s."
            raise Refused(problem(429, "too_many_requests", message, seconds)) from None


def visitor_from_scope(scope: dict[str, Any]) -> Visitor:
    """For a call to the ASGI entry. Raises Refused with 429."""
    client = scope.get("client")
    authorization, forwarded = "", ""
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value.decode("latin-1")
        elif name == b"x-forwarded-for":  # several headers are one list
            forwarded += "," + value.decode("latin-1") if forwarded else value.decode("latin-1")
    visitor = Visitor(limits().addresses.find(client[0] if client else "", forwarded), authorization)
    visitor.count(Rate.ADDRESS)
    return visitor


def visitor_from_request(request: HttpRequest) -> Visitor:
    """For a call through Django. Raises Refused with 429."""
    visitor = Visitor(address_of(request), request.headers.get("Authorization", ""))
    visitor.count(Rate.ADDRESS)
    return visitor
