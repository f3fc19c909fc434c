"""What may come out of the clock's queue: rows that are put there by hand, and a real cluster that takes them."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.core.cache import cache, caches
from django.core.signing import dumps
from django.test import Client
from django.urls import NoReverseMatch, reverse
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.signing import PickleSerializer
from django_q.tasks import async_task

from broker_project.lib.redis.client import redis_client
from broker_project.ops.clock.cluster import CANARY, FIRST_ROUND
from broker_project.ops.clock.queue import ClockQueue, Refused, check_row
from broker_project.ops.clock.schedules import ENTRY_POINT
from tests.secrets.traps import Loaded
from tests.support.broker_process import wait_for
from tests.support.server import BrokerServer, BrokerWorld
from tests.support.warm_python import WarmProcess, start_python

SPRING = "tests.secrets.traps.spring"


def task(func: Any = ENTRY_POINT, *args: Any, **options: Any) -> dict[str, Any]:
    return {
        "id": "0" * 32,
        "name": "row",
        "func": func,
        "args": args,
        "kwargs": options.pop("kwargs", {}),
        "started": datetime.now(UTC),
        "ack_failure": True,
        **options,
    }


def signed(obj: object, key: str = "", salt: str = "") -> str:
    return dumps(
        obj, key=key or Conf.SECRET_KEY, salt=salt or Conf.PREFIX, serializer=PickleSerializer, compress=False
    )


@pytest.mark.parametrize(
    "good",
    [
        task(ENTRY_POINT, "items"),
        task(ENTRY_POINT, "items", kwargs={"by": "somebody"}, group="items", cluster=None),
        task(CANARY, "a1b2", save=False, timeout=30),
        task(FIRST_ROUND, ["feeds", "items"], save=False, sync=False, hook=None),
    ],
)
def test_our_own_rows_are_taken(good: dict[str, Any]) -> None:
    check_row(signed(good))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (task("os.system", "true"), "os.system is not a function of the clock"),
        (task("broker_project.ops.clock.pollers.run_poller", "items"), "is not a function of the clock"),
        (task(ENTRY_POINT + " "), "is not a function of the clock"),
        (task(os.system, "true"), "its pickle asks for posix.system"),
        (task(ENTRY_POINT, Loaded("args")), "its pickle asks for tests.secrets.traps.spring"),
        (task(ENTRY_POINT, "items", started=Loaded("started")), "its pickle asks for"),
        (task(ENTRY_POINT, "items", hook=SPRING), "it has the options hook"),
        (task(ENTRY_POINT, "items", chain=[(SPRING, ())]), "it has the options chain"),
        (task(ENTRY_POINT, "items", cached=60, iter_count=1), "it has the options cached, iter_count"),
        (task(ENTRY_POINT, "items", sync=True), "it has the options sync"),
        ({**task(ENTRY_POINT), "args": "items"}, "its arguments are no arguments"),
        ({}, "None is not a function of the clock"),
        ("text", "it is no task"),
        (None, "it is no task"),
    ],
)
def test_a_signature_alone_is_not_enough(bad: object, reason: str) -> None:
    with pytest.raises(Refused) as refusal:
        check_row(signed(bad))
    assert reason in str(refusal.value)


def forged_rows() -> dict[str, str]:
    good = signed(task(CANARY, "forged"))
    body, stamp, signature = good.split(":")
    other = signed(task(SPRING)).split(":")
    return {
        "nothing": "",
        "no signature": body,
        "another key": signed(task(CANARY, "forged"), key="k" * 50),
        "another namespace": signed(task(CANARY, "forged"), salt="other"),
        "another's signature": f"{other[0]}:{stamp}:{signature}",
        "another time": f"{body}:{stamp}x:{signature}",
        "pickle alone": pickle.dumps(task(SPRING)).decode("latin-1"),
    }


@pytest.mark.parametrize("name", forged_rows())
def test_a_forged_row_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="its signature is not ours"):
        check_row(forged_rows()[name])


def test_a_signed_row_that_is_no_pickle_is_refused() -> None:
    class Raw:
        def dumps(self, obj: bytes) -> bytes:
            return obj

        def loads(self, data: bytes) -> bytes:
            return data

    for body in (b"", b"\x80\x05", b"garbage", b"."):
        row = dumps(body, key=Conf.SECRET_KEY, salt=Conf.PREFIX, serializer=Raw)
        with pytest.raises(Refused, match="it cannot be read"):
            check_row(row)


@pytest.mark.django_db(transaction=True)
def test_the_queue_hands_out_ours_and_takes_the_rest_off() -> None:
    queue = ClockQueue()
    async_task(ENTRY_POINT, "metrics")
    queue.enqueue(signed(task("os.system", "true")))
    queue.enqueue("not signed")
    taken = [row for _ in range(3) for row in queue.dequeue()]
    assert len(taken) == 1
    check_row(taken[0][1])
    assert list(OrmQ.objects.values_list("pk", flat=True)) == [taken[0][0]]


class Cluster:
    """``manage.py qcluster`` on a database of its own, and rows put into that by hand."""

    def __init__(self, world: BrokerWorld, traps: Path) -> None:
        settings = BrokerServer(world, world.new_folder())
        settings.manage("check")  # makes the key
        self.var, self.key = settings.var, (settings.var / "secret_key").read_text()
        self.log = settings.var / "cluster.log"
        self.env = {**settings.env, "TRAPS": str(traps)}
        self.process: WarmProcess | None = None

    def start(self) -> None:
        """Due schedules are looked for when 30 s of cycles have passed: with such a cycle, at once and never again."""
        with self.log.open("wb") as log:
            self.process = start_python(
                "manage.py",
                "qcluster",
                env=self.env,
                stdout=log,
                stderr=log,
                constants={"django_q.conf": {"Conf.GUARD_CYCLE": 30}},
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.var / "broker.sqlite3", timeout=20)) as database:
            found = database.execute(sql, values).fetchall()
            database.commit()
            return found

    def queue(self, payload: str) -> None:
        self.execute(
            "INSERT INTO django_q_ormq (key, payload, lock) VALUES ('poppo', ?, '2020-01-01 00:00:00')",
            payload,
        )

    def run_canary(self, token: str) -> None:
        self.queue(signed(task(CANARY, token, save=False), key=self.key, salt="poppo"))
        path = self.var / "run" / "cluster" / "canary"
        wait_for(lambda: path.exists() and path.read_text() == token, f"the canary {token} ran")


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


@pytest.fixture
def cluster(broker_world: BrokerWorld, traps: Path) -> Iterator[Cluster]:
    cluster = Cluster(broker_world, traps)
    yield cluster
    if cluster.process is None:
        return
    cluster.process.terminate()
    try:
        cluster.process.wait(20)
    except subprocess.TimeoutExpired:
        cluster.process.kill()
        cluster.process.wait()


@pytest.mark.process
@pytest.mark.slow
def test_a_cluster_runs_nothing_but_ours(cluster: Cluster, traps: Path) -> None:
    # Whoever can write to the table of schedules has no key; the clock itself signs what it queues for them.
    for number, options in enumerate(({}, {"sync": True})):
        cluster.execute(
            "INSERT INTO django_q_schedule (name, func, args, kwargs, schedule_type, repeats, next_run)"
            " VALUES (?, ?, ?, ?, 'O', -1, '2020-01-01 00:00:00')",
            f"trap-{number}",
            SPRING,
            repr((f"schedule-{number}",)),
            repr({"q_options": options}),
        )
    cluster.start()
    cluster.run_canary("before")

    def sign(obj: object) -> str:
        return signed(obj, key=cluster.key, salt="poppo")

    rows = [
        signed(task(SPRING, "other-key"), key="k" * 50, salt="poppo"),
        sign(task(SPRING, "signed")),
        sign(task("os.system", f"touch {traps}/shell")),
        sign(task(CANARY, Loaded("unpickled"))),
        sign(task(CANARY, "hooked", hook="tests.secrets.traps.hook")),
        sign(task(CANARY, "chained", chain=[(SPRING, ("chain",))])),
        "no row at all",
    ]
    for row in rows:
        cluster.queue(row)
    wait_for(
        lambda: not cluster.execute("SELECT 1 FROM django_q_schedule WHERE name LIKE 'trap-%'"),
        "both scheduled",
    )
    wait_for(lambda: not cluster.execute("SELECT 1 FROM django_q_ormq"), "an empty queue")
    cluster.run_canary("after")
    assert cluster.process is not None
    assert cluster.process.poll() is None, cluster.output
    assert [path.name for path in traps.iterdir()] == [], cluster.output
    assert (cluster.var / "run" / "cluster" / "canary").read_text() == "after"
    assert cluster.output.count("queued task refused") == len(rows) + 2, cluster.output
    assert not cluster.execute("SELECT 1 FROM django_q_task"), "none of it was saved as a task"


@pytest.mark.django_db
def test_the_admin_offers_no_form_for_tasks_of_the_clock(admin_client: Client) -> None:
    assert [model for model in admin.site._registry if model._meta.app_label == "django_q"] == []
    for name in ("schedule", "success", "failure", "ormq"):
        assert admin_client.get(f"/admin/django_q/{name}/").status_code == 404
        assert admin_client.get(f"/admin/django_q/{name}/add/").status_code == 404
        with pytest.raises(NoReverseMatch):
            reverse(f"admin:django_q_{name}_changelist")


def test_a_cached_value_that_we_did_not_sign_is_not_there(store: Any, tmp_path: Path) -> None:
    raw = redis_client()
    for alias in ("default", "sessions"):
        caches[alias].set("kept", {"a": [1, "二"]})
        assert caches[alias].get("kept") == {"a": [1, "二"]}
    (name,) = [key for key in raw.scan_iter() if ":cache:" in key]
    os.environ["TRAPS"] = str(tmp_path)
    try:
        for forged in (pickle.dumps(Loaded("cache")), b"\x00" * 32 + pickle.dumps(Loaded("cache")), b""):
            raw.set(name, forged)
            assert cache.get("kept") is None
    finally:
        del os.environ["TRAPS"]
    assert list(tmp_path.iterdir()) == []
