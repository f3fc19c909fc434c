"""The parts of the soak that decide something by themselves: what is planned, and what counts as broken."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from sandbox.faults import Faults
from tests.faults.records import Records
from tests.soak.__main__ import parse
from tests.soak.breaking import HANDS
from tests.soak.chaos import Figures
from tests.soak.conductor import Outcome
from tests.soak.gauges import Gauges, Lifetime, Reading, eternal_keys, keys_of_closed_issues
from tests.soak.idleness import Recovery, Stretch
from tests.soak.ledger import Ledger, forgotten_endings
from tests.soak.people import ADMIN_ACTIONS
from tests.soak.plan import (
    CHAOS,
    ENDINGS_SHARE,
    LIES,
    ONLY_POSTGRES,
    PARTS,
    STEADY_SECONDS,
    SYSTEMS,
    WEIGHTS,
    chaos_plan,
    plan,
)
from tests.soak.report import chaos_report, report

KEYS = Keyspace(RedisNames())


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(7, 10, 600) == plan(7, 10, 600)
    assert plan(7, 10, 600) != plan(8, 10, 600)


def test_a_long_plan_has_every_kind_in_its_time_and_order() -> None:
    found = plan(1, 10, 6000, is_postgres=True)
    assert {one.name for one in found} == set(WEIGHTS)
    times = [one.at for one in found]
    assert times == sorted(times)
    assert times[0] >= 10
    assert times[-1] < 6000


def test_no_part_is_ended_twice_before_its_supervisor_forgives() -> None:
    last: dict[str, float] = {}
    for one in plan(3, 0, 3000, is_postgres=True):
        if part := PARTS.get(one.name):
            assert one.at - last.get(part, -STEADY_SECONDS) >= STEADY_SECONDS - 0.01  # times are rounded
            last[part] = one.at
    assert set(last) == set(PARTS.values())
    assert max(last.values()) < 3000 * ENDINGS_SHARE, "what lives on shows what grows"


def test_sqlite_is_not_restarted() -> None:
    assert not ONLY_POSTGRES & {one.name for one in plan(5, 0, 3000)}


def test_every_kind_has_a_hand() -> None:
    assert set(WEIGHTS) | set(CHAOS) == set(HANDS) | set(ADMIN_ACTIONS)
    assert not set(HANDS) & set(ADMIN_ACTIONS)


def test_the_same_seed_gives_the_same_chaos() -> None:
    assert chaos_plan(7, 10, 600) == chaos_plan(7, 10, 600)
    assert chaos_plan(7, 10, 600) != chaos_plan(8, 10, 600)


def test_chaos_has_every_kind_once_before_any_comes_again() -> None:
    names = [one.name for one in chaos_plan(1, 10, 3000, is_postgres=True)]
    assert set(names[: len(CHAOS)]) == set(CHAOS)
    assert len(names) > 2 * len(CHAOS)


def test_chaos_faults_do_not_overlap() -> None:
    found = chaos_plan(3, 10, 600)
    assert all(one.at + one.facts.get("seconds", 0) < following.at for one, following in pairwise(found))
    assert found[-1].at < 600


def test_chaos_leaves_out_what_cannot_be_done_here() -> None:
    names = {one.name for one in chaos_plan(3, 0, 3000, skipped={"disk-full": "not root"})}
    assert names == set(CHAOS) - ONLY_POSTGRES - {"disk-full"}


def test_the_sandbox_takes_every_order() -> None:
    orders = [dict(one.facts) for one in plan(11, 0, 2000) if one.name == "outside-call"]
    faults = Faults()
    for order in [*orders, *({"system": "*", **lie} for lie in LIES.values())]:
        faults.add(order, list(SYSTEMS))
    assert {order["kind"] for order in orders} == {
        *("status", "drop", "lose_answer", "stall", "garbage", "truncate")
    }


@pytest.mark.parametrize(
    ("what", "status", "is_surprise"),
    [
        ("request-task", 204, False),
        ("request-task", 502, False),
        ("request-task", None, False),
        ("request-task", 500, True),
        ("heartbeat", 502, True),
        ("complete", 409, False),
        ("complete", 404, True),
        ("admin", 500, True),
    ],
)
def test_answers_that_nothing_excuses(what: str, status: int | None, is_surprise: bool) -> None:
    ledger = Ledger()
    ledger.answered(what, status, "text")
    assert bool(ledger.surprises) == is_surprise


def test_two_endings_of_one_assignment_are_told_apart() -> None:
    ledger = Ledger()
    ledger.ended(1, "completed")
    ledger.ended(1, "completed")
    assert not ledger.surprises
    ledger.ended(1, "failed")
    assert ledger.surprises


@pytest.mark.parametrize(
    ("status", "output", "is_surprise"),
    [
        (0, "", False),
        (-9, "", False),
        (1, "CommandError: items: Redis is down", False),
        (1, "Traceback (most recent call last)\nKeyError", True),
        (-11, "", True),
    ],
)
def test_how_a_poller_may_end(status: int, output: str, is_surprise: bool) -> None:
    ledger = Ledger()
    ledger.polled("items", status, output)
    assert bool(ledger.surprises) == is_surprise


def test_an_ending_that_was_confirmed_must_be_on_record(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE tasks_assignment (id INTEGER, state TEXT)")
    connection.execute("INSERT INTO tasks_assignment VALUES (1, 'completed'), (2, 'live')")
    connection.commit()
    connection.close()
    records = Records.at(f"sqlite:///{path}")
    assert forgotten_endings(records, {1: "completed"}) == []
    assert forgotten_endings(records, {1: "completed", 2: "failed", 3: "released"}) == [
        "assignment 2 was said to be failed and is live",
        "assignment 3 was said to be released and is gone",
    ]


def test_keys_that_may_and_may_not_live_for_ever() -> None:
    lock, issue = KEYS.key(k.LOCK_PROCESS, name="items"), KEYS.key(k.ISSUE, number=7)
    found = eternal_keys([(lock, -1), (issue, -1), ("poppo:nobody:knows", -1), (lock + "2", 50)], KEYS)
    assert {(row.pattern, row.count, row.is_allowed) for row in found} == {
        ("lock:process:{name}", 1, False),
        ("unknown: poppo:nobody:knows", 1, False),
        ("issue:{number}", 1, True),
    }


def test_keys_that_outlive_their_issue() -> None:
    names = [(KEYS.key(spec, number=number), -1) for spec in (k.ISSUE, k.REVIEW_DELAY) for number in (7, 8)]
    names += [(KEYS.key(k.ISSUE_STATUS, number=8), 900), (KEYS.key(k.INDEX_READY), -1)]
    assert keys_of_closed_issues(names, KEYS, {7}) == ["poppo:issue:8", "poppo:review_delay_8"]


def test_growth_is_counted_from_when_a_process_is_warm() -> None:
    life = Lifetime("web", 1, started_at=100.0)
    for at, rss in ((101, 10), (125, 50), (160, 70)):
        life.add(Reading(at, rss, 5, 2), warm_seconds=20)
    assert (life.seconds, life.growth, life.highest_rss) == (60, 20, 70)
    short = Lifetime("web", 2, started_at=100.0)
    short.add(Reading(110, 10, 5, 2), warm_seconds=20)
    gauges = Gauges({1: life, 2: short})
    assert gauges.longest() == [life]
    assert gauges.starts() == {"web": 2}


@pytest.mark.parametrize("broken", [[], ["issue 3 is not in the index"]])
def test_the_report_says_what_is_broken(broken: list[str]) -> None:
    text = report(Outcome(broken=broken, counts={"items": {"3/0": 2}}), Ledger(), Gauges())
    assert ("Nothing is broken" in text) == (not broken)
    assert all(sentence in text for sentence in broken)


def test_the_report_of_chaos_says_who_was_idle_and_what_took_long() -> None:
    figures = Figures(
        began_at=100.0,
        agents=3,
        idle=[Stretch("agent-2", 130.0, 61.0), Stretch("agent-1", 110.0, 4.0)],
        seconds_with_work=50.0,
        recoveries=[Recovery("redis-full", 41.0, 50.0), Recovery("kill-web", 1.0, 2.0)],
        unreported=4,
    )
    text = chaos_report(Outcome(), Ledger(), figures)
    assert "65 of 150 agent-seconds (43.3 %)" in text
    assert "60 s:   1 of 3 agents, 1 times" in text
    assert "agent-2 for 61 s, 30 s after the first fault" in text
    assert [line.split()[0] for line in text.splitlines() if "promised" in line] == ["redis-full"]
    assert "without a word about it: 4" in text


@pytest.mark.parametrize("given", [["--minutes", "0"], ["--minutes", "9999"], ["--agents", "0"]])
def test_bad_options_are_refused(given: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(given)
    assert "must be" in capsys.readouterr().err
