"""How long agents had nothing to do although there was work, and how soon tasks were given again after a fault."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tests.soak.judge import Hold, Row
from tests.soak.ledger import FaultRun

Span = tuple[float, float]


@dataclass(frozen=True)
class Stretch:
    """A time without a task for one agent, while there was work."""

    agent: str
    began: float
    seconds: float


def times_with_work(opened: Mapping[int, float], rows: Iterable[Row], begin: float, end: float) -> list[Span]:
    """When there was an issue that had been opened and never handed out. Others would come on top of these."""
    taken: dict[int, float] = {}
    for row in rows:
        taken[row.issue] = min(taken.get(row.issue, row.created), row.created)
    changes = sorted(
        [(at, 1) for at in opened.values()] + [(taken[number], -1) for number in opened if number in taken]
    )
    found: list[Span] = []
    waiting, since = 0, begin
    for at, change in changes:
        if waiting > 0:
            found.append((max(since, begin), min(at, end)))
        waiting, since = waiting + change, at
    if waiting > 0:
        found.append((max(since, begin), end))
    return joined(span for span in found if span[0] < span[1])


def joined(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def gaps(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """What is left of a time without these spans."""
    found, at = [], begin
    for since, until in joined(spans):
        if since > at:
            found.append((at, min(since, end)))
        at = max(at, until)
    found.append((at, end))
    return [span for span in found if span[0] < span[1]]


def overlap(span: Span, others: Iterable[Span]) -> float:
    return sum(max(0.0, min(span[1], other[1]) - max(span[0], other[0])) for other in others)


def idle_stretches(
    agents: Collection[str], held: Iterable[Hold], work: Sequence[Span], begin: float, end: float
) -> list[Stretch]:
    busy: dict[str, list[Span]] = defaultdict(list)
    for hold in held:
        busy[hold.agent].append((hold.since, max(hold.since, hold.until)))
    found = [
        Stretch(agent, span[0], overlap(span, work))
        for agent in agents
        for span in gaps(busy[agent], begin, end)
    ]
    return sorted((one for one in found if one.seconds > 0), key=lambda one: -one.seconds)


@dataclass(frozen=True)
class Recovery:
    """After one fault. ``None``: no task was given any more."""

    name: str
    seconds: float | None  # from the end of the fault to the next new task in an agent's hands
    without_tasks: float | None  # the longest time without a new one, from before the fault to then


def recoveries(runs: Iterable[FaultRun], given: Iterable[float]) -> list[Recovery]:
    times = sorted(given)
    found = []
    for run in runs:
        following = bisect_right(times, run.ended)
        if following == len(times):
            found.append(Recovery(run.name, None, None))
            continue
        around = times[max(0, bisect_left(times, run.began) - 1) : following + 1]
        longest = max((b - a for a, b in pairwise(around)), default=0.0)
        found.append(Recovery(run.name, times[following] - run.ended, longest))
    return found


def by_kind(found: Iterable[Recovery]) -> dict[str, list[Recovery]]:
    kinds: dict[str, list[Recovery]] = defaultdict(list)
    for one in found:
        kinds[one.name].append(one)
    return dict(sorted(kinds.items()))


def middle_and_worst(values: Iterable[float | None]) -> tuple[float, float]:
    """Infinite where there was no recovery."""
    found = [float("inf") if value is None else value for value in values]
    return median(found), max(found)
