"""The gate before the agent API: where a call comes from, how often, and whose token it carries.

Both carriers of the API, the lean path and django-ninja, let every call through here first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from broker_project.lib.config.access import Rate
from broker_project.lib.rate_limits import Address, TooManyRequests, address_of, limits
from tasks.agents_api.agent_cache import AccessRefused, Caller, directory


@dataclass(slots=True)
class Visitor:
    """A call on its way in."""

    address: Address
    authorization: str

    def identify(self, agent_id: str | None) -> Caller:
        """Who is calling, counted. ``directory`` must be fresh. Raises AccessRefused with 401, 403 or 429.

        A good token is never refused for the bad ones that came from its address before: a fleet behind one address
        must not stand still for one agent with an old token.
        """
        try:
            caller = directory.identify(self.authorization, agent_id)
        except AccessRefused as refused:
            if refused.status == 401:
                self.count(Rate.REFUSED)
            raise
        if caller.has_token:
            self.count(Rate.AGENT, caller.name)
        return caller

    def is_still(self, name: str) -> None:
        """Raises AccessRefused if the agent of that name may not ask any more. Counts nothing."""
        directory.identify(self.authorization, name)

    def count(self, kind: Rate, key: str = "") -> None:
        if self.address.is_exempt:
            return
        try:
            limits().count(kind, self.address, key)
        except TooManyRequests as error:
            raise too_many(error) from None


def too_many(error: TooManyRequests) -> AccessRefused:
    seconds = error.retry_after_seconds
    return AccessRefused(429, "too_many_requests", f"Too many requests; come back in {seconds} s.", seconds)


def enter(scope: dict[str, Any]) -> Visitor:
    """A call on the lean path. Raises AccessRefused with 429."""
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


def enter_by_django(request: HttpRequest) -> Visitor:
    """A call through Django. Raises AccessRefused with 429."""
    visitor = Visitor(address_of(request), request.headers.get("Authorization", ""))
    visitor.count(Rate.ADDRESS)
    return visitor
