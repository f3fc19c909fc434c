"""What sections share: filled installations and their servers, made when the first section asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from statistics import median
from time import sleep
from typing import Any

from bench.figures import Result, Round
from bench.scale import Scale
from bench.scene import BenchFailed, Scene, Server, Stores, Talker, measured_round
from bench.turns import TurnCounter

REQUEST_TASK = "/api/v1/request-task"
OFFERED = ["P0", "BACKENDCODER"]
OTHERS = ["P1", "UIUX"]
ROLE = "BACKENDCODER"
NO_SUCH_ROLE = "DOCWRITER"  # nothing is ever on offer to this one
QUERIES = {"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH"}
WRITES = QUERIES - {"SELECT", "WITH"}
FIRST_NEW_ISSUE = 1_000_000
SETTLE_SECONDS = 0.02
QUERIES_PATH = "/-/bench/queries"  # of bench.counted, which cannot be imported without Django


class Field:
    """An installation with so many open issues, some of them on offer to ``ROLE``."""

    def __init__(
        self,
        scene: Scene,
        github: Server,
        issues: int,
        offered: int,
        *,
        agents: int,
        minutes_apart: float,
    ) -> None:
        self.scene = scene
        self.github = github
        self.issues = issues
        self.stores: Stores = scene.stores(f"issues-{issues}", github.url)
        self.worker: Talker = scene.worker(self.stores)
        self.worker.ask("fill_issues", first=1, count=issues - offered, labels=OTHERS)
        self.worker.ask("fill_issues", first=FIRST_NEW_ISSUE, count=offered, labels=OFFERED)
        self.worker.ask("fill_agents", prefix="agent-", count=agents, minutes_apart=minutes_apart)
        self.built: dict[str, Any] = self.worker.ask("build")
        self.known_agents = agents
        self._next_issue = FIRST_NEW_ISSUE + offered
        self._agents = count(0)

    @cached_property
    def product(self) -> Server:
        return self.scene.product(self.stores)

    @cached_property
    def counted(self) -> tuple[Server, TurnCounter]:
        return self.scene.counted(self.stores)

    def others(self) -> dict[str, Any]:
        return {"redis": self.stores.redis_program, "github": self.github}

    def agents(self, number: int) -> list[str]:
        """Names that have not asked for anything yet, known to the database."""
        taken = [next(self._agents) for _ in range(number)]
        if taken and taken[-1] >= self.known_agents:
            raise BenchFailed("there are no agents left")
        return [f"agent-{n:05}" for n in taken]

    def replace(self, gone: list[int]) -> None:
        """As many new issues on offer as were handed out; the number of open ones stays."""
        self.offer(len(gone), gone)

    def offer(self, number: int, gone: Sequence[int] = ()) -> int:
        """New issues on offer; how many were."""
        first = self.next_numbers(number)
        offered: int = self.worker.ask(
            "replace_issues", gone=list(gone), first=first, count=number, labels=OFFERED
        )
        return offered

    def next_numbers(self, number: int) -> int:
        """The first of so many issue numbers that nobody has used yet."""
        self._next_issue += number
        return self._next_issue - number


@dataclass
class Stage:
    scene: Scene
    scale: Scale
    say: Callable[[str], None]

    @cached_property
    def github(self) -> Server:
        return self.scene.github()

    @cached_property
    def load(self) -> Talker:
        return self.scene.load()

    @cached_property
    def few(self) -> Field:
        return self._field(self.scale.few_issues, self.scale.offered)

    @cached_property
    def many(self) -> Field:
        return self._field(self.scale.many_issues, self.scale.offered)

    @cached_property
    def some(self) -> Field:
        """Enough on offer for a long round."""
        return self._field(self.scale.some_issues, self.scale.sustained)

    @cached_property
    def bare(self) -> Server:
        """The yardstick, on the Redis of the small installation."""
        return self.scene.bare(self.few.stores)

    @cached_property
    def plain(self) -> Server:
        """The same under a uvicorn without uvloop and httptools: a bare uvicorn."""
        return self.scene.bare(self.few.stores, "plain")

    @cached_property
    def bare_assignment(self) -> Server:
        return self.scene.bare_assignment(self.few.stores, self.github)

    def _field(self, issues: int, offered: int) -> Field:
        self.say(f"filling {issues:,} open issues")
        # Agents that came one by one, long ago: what a fleet that comes at once costs is the waiting section's.
        return Field(
            self.scene,
            self.github,
            issues,
            offered,
            agents=self.scale.agents,
            minutes_apart=1,
        )

    def round(self, server: Server, field: Field, **given: Any) -> tuple[Round, Any]:
        return measured_round(self.load, server, field.others(), **given)


@dataclass(frozen=True)
class Cost:
    """What one operation costs, counted one at a time: medians, so that a background look does not show."""

    round_trips: float
    queries: float
    writes: float
    transactions: float  # BEGIN, COMMIT, SAVEPOINT, RELEASE
    commands: float
    by_command: dict[str, float]
    statements: list[str]


def count_cost(field: Field, operations: list[Callable[[Server], None]]) -> Cost:
    """Run each operation alone and look at the counters between. The first few warm caches."""
    server, turns = field.counted
    found: list[tuple[int, Counter[str]]] = []
    before = field.stores.commands()
    statements: list[str] = []
    for operation in operations:
        trips, queries = turns.turns, Counter(query_counts(server)["counts"])
        operation(server)
        sleep(SETTLE_SECONDS)  # what a server does after its answer belongs to the operation, too
        after = query_counts(server)
        spent = Counter(after["counts"])
        spent.subtract(queries)
        found.append((turns.turns - trips, spent))
        statements = after["recent"][-sum(spent.values()) :] if sum(spent.values()) else []
    spent_commands = Counter(field.stores.commands())
    spent_commands.subtract(before)
    each = {name: n / len(operations) for name, n in spent_commands.items() if n}

    def typical(words: Callable[[str], bool]) -> float:
        return median(sum(n for word, n in spent.items() if words(word)) for _, spent in found)

    return Cost(
        round_trips=median(trips for trips, _ in found),
        queries=typical(lambda word: word in QUERIES),
        writes=typical(lambda word: word in WRITES),
        transactions=typical(lambda word: word in {"BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK"}),
        commands=sum(each.values()),
        by_command=dict(sorted(each.items(), key=lambda pair: -pair[1])),
        statements=statements,
    )


def query_counts(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = server.call("GET", QUERIES_PATH)[1]
    return answer


def note_cost(result: Result, what: str, cost: Cost) -> None:
    result.figure(f"{what}: Redis round trips", cost.round_trips)
    result.figure(f"{what}: Redis commands", cost.commands, note="those inside scripts included")
    result.figure(f"{what}: database queries", cost.queries, note=f"of them writes {cost.writes:g}")
    result.figure(f"{what}: BEGIN, COMMIT, SAVEPOINT", cost.transactions, note="not counted as queries")
    result.details[what] = {"by_command": cost.by_command, "last_statements": cost.statements}


def expect(statuses: dict[str, int], wanted: str, what: str) -> None:
    """A round that answered something else measured something else."""
    if set(statuses) != {wanted}:
        raise BenchFailed(f"{what}: answers {statuses}, not only {wanted}")


def ask_for(
    agents: list[str], role: str, timeout: float = 0, path: str = REQUEST_TASK
) -> list[dict[str, Any]]:
    return [
        {"path": path, "body": {"agent_id": agent, "timeout": timeout, "roles": [role]}} for agent in agents
    ]


def in_turn(rounds: int, names: list[str]) -> Iterator[tuple[int, str]]:
    """A B C, then C B A: nobody always comes first."""
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            yield number, name
