"""Each kind of planned fault, carried out. One that finds nothing to break says so."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from random import Random
from typing import Any

import httpx
import psutil

from tests.faults.world import Process
from tests.soak.plan import Planned
from tests.soak.site import Site

Hand = Callable[["Breaker", Planned], bool]


class Breaker:
    """``carry_out`` may block for as long as the fault lasts; True if something was broken."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
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

    def outside_call(self, planned: Planned) -> bool:
        order: dict[str, Any] = dict(planned.facts)
        self.site.sandbox.fault(order.pop("system"), order.pop("kind"), **order)
        return True

    def outside_refused(self, planned: Planned) -> bool:
        self.site.outside_gate.shut()
        try:
            time.sleep(planned.facts["seconds"])
        finally:
            self.site.outside_gate.reopen()
        return True

    def kill_worker(self, planned: Planned) -> bool:
        leader = self.site.part("qcluster")
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
        alive = [name for name, client in self.site.clients.items() if client.poll() is None]
        if not alive:
            return False
        name = self.random.choice(alive)
        self.site.clients[name].kill()
        self.site.clients[name].wait()
        self.site.start_client(name)
        return True

    def redis_restarted(self, planned: Planned) -> bool:
        self.site.redis_server.restart()
        self.site.shorten_leases()
        return True

    def redis_flushed(self, planned: Planned) -> bool:
        self.site.store.flushall()
        self.site.shorten_leases()
        return True

    def redis_paused(self, planned: Planned) -> bool:
        """Stopped by a signal: connections stay open and nobody answers."""
        pid = self.site.redis_server.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(planned.facts["seconds"])
        finally:
            os.kill(pid, signal.SIGCONT)
        return True

    def database_restarted(self, planned: Planned) -> bool:
        assert self.site.postgres is not None
        self.site.postgres.restart()
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


HANDS: dict[str, Hand] = {
    "outside-call": Breaker.outside_call,
    "outside-refused": Breaker.outside_refused,
    "kill-web": lambda breaker, _: breaker.send("supervisor.web", signal.SIGKILL),
    "end-web": lambda breaker, _: breaker.send("supervisor.web", signal.SIGTERM),
    "kill-cluster": lambda breaker, _: breaker.send("qcluster", signal.SIGKILL),
    "kill-worker": Breaker.kill_worker,
    "kill-mirin": lambda breaker, _: breaker.send("mirin", signal.SIGKILL),
    "kill-poller": Breaker.kill_poller,
    "kill-agent": Breaker.kill_agent,
    "redis-restarted": Breaker.redis_restarted,
    "redis-flushed": Breaker.redis_flushed,
    "redis-paused": Breaker.redis_paused,
    "database-restarted": Breaker.database_restarted,
    "webhook-again": Breaker.webhook_again,
}
