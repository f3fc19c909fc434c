"""New items in one pass beside a raw executemany; a claim among few and among very many items."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.context import Context, in_turn
from bench.figures import Result, Round, percentile, ratio, summarise
from bench.processes import CommandProcess

PRODUCT = "items through the product"
RAW_ITEMS = "raw executemany, items alone"
RAW_ALL = "raw executemany, the same rows"


def run(context: Context) -> Result:
    result = Result("feeds")
    few = context.environment.worker(context.environment.stores("feeds-few"))
    insert(result, context, few)
    many = context.environment.worker(context.environment.stores("feeds-many"))
    claim(result, context, few, many)
    return result


def insert(result: Result, context: Context, worker: CommandProcess) -> None:
    count = context.scale.feed_items
    rounds: dict[str, list[Round]] = {PRODUCT: [], RAW_ITEMS: [], RAW_ALL: []}
    for number, name in in_turn(context.scale.feed_rounds, list(rounds)):
        context.say(f"{count:,} items, round {number + 1} of {context.scale.feed_rounds}, {name}")
        if name == PRODUCT:
            found = worker.ask("insert_product", first=0, count=count)
        else:
            found = worker.ask("insert_raw", first=0, count=count, with_details=name == RAW_ALL)
        each = 1000 * found["seconds"] / count
        rounds[name].append(
            Round(found["seconds"], count, each, each, each, {"server": found["cpu_seconds"]})
        )
    timings = {name: summarise(name, found) for name, found in rounds.items()}
    result.timings += timings.values()
    product = timings[PRODUCT].rate
    alone = ratio(product, timings[RAW_ITEMS].rate) or 0
    result.at_least(
        f"feeds: {count:,} new items against a raw executemany of the same rows",
        ratio(product, timings[RAW_ALL].rate),
        0.5,
        note=f"against the table items alone {alone:.2f}; "
        f"by CPU time {ratio(timings[RAW_ALL].cpu_us, timings[PRODUCT].cpu_us) or 0:.2f}",
    )


def claim(result: Result, context: Context, few: CommandProcess, many: CommandProcess) -> None:
    sizes = {context.scale.feed_rows_few: few, context.scale.feed_rows_many: many}
    for size, worker in sizes.items():
        context.say(f"filling {size:,} items")
        worker.ask("fill_items", count=size)
    part = max(5, context.scale.feed_claims // context.scale.feed_rounds)
    worst, worst_by_clock = 0.0, 0.0
    asked: dict[int, int] = {}
    for kind in ("pending", "screening"):
        times: dict[int, list[float]] = {size: [] for size in sizes}
        cpu: dict[int, list[float]] = {size: [] for size in sizes}
        for worker in sizes.values():  # warm up: prepared statements, pages of the file
            worker.ask("claim_items", count=3, pending=kind == "pending")
        for number, name in in_turn(context.scale.feed_rounds, [str(size) for size in sizes]):
            context.say(f"claiming, {kind}, round {number + 1} of {context.scale.feed_rounds}")
            found: dict[str, Any] = sizes[int(name)].ask("claim_items", count=part, pending=kind == "pending")
            times[int(name)] += found["times_ms"]
            cpu[int(name)] += found["cpu_ms"]
            asked[int(name)] = found["queries"]
        for size, spent in times.items():
            result.figure(
                f"claim, {kind}, {size:,} items",
                median(spent),
                "ms",
                f"p95 {percentile(spent, 0.95):.2f}; CPU {median(cpu[size]):.2f}; {asked[size]} queries",
            )
        small, large = sizes
        worst = max(worst, median(cpu[large]) / median(cpu[small]))
        worst_by_clock = max(worst_by_clock, median(times[large]) / median(times[small]))
    names = [f"{size:,}" for size in sizes]
    result.at_most(
        f"feeds: CPU of a claim with {names[1]} rows against {names[0]}",
        worst,
        1.2,
        unit="×",
        note=f"by the clock {worst_by_clock:.2f}×",
    )
    counts = list(asked.values())
    result.at_most("feeds: queries that more rows add to a claim", counts[1] - counts[0], 0)
    plans: list[str] = many.ask("claim_plans")
    result.details["plans"] = plans
    scans = [step for step in plans if is_whole_table(step)]
    result.at_most(
        "feeds: whole tables read or sorted to find an item", len(scans), 0, note="; ".join(scans)[:120]
    )


def is_whole_table(step: str) -> bool:
    """Whether a step of a plan grows with the items. There are few feeds, and always will be."""
    return "TEMP B-TREE" in step or (step.startswith("SCAN") and "feeds_feed " not in f"{step} ")
