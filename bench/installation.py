"""An installation of the product with open issues, its servers, and the requests that agents send to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Any

from bench.environment import Environment, Stores
from bench.processes import BenchFailed, CommandProcess, Server
from bench.round_trips import RoundTripCounter

REQUEST_TASK = "/api/v1/request-task"
OFFERED = ["P0", "BACKENDCODER"]
OTHERS = ["P1", "UIUX"]
ROLE = "BACKENDCODER"
NO_SUCH_ROLE = "DOCWRITER"  # nothing is ever on offer to this one
FIRST_NEW_ISSUE = 1_000_000


class Installation:
    """So many open issues, some of them on offer to ``ROLE``, and agents that the database knows."""

    def __init__(
        self,
        environment: Environment,
        github: Server,
        issues: int,
        offered: int,
        *,
        agents: int,
        minutes_apart: float,
    ) -> None:
        self.environment = environment
        self.github = github
        self.issues = issues
        self.stores: Stores = environment.stores(f"issues-{issues}", github.url)
        self.worker: CommandProcess = environment.worker(self.stores)
        self.worker.ask("fill_issues", first=1, count=issues - offered, labels=OTHERS)
        self.worker.ask("fill_issues", first=FIRST_NEW_ISSUE, count=offered, labels=OFFERED)
        self.worker.ask("fill_agents", prefix="agent-", count=agents, minutes_apart=minutes_apart)
        self.worker.ask("build")
        self.known_agents = agents
        self._next_issue = FIRST_NEW_ISSUE + offered
        self._agents = count(0)

    @cached_property
    def product(self) -> Server:
        return self.environment.product(self.stores)

    @cached_property
    def counted(self) -> tuple[Server, RoundTripCounter]:
        return self.environment.counted(self.stores)

    def others(self) -> dict[str, Any]:
        """The processes beside the server whose CPU time is shown."""
        return {"redis": self.stores.redis_program, "github": self.github}

    def agents(self, number: int) -> list[str]:
        """Agents that the database knows and that have not asked for anything yet."""
        taken = [next(self._agents) for _ in range(number)]
        if taken and taken[-1] >= self.known_agents:
            raise BenchFailed("there are no agents left")
        return [f"agent-{n:05}" for n in taken]

    def replace(self, gone: list[int]) -> None:
        """Close these issues and offer as many new ones: the number of open issues stays the same."""
        self.offer(len(gone), gone)

    def offer(self, number: int, gone: Sequence[int] = ()) -> int:
        """New issues; returns how many of them came on offer."""
        first = self.next_numbers(number)
        offered: int = self.worker.ask(
            "replace_issues", gone=list(gone), first=first, count=number, labels=OFFERED
        )
        return offered

    def next_numbers(self, number: int) -> int:
        """The first of so many unused issue numbers."""
        self._next_issue += number
        return self._next_issue - number


def ask_for(
    agents: list[str], role: str, timeout: float = 0, path: str = REQUEST_TASK
) -> list[dict[str, Any]]:
    """A request for a task by each agent, as :mod:`bench.load` sends it."""
    return [
        {"path": path, "body": {"agent_id": agent, "timeout": timeout, "roles": [role]}} for agent in agents
    ]


def expect(statuses: dict[str, int], wanted: str, what: str) -> None:
    """A round with other answers measured something else."""
    if set(statuses) != {wanted}:
        raise BenchFailed(f"{what}: answers {statuses}, not only {wanted}")
