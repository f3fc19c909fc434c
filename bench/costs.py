"""What one operation costs in round trips, Redis commands and database statements, counted one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import sleep
from typing import Any

from bench.figures import Result
from bench.installation import Installation
from bench.processes import Server

QUERIES = {"SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH"}
WRITES = QUERIES - {"SELECT", "WITH"}
TRANSACTIONS = {"BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK"}
SETTLE_SECONDS = 0.02
QUERIES_PATH = "/-/bench/queries"  # of bench.counted, which cannot be imported without Django

Operation = Callable[[Server], None]


@dataclass(frozen=True)
class Cost:
    """Medians over the operations, so that a timer in the background does not show."""

    round_trips: float
    queries: float
    writes: float
    transactions: float
    commands: float
    by_command: dict[str, float]
    statements: list[str]


def count_cost(installation: Installation, operations: list[Operation]) -> Cost:
    """Run each operation alone and compare the counters before and after it."""
    server, round_trips = installation.counted
    found: list[tuple[int, Counter[str]]] = []
    commands_before = installation.stores.commands()
    statements: list[str] = []
    for operation in operations:
        trips, queries = round_trips.count, Counter(query_counts(server)["counts"])
        operation(server)
        sleep(SETTLE_SECONDS)  # what a server does after its answer belongs to the operation
        after = query_counts(server)
        spent = Counter(after["counts"])
        spent.subtract(queries)
        found.append((round_trips.count - trips, spent))
        statements = after["recent"][-spent.total() :] if spent.total() else []
    commands = Counter(installation.stores.commands())
    commands.subtract(commands_before)
    by_command = {name: n / len(operations) for name, n in commands.most_common() if n}

    def typical(words: set[str]) -> float:
        return median(sum(n for word, n in spent.items() if word in words) for _, spent in found)

    return Cost(
        round_trips=median(trips for trips, _ in found),
        queries=typical(QUERIES),
        writes=typical(WRITES),
        transactions=typical(TRANSACTIONS),
        commands=sum(by_command.values()),
        by_command=by_command,
        statements=statements,
    )


def query_counts(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = server.call("GET", QUERIES_PATH)[1]
    return answer


def note_cost(result: Result, what: str, cost: Cost) -> None:
    result.figure(f"{what}: Redis round trips", cost.round_trips)
    result.figure(f"{what}: Redis commands", cost.commands, note="also those inside scripts")
    result.figure(f"{what}: database queries", cost.queries, note=f"{cost.writes:g} of them write")
    result.figure(f"{what}: BEGIN, COMMIT, SAVEPOINT", cost.transactions, note="not counted as queries")
    result.details[what] = {"by_command": cost.by_command, "last_statements": cost.statements}
