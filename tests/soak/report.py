"""The figures of a soak as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.soak.conductor import Outcome
from tests.soak.gauges import MEBIBYTE, Gauges, Lifetime
from tests.soak.ledger import Ledger


def listed(counts: Mapping[str, Any]) -> str:
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


def report(outcome: Outcome, ledger: Ledger, gauges: Gauges) -> str:
    lines = [
        "",
        f"Faults for {outcome.seconds:.0f} s, settled in {outcome.quiet_seconds:.0f} s.",
        f"Faults carried out: {ledger.faults.total()}: {listed(ledger.faults)}",
        f"Found nothing to break: {listed(ledger.missed)}",
        f"Agents: {ledger.tasks} tasks, {ledger.disconnects} hung up, {ledger.silences} fell silent",
        f"Answers: {listed(ledger.answers)}",
        f"Pollers: {listed(ledger.pollers)}",
        *(
            f"{name}: {listed(count) if isinstance(count, dict) else count}"
            for name, count in outcome.counts.items()
        ),
        "",
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
    ]
    if outcome.broken:
        lines += [f"BROKEN ({len(outcome.broken)}):", *(f"  {text}" for text in outcome.broken)]
    else:
        lines.append("Nothing is broken: every invariant holds.")
    return "\n".join(lines)
