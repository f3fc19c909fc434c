"""What a section found: timings, single figures, and bars that are met or not. Values in, values out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0–1) of the values do not exceed. Raises on an empty list."""
    if not values:
        raise ValueError("a percentile of nothing")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Round:
    """One round of load: seconds, operations, percentiles, and the CPU seconds of every process that took part."""

    seconds: float
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0

    def cpu_us(self, process: str = "server") -> float:
        return 1e6 * self.cpu_seconds.get(process, 0.0) / self.count if self.count else 0.0

    def load_of(self, process: str) -> float:
        """How much of one core a process had in use."""
        return self.cpu_seconds.get(process, 0.0) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Timing:
    """Medians over the rounds of one contender."""

    name: str
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_us: float
    cores: dict[str, float]
    rounds: int
    operations: int

    @property
    def bottleneck(self) -> str:
        """The process that had most of a core in use."""
        return max(self.cores, key=lambda name: self.cores[name], default="")


def summarise(name: str, rounds: Sequence[Round]) -> Timing:
    if not rounds:
        raise ValueError(f"no rounds of {name}")
    processes = sorted({process for one in rounds for process in one.cpu_seconds})
    return Timing(
        name=name,
        rate=median(one.rate for one in rounds),
        p50_ms=median(one.p50_ms for one in rounds),
        p95_ms=median(one.p95_ms for one in rounds),
        p99_ms=median(one.p99_ms for one in rounds),
        cpu_us=median(one.cpu_us() for one in rounds),
        cores={process: median(one.load_of(process) for one in rounds) for process in processes},
        rounds=len(rounds),
        operations=sum(one.count for one in rounds),
    )


@dataclass(frozen=True)
class Figure:
    name: str
    value: float | str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A figure and its limit. A figure of None could not be measured, and does not meet the bar."""

    name: str
    figure: float | None
    limit: float
    is_at_least: bool = False
    unit: str = ""
    note: str = ""

    @property
    def is_met(self) -> bool:
        if self.figure is None:
            return False
        return self.figure >= self.limit if self.is_at_least else self.figure <= self.limit

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "NOT MEASURED"
        return "met" if self.is_met else "NOT MET"

    @property
    def shown_figure(self) -> str:
        """With more digits where rounding would make it look equal to its limit."""
        text = shown(self.figure)
        is_same = self.figure is None or self.figure == self.limit or text != shown(self.limit)
        return text if is_same else f"{self.figure:.4g}"

    @property
    def rule(self) -> str:
        return f"{'≥' if self.is_at_least else '≤'} {shown(self.limit)}{self.unit and ' ' + self.unit}"


@dataclass
class Result:
    """Everything one section found."""

    section: str
    seconds: float = 0.0
    timings: list[Timing] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def figure(self, name: str, value: float | str, unit: str = "", note: str = "") -> None:
        self.figures.append(Figure(name, value, unit, note))

    def at_least(
        self, name: str, figure: float | None, limit: float, *, unit: str = "", note: str = ""
    ) -> None:
        self.bars.append(Bar(name, figure, limit, True, unit, note))

    def at_most(
        self, name: str, figure: float | None, limit: float, *, unit: str = "", note: str = ""
    ) -> None:
        self.bars.append(Bar(name, figure, limit, False, unit, note))

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["bars"] = [{**asdict(bar), "verdict": bar.verdict} for bar in self.bars]
        return document


def ratio(part: float, whole: float) -> float | None:
    """None where there is nothing to compare with."""
    return part / whole if whole else None


def shown(value: float | str | None) -> str:
    """A figure with its significant digits."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if value == 0 or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
