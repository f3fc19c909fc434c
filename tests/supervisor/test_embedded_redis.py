"""The embedded Redis: found, shared, started once, kept on loopback, gone with its starter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.processes import IS_LINUX, describe_ending
from broker_project.lib.redis.embedded_server import (
    EmbeddedRedis,
    RedisUnavailable,
    embedded_port,
    free_port,
)
from broker_project.lib.redis.startup import check_redis
from tests.support.broker_process import living, wait_for
from tests.support.redis_server import start_redis

pytestmark = pytest.mark.process  # of Redis


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    var = tmp_path / "変数 ü"
    server = EmbeddedRedis(var)
    assert server.url.startswith("redis://127.0.0.1:")
    yield server
    server.stop()


def test_it_is_started_once_and_keeps_its_data(embedded: EmbeddedRedis) -> None:
    assert embedded.ensure()
    other = EmbeddedRedis(embedded.var)
    assert not other.ensure()
    assert other.process is None
    with redis.Redis.from_url(embedded.url) as client:
        client.set("kept", "yes")
    embedded.stop()
    assert not other.answers()
    assert other.ensure()
    with redis.Redis.from_url(embedded.url) as client:
        assert client.get("kept") == b"yes"
    other.stop()


def test_several_that_start_at_once_start_one(embedded: EmbeddedRedis) -> None:
    servers = [EmbeddedRedis(embedded.var) for _ in range(4)]
    started: list[bool] = []
    go = threading.Barrier(4)

    def start(server: EmbeddedRedis) -> None:
        go.wait()
        started.append(server.ensure())
        go.wait()  # the kernel ends a child with the thread that forked it
        server.stop()

    threads = [threading.Thread(target=start, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False, False, False, True]


def test_it_listens_on_loopback_only(embedded: EmbeddedRedis) -> None:
    embedded.ensure()
    assert embedded.process is not None
    listening = [
        entry.laddr.ip
        for entry in psutil.Process(embedded.process.pid).net_connections(kind="inet")
        if entry.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


def test_a_stranger_on_its_port_makes_it_move(embedded: EmbeddedRedis) -> None:
    stranger = start_redis(embedded_port(embedded.var))
    try:
        old = embedded.url
        assert not embedded.answers()
        assert embedded.ensure()
        assert embedded.url != old
        with redis.Redis.from_url(embedded.url) as client:
            assert client.ping()
    finally:
        stranger.stop()


def test_data_that_no_server_reads_is_set_aside(embedded: EmbeddedRedis) -> None:
    embedded.ensure()
    embedded.stop()
    (manifest,) = (embedded.folder / "appendonlydir").glob("*.manifest")
    manifest.write_bytes(b"rubbish")
    assert embedded.ensure()
    (aside,) = embedded.folder.glob("set-aside-*")
    assert (aside / "appendonlydir" / manifest.name).read_bytes() == b"rubbish"


def write_much(embedded: EmbeddedRedis) -> Path:
    """So many commands that reading them again takes a while; the file that they are in."""
    with redis.Redis.from_url(embedded.url) as client:
        client.eval("for i = 1, 400000 do redis.call('SET', 'n', i) end", 0)
    (file,) = (embedded.folder / "appendonlydir").glob("*.incr.aof")
    embedded.stop()
    assert file.stat().st_size > 10_000_000
    return file


def test_whoever_starts_it_may_ask_at_once(embedded: EmbeddedRedis) -> None:
    embedded.ensure()
    write_much(embedded)
    assert embedded.ensure()
    with redis.Redis.from_url(embedded.url, retry=None) as client:
        assert client.get("n") == b"400000"


def test_data_that_turn_out_to_be_damaged_are_set_aside(embedded: EmbeddedRedis) -> None:
    """It answers while it reads them and ends when it comes to the damage."""
    embedded.ensure()
    file = write_much(embedded)
    with file.open("r+b") as data:
        data.seek(-5000, os.SEEK_END)
        data.write(b"rubbish" * 100)
    assert embedded.ensure()
    assert len(list(embedded.folder.glob("set-aside-*"))) == 1
    with redis.Redis.from_url(embedded.url, retry=None) as client:
        assert client.get("n") is None


def test_its_file_is_rewritten_seldom_and_does_not_grow_for_ever(embedded: EmbeddedRedis) -> None:
    embedded.ensure()
    with redis.Redis.from_url(embedded.url, decode_responses=True) as client:
        kept = client.config_get("auto-aof-rewrite-*")
        assert int(kept["auto-aof-rewrite-min-size"]) == 256 * 1024 * 1024
        assert kept["auto-aof-rewrite-percentage"] == "100"


def test_a_port_file_that_is_damaged_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "port").write_text("no number")
    assert 0 < embedded_port(tmp_path) < 65536
    assert embedded_port(tmp_path) == embedded_port(tmp_path)


STARTER = """
import sys, time, pathlib
from broker_project.lib.redis.embedded_server import EmbeddedRedis
server = EmbeddedRedis(pathlib.Path(sys.argv[1]))
server.ensure()
print(server.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not IS_LINUX, reason="the kernel's signal is Linux's own")
def test_it_dies_with_a_starter_that_was_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], cwd=BASE_DIR, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    server = psutil.Process(int(starter.stdout.readline()))
    starter.kill()
    starter.communicate()
    wait_for(lambda: living([server]) == [], "the Redis of a killed starter to end", seconds=10)


GUARDED = """
import os, subprocess, sys
from broker_project.lib import processes
forking = "import os, time; os.fork(); os.write(1, b'%d\\\\n' % os.getpid()); time.sleep(60)"
guard = [sys.executable, "-I", processes.__file__, str(os.getpid())]
child = subprocess.Popen([*guard, sys.executable, "-c", forking],
    start_new_session=True, stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), child.stdout.readline().strip(), flush=True)
child.wait()
"""


def test_the_guard_of_other_systems_ends_what_a_killed_parent_left(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", GUARDED], cwd=BASE_DIR, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    family = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(family) == 3
    parent.kill()
    parent.communicate()
    wait_for(lambda: living(family) == [], "the guard to end its group", seconds=10)


def test_the_guard_ends_as_its_child_did() -> None:
    from broker_project.lib import processes

    def run(code: str) -> int:
        guard = [sys.executable, "-I", processes.__file__, str(os.getpid())]
        return subprocess.run([*guard, sys.executable, "-c", code]).returncode

    assert run("raise SystemExit(7)") == 7
    assert run("import os; os.kill(os.getpid(), 9)") == -signal.SIGKILL


def test_endings_in_words() -> None:
    assert describe_ending(3) == "exit status 3"
    assert describe_ending(-9) == "killed by SIGKILL"
    assert describe_ending(-63) == "killed by signal 63"


def old_redis(listener: socket.socket, version: bytes) -> None:
    """Answers the few commands of a client that connects, as a server of that version would."""
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(4096):
            if b"INFO" in data:
                body = b"# Server\r\nredis_version:" + version + b"\r\n"
                connection.sendall(b"$%d\r\n%s\r\n" % (len(body), body))
            elif b"HELLO" in data:
                connection.sendall(b"-ERR unknown command `HELLO`\r\n")
            else:
                connection.sendall(b"+OK\r\n" * data.count(b"*"))


@pytest.mark.parametrize(("version", "is_good"), [(b"5.0.14", False), (b"6.0.0", True), (b"7.2.4", True)])
def test_a_given_redis_must_be_new_enough(version: bytes, is_good: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=old_redis, args=(listener, version), daemon=True).start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2"
        if is_good:
            check_redis(url)
        else:
            with pytest.raises(
                RedisUnavailable, match=r"^REDIS_URL: that Redis is 5\.0\.14, and Broker needs 6"
            ):
                check_redis(url)


def test_a_given_redis_that_wants_another_password(embedded: EmbeddedRedis) -> None:
    embedded.ensure()
    with redis.Redis.from_url(embedded.url) as client:
        client.config_set("requirepass", "the-right-word")
        for given in ("", ":the-wrong-word@"):
            with pytest.raises(RedisUnavailable) as refused:
                check_redis(embedded.url.replace("redis://", f"redis://{given}"))
            assert str(refused.value) == "REDIS_URL: that Redis refuses this user or password."
        check_redis(embedded.url.replace("redis://", "redis://:the-right-word@"))


def test_a_given_redis_that_is_down_or_something_else() -> None:
    with pytest.raises(RedisUnavailable, match=r"^REDIS_URL: no Redis answers there"):
        check_redis(f"redis://127.0.0.1:{free_port()}/0")
