"""``broker_client run`` as a process of its own against a real server that these tests share."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from tests.client.agent_process import COPY_ALL, STUBBORN, WORK_ON, Start, rows, run_client, states
from tests.support.broker_process import wait_for
from tests.support.dropping_proxy import dropping_proxy
from tests.support.server import BrokerServer


def test_a_task_is_run_and_completed(server: BrokerServer, start_agent: Start) -> None:
    agent = start_agent(server.url, COPY_ALL, "--once", "--role", "BACKENDCODER")
    assert agent.wait() == 0, agent.said
    seen = json.loads(agent.file("seen.json"))
    (row,) = rows(server, agent.name)
    assert row["state"] == "completed"
    assert row["role"] == "BACKENDCODER"
    task = seen["task"]
    assert seen["prompt"] == task["prompt"] != ""
    assert seen["env"]["BROKER_BRANCH"] == task["branch_name"] == row["branch"]
    assert seen["env"]["BROKER_ISSUE"] == str(task["issue_id"])
    assert seen["env"]["BROKER_ASSIGNMENT"] == str(row["id"])
    result = json.loads(row["result"])
    assert result.endswith("line 998\nline 999")
    assert len(result.splitlines()) == 50
    assert b"line 0\n" in agent.out.read_bytes()  # passed on in full
    assert not os.path.exists(seen["env"]["BROKER_TASK_FILE"])


def test_a_failing_command_fails_the_task_with_its_last_words(
    server: BrokerServer, start_agent: Start
) -> None:
    script = "import sys; sys.stderr.write('\\x1b[31mno\\x1b[0m \\0 such compiler\\n'); sys.exit(7)"
    agent = start_agent(server.url, script, "--once")
    assert agent.wait() == 1
    (row,) = rows(server, agent.name)
    assert row["state"] == "failed"
    assert row["reason"] == "exit status 7\nno  such compiler"
    killed = start_agent(server.url, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "--once")
    assert killed.wait() == 1
    assert rows(server, killed.name)[0]["reason"] == "killed by SIGSEGV"


def test_a_result_file_names_the_pull_request(server: BrokerServer, start_agent: Start) -> None:
    script = (
        "import json, os; json.dump({'pull_request_number': 12, 'result': {'tests': 3}}, "
        "open(os.environ['BROKER_RESULT_FILE'], 'w'))"
    )
    agent = start_agent(server.url, script, "--once")
    assert agent.wait() == 0
    (row,) = rows(server, agent.name)
    assert (row["pull_number"], json.loads(row["result"])) == (12, {"tests": 3})


def test_it_takes_one_task_after_the_other_until_it_is_told_to_stop(
    server: BrokerServer, start_agent: Start
) -> None:
    agent = start_agent(server.url, "pass", "--timeout", "5")
    wait_for(lambda: states(server, agent.name).count("completed") >= 2, "two tasks are done")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert set(states(server, agent.name)) <= {"completed", "released"}


def test_ctrl_c_stops_the_command_and_gives_the_task_back(server: BrokerServer, start_agent: Start) -> None:
    agent = start_agent(server.url, WORK_ON)
    agent.file("at-work")
    agent.signal(signal.SIGINT)
    assert agent.wait() == 0
    assert agent.file("stopped") == "SIGTERM"
    assert states(server, agent.name) == ["released"]


def test_a_command_that_does_not_stop_is_killed(server: BrokerServer, start_agent: Start) -> None:
    agent = start_agent(server.url, STUBBORN, "--grace", "0.5")
    pid = int(agent.file("at-work"))
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert agent.file("stopped") == "SIGTERM"
    assert not psutil.pid_exists(pid)
    assert states(server, agent.name) == ["released"]


def test_a_killed_client_takes_its_command_along_and_the_next_one_reports_it(
    server: BrokerServer, start_agent: Start
) -> None:
    agent = start_agent(server.url, WORK_ON)
    agent.file("at-work")
    agent.signal(signal.SIGKILL)
    agent.wait()
    assert agent.file("stopped") == "SIGTERM"
    assert start_agent(server.url, "pass", "--once", agent=agent.name).wait() == 0
    first, second = rows(server, agent.name)
    assert (first["state"], second["state"]) == ("failed", "completed")
    assert first["reason"] == "the client ended before it reported an outcome"


def test_heartbeats_keep_the_lease_and_a_lost_lease_stops_the_command(
    server: BrokerServer, start_agent: Start
) -> None:
    server.redis.set("poppo:config:claude:timeout", "6")  # a heartbeat every two seconds
    with server.client() as client:

        def is_shorter() -> bool:
            task = client.post("/api/v1/request-task", json={"agent_id": "probe", "timeout": 0}).json()
            # Given back, so that there are tasks left however often it looks.
            assert client.post(f"/api/v1/assignments/{task['assignment_id']}/release").status_code == 200
            return bool(task["heartbeat_seconds"] == 2)

        wait_for(is_shorter, "the shorter lease is in force")
    agent = start_agent(server.url, "print('half done', flush=True)\n" + WORK_ON)
    agent.file("at-work")
    server.redis.delete("poppo:config:claude:timeout")
    (given,) = rows(server, agent.name)
    wait_for(
        lambda: rows(server, agent.name)[0]["last_heartbeat_at"] != given["last_heartbeat_at"],
        "a heartbeat arrives",
    )
    assert rows(server, agent.name)[0]["progress"] == "half done"
    with server.client() as client:  # somebody else ends it
        assert client.post(f"/api/v1/assignments/{given['id']}/release").status_code == 200
    agent.wait_until_said("no longer ours")
    assert agent.file("stopped") == "SIGTERM"


def test_maintenance_is_waited_for(server: BrokerServer, start_agent: Start) -> None:
    server.redis.set("poppo:flags:maintenance", '{"reason": "moving house"}')
    agent = start_agent(server.url, WORK_ON)
    agent.wait_until_said("Maintenance: moving house")
    agent.signal(signal.SIGTERM)  # also while it pauses
    assert agent.wait() == 0
    server.redis.delete("poppo:flags:maintenance")
    assert states(server, agent.name) == []


def test_told_to_stop_while_waiting_it_leaves_nothing_behind(
    server: BrokerServer, start_agent: Start
) -> None:
    agent = start_agent(server.url, WORK_ON, "--role", "NOBODY")
    agent.wait_until_asked(server)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    assert states(server, agent.name) == []


def test_lost_answers_lose_nothing(server: BrokerServer, start_agent: Start) -> None:
    with dropping_proxy(server.url) as proxy:
        proxy.drop = {"/request-task": 2, "/complete": 1}
        agent = start_agent(proxy.url, "print('done')", "--once", "--timeout", "5")
        assert agent.wait() == 0, agent.said
        asked = {json.loads(body)["request_id"] for body in proxy.sent_to("/request-task")}
        assert (len(proxy.sent_to("/request-task")), len(asked)) == (3, 1)
        assert len(proxy.sent_to("/complete")) == 2
    (row,) = rows(server, agent.name)
    assert (row["state"], json.loads(row["result"])) == ("completed", "done")


def test_nothing_within_the_timeout_ends_a_single_request(server: BrokerServer, start_agent: Start) -> None:
    agent = start_agent(server.url, WORK_ON, "--once", "--timeout", "0.2", "--role", "NOBODY")
    assert agent.wait() == 0
    assert "no task within 0.2 seconds" in agent.said


@pytest.mark.process
def test_current_and_explain(server: BrokerServer) -> None:
    none = run_client(server, "current", "--agent-id", "looker")
    assert (none.returncode, none.stdout) == (1, "")
    with server.client() as client:
        task = client.post("/api/v1/request-task", json={"agent_id": "looker", "timeout": 0}).json()
    found = run_client(server, "current", "--agent-id", "looker")
    assert found.returncode == 0
    assert json.loads(found.stdout)["assignment_id"] == task["assignment_id"]
    told = run_client(server, "explain", "--agent-id", "looker")
    assert told.returncode == 0
    line = next(line for line in told.stdout.splitlines() if line.startswith(f"#{task['issue_id']} "))
    assert "an agent has it" in line


@pytest.mark.process
def test_bad_command_lines_are_refused_before_anything_is_asked(server: BrokerServer) -> None:
    missing = run_client(server, "run", "--agent-id", "nobody", "--", "no-such-command-here")
    assert missing.returncode == 2
    assert "no-such-command-here" in missing.stderr
    assert run_client(server, "run", "--agent-id", "nobody").returncode == 2
    assert run_client(server, "explain", "--agent-id", "a b").returncode == 2
    assert rows(server, "nobody") == []
