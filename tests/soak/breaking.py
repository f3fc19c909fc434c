"""Each kind of planned fault, carried out. One that finds nothing to break says so."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from random import Random
from typing import Any

import httpx
import psutil

from tests.faults.world import Process
from tests.soak import stores
from tests.soak.crew import Crew
from tests.soak.plan import LIES, Planned
from tests.soak.signals import stopped
from tests.soak.site import Site

WEB, CLUSTER = "supervisor.web", "qcluster"  # in the command lines of the parts
STALL_SECONDS = 30.0  # longer than anybody should wait for one call
Hand = Callable[["Breaker", Planned], bool]


class Breaker:
    """``carry_out`` may block for as long as the fault lasts; True if something was broken."""

    def __init__(self, site: Site, crew: Crew, seed: int) -> None:
        self.site, self.crew = site, crew
        self.random = Random(f"breaker-{seed}")
        self.pollers: list[Process] = []  # at work now
        self.busy = {
            name: threading.Lock() for name in ("redis", "outside")
        }  # one thing at a time is done to each

    def carry_out(self, planned: Planned) -> bool:
        with self.busy.get(planned.name.split("-")[0], nullcontext()):
            return HANDS[planned.name](self, planned)

    def send(self, words: str, number: signal.Signals) -> bool:
        part = self.site.part(words)
        if part is None:
            return False
        with suppress(psutil.NoSuchProcess):
            part.send_signal(number)
            return True
        return False

    def stop(self, planned: Planned, words: str) -> bool:
        """A part and all its children stand still, whatever they are in the middle of."""
        part = self.site.part(words)
        return part is not None and last(planned, stopped(part))

    def outside_call(self, planned: Planned) -> bool:
        order: dict[str, Any] = dict(planned.facts)
        self.site.sandbox.fault(order.pop("system"), order.pop("kind"), **order)
        return True

    def outside_refused(self, planned: Planned) -> bool:
        self.site.outside.gate.shut()
        try:
            time.sleep(planned.facts["seconds"])
        finally:
            self.site.outside.gate.reopen()
        return True

    def outside_restarted(self, planned: Planned) -> bool:
        self.site.restart_outside(planned.facts["seconds"])
        return True

    def outside_stalled(self, planned: Planned) -> bool:
        """Every call is taken and not answered; those of the last moment wait on when it is over."""
        return self.order_for_all(planned, {"kind": "stall", "seconds": STALL_SECONDS})

    def outside_lying(self, planned: Planned) -> bool:
        return self.order_for_all(planned, LIES[planned.facts["lie"]])

    def order_for_all(self, planned: Planned, order: dict[str, Any]) -> bool:
        sandbox = self.site.sandbox
        sandbox.fault("*", **order, times=0)
        try:
            time.sleep(planned.facts["seconds"])
        finally:
            sandbox.clear_faults()
        return True

    def kill_worker(self, planned: Planned) -> bool:
        leader = self.site.part(CLUSTER)
        if leader is None:
            return False
        with suppress(psutil.NoSuchProcess):
            below = leader.children(recursive=True)
            if below:
                self.random.choice(below).kill()
                return True
        return False

    def kill_poller(self, planned: Planned) -> bool:
        if not self.pollers:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(self.pollers).pid, signal.SIGKILL)
            return True
        return False

    def kill_agent(self, planned: Planned) -> bool:
        shipped = [name for name, client in self.site.clients.items() if client.poll() is None]
        if not shipped:
            return self.crew.kill_one(self.random)
        name = self.random.choice(shipped)
        self.site.clients[name].kill()
        self.site.clients[name].wait()
        self.site.start_client(name)
        return True

    def webhook_again(self, planned: Planned) -> bool:
        known = self.site.sandbox.control("GET", "github/deliveries")["deliveries"]
        if not known:
            return False
        guid = self.random.choice(known)["guid"]
        with suppress(httpx.HTTPStatusError):  # the stand-in remembers the newest ones only
            self.site.sandbox.control("POST", f"github/deliveries/{guid}/redeliver")
            return True
        return False


def last(planned: Planned, fault: AbstractContextManager[bool]) -> bool:
    """As long as planned. The fault says whether there was something to break."""
    with fault as is_done:
        if is_done:
            time.sleep(planned.facts["seconds"])
    return is_done


HANDS: dict[str, Hand] = {
    "outside-call": Breaker.outside_call,
    "outside-refused": Breaker.outside_refused,
    "outside-restarted": Breaker.outside_restarted,
    "outside-stopped": lambda breaker, planned: last(planned, stopped(breaker.site.sandbox.process.pid)),
    "outside-stalled": Breaker.outside_stalled,
    "outside-lying": Breaker.outside_lying,
    "kill-web": lambda breaker, _: breaker.send(WEB, signal.SIGKILL),
    "end-web": lambda breaker, _: breaker.send(WEB, signal.SIGTERM),
    "stop-web": lambda breaker, planned: breaker.stop(planned, WEB),
    "kill-cluster": lambda breaker, _: breaker.send(CLUSTER, signal.SIGKILL),
    "stop-cluster": lambda breaker, planned: breaker.stop(planned, CLUSTER),
    "kill-worker": Breaker.kill_worker,
    "kill-mirin": lambda breaker, _: breaker.send("mirin", signal.SIGKILL),
    "kill-poller": Breaker.kill_poller,
    "kill-agent": Breaker.kill_agent,
    "redis-restarted": lambda breaker, _: stores.restart_redis(breaker.site),
    "redis-flushed": lambda breaker, _: stores.flush_redis(breaker.site),
    "redis-paused": lambda breaker, planned: last(planned, stopped(breaker.site.redis_server.process.pid)),
    "redis-full": lambda breaker, planned: last(planned, stores.full_redis(breaker.site)),
    "database-restarted": lambda breaker, _: stores.restart_database(breaker.site),
    "database-killed": lambda breaker, _: stores.kill_database(breaker.site, breaker.random),
    "database-stopped": lambda breaker, planned: last(planned, stores.stopped_database(breaker.site)),
    "database-locked": lambda breaker, planned: last(planned, stores.locked_database(breaker.site)),
    "database-read-only": lambda breaker, planned: last(planned, stores.read_only_database(breaker.site)),
    "disk-full": lambda breaker, planned: last(planned, stores.full_disk(breaker.site)),
    "webhook-again": Breaker.webhook_again,
}
