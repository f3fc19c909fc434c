"""The figures of a run as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.soak.chaos import OUTLASTING_SECONDS, Figures
from tests.soak.conductor import Outcome
from tests.soak.gauges import MEBIBYTE, Gauges, Lifetime
from tests.soak.idleness import by_kind, middle_and_worst
from tests.soak.ledger import Ledger

IDLE_SECONDS = (5, 15, 60, 300)
PROMISED_SECONDS = 15.0  # from the end of a fault to the next task
LONGEST_SHOWN = 5


def listed(counts: Mapping[Any, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def life_line(life: Lifetime) -> str:
    if life.warm is None or life.last is None:
        return f"  {life.role:16} lived {life.seconds:5.0f} s: not long enough to say"
    hours = max(life.last.at - life.warm.at, 1.0) / 3600
    return (
        f"  {life.role:16} lived {life.seconds:5.0f} s: memory {life.warm.rss / MEBIBYTE:6.1f} →"
        f" {life.last.rss / MEBIBYTE:6.1f} MB ({life.growth / MEBIBYTE / hours:+.1f} MB an hour,"
        f" highest {life.highest_rss / MEBIBYTE:.1f}), files {life.warm.files} → {life.last.files},"
        f" threads {life.warm.threads} → {life.last.threads}"
    )


def head(outcome: Outcome, ledger: Ledger) -> list[str]:
    return [
        "",
        f"Faults for {outcome.seconds:.0f} s, settled in {outcome.quiet_seconds:.0f} s.",
        f"Faults carried out: {ledger.faults.total()}: {listed(ledger.faults)}",
        f"Found nothing to break: {listed(ledger.missed)}",
        f"Agents: {len(ledger.tasks)} tasks, {len(ledger.endings)} endings confirmed,"
        f" {ledger.disconnects} hung up, {ledger.silences} fell silent",
        f"Answers: {listed(ledger.answers)}",
        f"Pollers: {listed(ledger.pollers)}",
        *(
            f"{name}: {listed(count) if isinstance(count, dict) else count}"
            for name, count in outcome.counts.items()
        ),
        "",
    ]


def verdict(outcome: Outcome) -> list[str]:
    if outcome.broken:
        return [f"BROKEN ({len(outcome.broken)}):", *(f"  {text}" for text in outcome.broken)]
    return ["Nothing is broken: every invariant holds."]


def report(outcome: Outcome, ledger: Ledger, gauges: Gauges) -> str:
    """Of a soak."""
    lines = [
        *head(outcome, ledger),
        "The longest-lived process of each kind, warm and at the end:",
        *(life_line(life) for life in sorted(gauges.longest(), key=lambda one: one.role)),
        f"  started in all: {listed(gauges.starts())}; zombie processes left: {outcome.zombie_processes}",
        "",
        "Redis keys without an end:",
        *(
            f"  {row.count:6} {row.pattern}{'' if row.is_allowed else '   NOT ALLOWED by the registry'}"
            for row in outcome.keys
        ),
        "",
        *verdict(outcome),
    ]
    return "\n".join(lines)


def chaos_report(outcome: Outcome, ledger: Ledger, figures: Figures) -> str:
    lines = [
        *head(outcome, ledger),
        "Seconds from the end of a fault to the next task (middle, worst), and the longest time without one:",
        *recovery_lines(figures),
        "",
        *idle_lines(figures),
        "",
        f"Completed by the agent's next request, without a word about it: {figures.unreported}",
        f"Requests that outlasted their timeout by more than {OUTLASTING_SECONDS:.0f} s: {figures.outlasting}",
        "",
        *verdict(outcome),
    ]
    return "\n".join(lines)


def recovery_lines(figures: Figures) -> list[str]:
    lines = []
    for name, group in by_kind(figures.recoveries).items():
        middle, worst = middle_and_worst(one.seconds for one in group)
        _, longest = middle_and_worst(one.without_tasks for one in group)
        mark = f"   over the {PROMISED_SECONDS:.0f} s promised" if worst > PROMISED_SECONDS else ""
        lines.append(f"  {name:20} {len(group):3} times {middle:6.1f} {worst:6.1f}   {longest:6.1f}{mark}")
    return lines


def idle_lines(figures: Figures) -> list[str]:
    """How many agents, for how long."""
    total = sum(one.seconds for one in figures.idle)
    available = figures.seconds_with_work * figures.agents
    lines = [
        f"Without a task while there was work: {total:.0f} of {available:.0f} agent-seconds"
        f" ({100 * total / available if available else 0:.1f} %). In one go for more than"
    ]
    for seconds in IDLE_SECONDS:
        longer = [one for one in figures.idle if one.seconds > seconds]
        agents = len({one.agent for one in longer})
        lines.append(f"  {seconds:4} s: {agents:3} of {figures.agents} agents, {len(longer)} times")
    lines += [
        f"  the longest: {one.agent} for {one.seconds:.0f} s,"
        f" {one.began - figures.began_at:.0f} s after the first fault"
        for one in figures.idle[:LONGEST_SHOWN]
    ]
    return lines
