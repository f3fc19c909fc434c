"""When a cluster counts as hung, and how long a part waits before it is started again: pure tables."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from django_q.models import OrmQ

from broker_project.lib.config.loader import load
from broker_project.ops.clock.cluster import read_traces, run_folder
from broker_project.ops.supervisor.child import pause_before_restart
from broker_project.ops.supervisor.preflight import first_round
from broker_project.ops.supervisor.terminal import Terminal, banner
from broker_project.ops.supervisor.watchdog import ClusterWatch, Verdict, judge

LIMIT = 45.0


@pytest.mark.parametrize(
    ("asked", "quiet", "ran", "all_busy", "expected"),
    [
        (44.9, 100, None, False, Verdict.WAITING),
        (45, 45, None, False, Verdict.HUNG),
        (45, 44.9, None, False, Verdict.WAITING),  # somebody began or ended something: it moves
        (500, 500, None, True, Verdict.BUSY),  # long tasks; django-q2's own time-out bounds them
        (500, 0, 44.9, False, Verdict.WAITING),
        (500, 0, 45, False, Verdict.HUNG),  # done, but the result never came back
        (500, 500, 45, True, Verdict.HUNG),
    ],
)
def test_the_verdict(
    asked: float, quiet: float, ran: float | None, all_busy: bool, expected: Verdict
) -> None:
    found = judge(
        asked_seconds=asked, quiet_seconds=quiet, ran_seconds=ran, are_all_busy=all_busy, limit_seconds=LIMIT
    )
    assert found is expected


def test_pauses_grow_to_half_a_minute() -> None:
    assert [pause_before_restart(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert pause_before_restart(10_000) == 30


def leave_traces(var: Path, *names: str) -> None:
    run_folder(var).mkdir(parents=True, exist_ok=True)
    for name in names:
        (run_folder(var) / name).touch()


def test_only_living_workers_of_this_cluster_count(tmp_path: Path) -> None:
    me, group = os.getpid(), os.getpgrp()
    leave_traces(tmp_path, f"worker-{me}", "worker-1", "worker-4194304", f"busy-{me}", "busy-1", "worker-x")
    traces = read_traces(tmp_path, group)
    assert (traces.workers, traces.busy, traces.canary, traces.beat_at) == (
        frozenset({me}),
        frozenset({me}),
        "",
        0.0,
    )
    # The traces of the dead are swept, so that the folder does not grow.
    assert sorted(path.name for path in run_folder(tmp_path).iterdir()) == [f"busy-{me}", f"worker-{me}"]


@pytest.mark.django_db
def test_a_watch_asks_one_canary_at_a_time_and_takes_it_back(tmp_path: Path) -> None:
    leave_traces(tmp_path, f"worker-{os.getpid()}")
    watch, group = ClusterWatch(tmp_path, workers=3, limit_seconds=LIMIT), os.getpgrp()
    assert watch._look(group, 1000.0) is Verdict.FINE
    assert OrmQ.objects.count() == 1
    assert watch._look(group, 1030.0) is Verdict.WAITING
    assert OrmQ.objects.count() == 1
    # A worker begins something else: the cluster moves, and the time counts from there.
    (run_folder(tmp_path) / "beat").touch()
    assert watch._look(group, 1050.0) is Verdict.WAITING
    assert watch._look(group, 1095.0) is Verdict.HUNG
    # The next cluster is asked anew.
    assert watch._look(1, 1096.0) is Verdict.FINE
    assert OrmQ.objects.count() == 1
    OrmQ.objects.all().delete()
    assert watch._look(1, 1100.0) is Verdict.FINE
    assert watch.canary is None


def test_a_cluster_without_workers_yet_is_given_a_minute(tmp_path: Path, db: None) -> None:
    watch = ClusterWatch(tmp_path, workers=3, limit_seconds=2)
    assert watch._look(1, 1000.0) is Verdict.FINE
    assert watch._look(1, 1059.0) is Verdict.WAITING
    assert watch._look(1, 1060.0) is Verdict.HUNG


def test_the_first_round_posts_nothing_to_a_real_mastodon(tmp_path: Path) -> None:
    sandbox = load({"BROKER_ENV_FILE": "", "BROKER_VAR": str(tmp_path)})
    assert first_round(sandbox) == [["issues"], ["feeds", "items"], ["fixtures"]]
    real = {"MASTODON_ACCESS_TOKEN": "token", "MASTODON_API_URL": "https://m.example.org"}
    assert ["feeds"] in first_round(load({"BROKER_ENV_FILE": "", "BROKER_VAR": str(tmp_path), **real}))


def test_in_token_mode_the_first_text_says_how_to_make_one(tmp_path: Path) -> None:
    environ = {"BROKER_ENV_FILE": "", "BROKER_VAR": str(tmp_path)}
    opened = banner(load(environ), "http://127.0.0.1:1", "http://127.0.0.1:2", "x")
    closed = banner(load({**environ, "BROKER_AGENT_AUTH": "token"}), "http://127.0.0.1:1", "", "x")
    assert "create_agent" not in opened
    assert "Bearer" not in opened
    assert "manage.py create_agent agent-1" in closed
    assert '-H "Authorization: Bearer $TOKEN"' in closed
    production = load({**environ, "BROKER_SANDBOX": "0"})
    assert "Sandbox" not in banner(production, "http://127.0.0.1:1", "http://127.0.0.1:2", "x")


def test_a_reader_that_has_gone_does_not_stop_the_parts() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.line("web", "one")
    stream.close()
    terminal.line("web", "two")
    terminal.say("three")


def test_each_line_has_its_part_in_front() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.line("cluster", "done")
    terminal.say("first\nsecond")
    assert stream.getvalue() == "cluster  | done\nbroker   | first\nbroker   | second\n"
