"""What sections share. Installations and servers are made when the first section asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.environment import Environment, measured_round
from bench.figures import Round, Timing, summarise
from bench.installation import Installation
from bench.processes import CommandProcess, Server
from bench.scale import Scale


@dataclass
class Context:
    environment: Environment
    scale: Scale
    say: Callable[[str], None]

    @cached_property
    def github(self) -> Server:
        return self.environment.github()

    @cached_property
    def load(self) -> CommandProcess:
        return self.environment.load()

    @cached_property
    def few(self) -> Installation:
        return self._installation(self.scale.few_issues)

    @cached_property
    def many(self) -> Installation:
        return self._installation(self.scale.many_issues)

    @cached_property
    def bare(self) -> Server:
        """The bare claim, on the Redis of the small installation."""
        return self.environment.bare(self.few.stores)

    @cached_property
    def bare_assignment(self) -> Server:
        return self.environment.bare_assignment(self.few.stores, self.github)

    def _installation(self, issues: int) -> Installation:
        self.say(f"filling {issues:,} open issues")
        # Agents that came one by one, long ago. The waiting section measures a fleet that comes at once.
        return Installation(
            self.environment,
            self.github,
            issues,
            self.scale.offered,
            agents=self.scale.agents,
            minutes_apart=1,
        )

    def round(self, server: Server, installation: Installation, **given: Any) -> tuple[Round, Any]:
        return measured_round(self.load, server, installation.others(), **given)

    def compare(self, contenders: Mapping[str, Callable[[], Round]]) -> dict[str, Timing]:
        """Let the contenders take turns, and summarise the rounds of each."""
        rounds: dict[str, list[Round]] = {name: [] for name in contenders}
        for number, name in in_turn(self.scale.rounds, list(contenders)):
            self.say(f"round {number + 1} of {self.scale.rounds}, {name}")
            rounds[name].append(contenders[name]())
        return {name: summarise(name, found) for name, found in rounds.items()}


def in_turn(rounds: int, names: list[str]) -> Iterator[tuple[int, str]]:
    """A B C, then C B A: nobody always comes first."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number, name
