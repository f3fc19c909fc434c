"""`manage.py broker` as a stranger sees it: real processes, real signals, a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.broker_process import BrokerProcess, living, password_of, run_manage, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("supervisor"), pytest.mark.process]
HANG_SECONDS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that runs for all the tests here that leave it running, in a folder with a difficult name."""
    var = tmp_path_factory.mktemp("var") / "ふぉるだ with späces"
    var.mkdir()
    process = BrokerProcess(var, BROKER_CLUSTER_HANG_SECONDS=str(HANG_SECONDS), WEB_WORKERS="2")
    try:
        process.wait_until_greeted()
        yield process
        family = process.family()
        assert process.end(signal.SIGINT) == 0
        assert living(family) == []
    finally:
        process.close()


def test_pages_answer_and_the_first_text_says_where(broker: BrokerProcess) -> None:
    assert broker.status("/health") == 200
    assert broker.status("/readyz") == 200
    assert broker.status("/admin/login/") == 200
    for path in ("/", "/status/", "/admin/", "/api/v1/docs"):
        assert f"{broker.url(path)}\n" in broker.output
    curl = next(line for line in broker.output.splitlines() if "curl " in line)
    words = shlex.split(curl)
    assert words[0] == "curl"
    assert broker.url("/api/v1/request-task") in words
    assert '{"agent_id": "agent-1", "timeout": 10}' in words


def test_the_lines_of_the_parts_are_told_apart(broker: BrokerProcess) -> None:
    assert re.search(r"^sandbox  \| Sandbox ready at", broker.output, re.M)
    assert re.search(r"^broker   \| Broker is starting", broker.output, re.M)
    assert "\x1b[" not in broker.output.partition("sandbox  |")[0]


def test_the_log_in_is_private_and_works(broker: BrokerProcess) -> None:
    path = broker.var / "admin_password"
    assert path.read_text().strip() == password_of(broker.output)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx.Client(base_url=broker.url("")) as browser:
        browser.get("/admin/login/")
        form = {"username": "admin", "password": path.read_text().strip(), "next": "/admin/"}
        token = browser.cookies["csrftoken"]
        answer = browser.post("/admin/login/", data={**form, "csrfmiddlewaretoken": token})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/admin/")


def test_no_secret_is_on_a_command_line(broker: BrokerProcess) -> None:
    secrets = {password_of(broker.output), (broker.var / "secret_key").read_text(), "sandbox-webhook-secret"}
    lines = [" ".join(process.cmdline()) for process in broker.family()]
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    sandbox = broker.part("-m sandbox")
    assert sandbox.environ()["SANDBOX_WEBHOOK_SECRET"] == "sandbox-webhook-secret"


def test_a_command_in_another_terminal_finds_redis_and_sandbox(broker: BrokerProcess) -> None:
    sandbox = broker.part("-m sandbox").cmdline()
    code = (
        "from django.conf import settings; from broker_project.lib.redis.client import redis_client;"
        "from broker_project.lib.redis.startup import ensure_redis\n"
        "with ensure_redis(): print(redis_client().info()['process_id'], settings.BROKER.sandbox_url)"
    )
    redis = broker.part("-server 127.0.0.1:").pid
    done = run_manage("shell", "-v", "0", "-c", code, env={**broker.env, "PORT": "1234"})
    assert done.stdout.split() == [str(redis), f"http://127.0.0.1:{sandbox[sandbox.index('--port') + 1]}"]
    assert broker.part("-server 127.0.0.1:").pid == redis


def test_a_killed_web_process_is_replaced_and_nobody_is_refused_meanwhile(broker: BrokerProcess) -> None:
    killed = [
        child
        for child in psutil.Process(broker.process.pid).children()
        if "supervisor.web" in str(child.cmdline())
    ]
    assert len(killed) == 2
    for child in killed:
        child.kill()
    # The supervisor keeps the socket open: a connection waits for the next process instead of being refused.
    socket.create_connection(("127.0.0.1", broker.port), timeout=5).close()
    wait_for(lambda: broker.status("/health") == 200, "the web answers again")
    broker.wait_for_text("web-1 ended (killed by SIGKILL); starting it again")
    broker.wait_for_text("web-2 ended (killed by SIGKILL); starting it again")


def test_a_killed_redis_is_started_again_with_its_data(broker: BrokerProcess) -> None:
    set_key = (
        "from broker_project.lib.redis.client import redis_client; import time;"
        "redis_client().set('kept', 'yes'); time.sleep(1.2)"
    )
    get_key = "from broker_project.lib.redis.client import redis_client; print(redis_client().get('kept'))"
    run_manage("shell", "-v", "0", "-c", set_key, env=broker.env)
    broker.part("-server 127.0.0.1:").kill()
    broker.wait_for_text("Redis had ended and was started again")
    wait_for(lambda: broker.status("/readyz") == 200, "ready again")
    assert run_manage("shell", "-v", "0", "-c", get_key, env=broker.env).stdout.strip() == "yes"


def test_a_cluster_that_hangs_after_its_idle_workers_were_killed_works_again(broker: BrokerProcess) -> None:
    """An idle worker holds the queue's reader lock while it waits; killed, it takes the lock with it."""
    wait_for(broker.canary, "a canary that was run")
    cluster, workers = broker.part("qcluster").pid, wait_for(broker.workers, "workers")
    assert len(workers) == 3
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    last = broker.canary()
    broker.wait_for_text("the cluster has done no work for")
    fresh = wait_for(
        lambda: broker.part("qcluster").pid != cluster and broker.part("qcluster").pid, "a new cluster"
    )
    assert not psutil.pid_exists(cluster) or os.getpgid(cluster) != cluster
    wait_for(lambda: broker.canary() not in ("", last), "work done by the new cluster")
    assert broker.part("qcluster").pid == fresh


def test_nothing_is_left_after_sigterm_nor_after_sigkill_of_the_second_start(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path, BROKER_CLUSTER_HANG_SECONDS="3")
    try:
        first.wait_until_greeted()
        wait_for(lambda: len(first.workers()) == 3, "workers")
        family = first.family()
        assert len(family) >= 9  # itself, Redis, the sandbox, the web, and the cluster's six
        assert first.end(signal.SIGTERM) == 0, first.output
        assert living(family) == []
        assert not re.search(r"^(broker|web|sandbox) .*Traceback|^Traceback", first.output, re.M)
        assert first.output.rstrip().endswith("broker   | stopped")
        assert not (tmp_path / "run" / "sandbox_url").exists()
    finally:
        first.close()

    said = len(first.output)
    second = BrokerProcess(tmp_path, BROKER_CLUSTER_HANG_SECONDS="3")
    try:
        wait_for(lambda: "Ctrl-C ends everything." in second.output[said:], "the second greeting")
        assert "preparing the database" not in second.output[said:]
        assert password_of(second.output[said:]) == password_of(second.output[:said])
        # Once a canary has run, every process of the cluster is there.
        last = second.canary()
        wait_for(lambda: second.canary() not in ("", last), "a canary that was run")
        family = second.family()
        assert len(family) >= 9
        second.end(signal.SIGKILL)
        wait_for(lambda: living(family) == [], "nothing left after SIGKILL")
    finally:
        second.close()


def test_the_tables_of_the_queue_do_not_grow_by_canaries(broker: BrokerProcess) -> None:
    seen = {wait_for(broker.canary, "a canary")}
    while len(seen) < 3:
        wait_for(lambda: broker.canary() not in seen, "another canary")
        seen.add(broker.canary())
    with sqlite3.connect(broker.var / "broker.sqlite3") as database:
        (tasks,) = database.execute(
            "SELECT count(*) FROM django_q_task WHERE func LIKE '%run_canary%'"
        ).fetchone()
        queued = database.execute("SELECT count(*) FROM django_q_ormq").fetchone()[0]
    assert tasks == 0
    assert queued < 20
