"""The parts of the broker together: started in order, watched, stopped in order."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from types import FrameType

from django.conf import settings
from django.core.management import get_commands

from broker_project.lib.config.loader import Config, default_sandbox_url, sandbox_url_file
from broker_project.lib.redis.embedded_server import EmbeddedRedis, RedisUnavailable, free_port, port_is_free
from broker_project.lib.redis.startup import point_to
from broker_project.ops.supervisor.child import Child, pause_before_restart
from broker_project.ops.supervisor.preflight import url_of
from broker_project.ops.supervisor.terminal import Terminal, banner
from broker_project.ops.supervisor.watchdog import ClusterWatch, ClusterWatchThread, WebWatchThread

TICK_SECONDS = 0.2
REDIS_LOOK_SECONDS = 2.0
SANDBOX_START_SECONDS = 10.0
# Seconds after the signal by which each is gone or killed; ten are promised.
WEB_GONE, CLUSTER_GONE, SANDBOX_GONE = 4.0, 7.0, 8.0


class Supervisor:
    """Everything is started from the main thread: the kernel ends a child with the thread that forked it."""

    def __init__(
        self, config: Config, terminal: Terminal, listener: socket.socket, embedded: EmbeddedRedis | None
    ) -> None:
        self.config = config
        self.terminal = terminal
        self.listener = listener
        self.embedded = embedded
        self.redis_url = embedded.url if embedded else config.redis_url
        self.sandbox_url = config.sandbox_url
        self.stopping = threading.Event()
        self.signals = 0
        self._redis_look_at = 0.0
        self._redis_failures = 0
        python = sys.executable
        descriptor = listener.fileno()
        self.sandbox: Child | None = None
        if config.sandbox:
            self.sandbox = self._sandbox_part(python)
        self.web = [
            Child(
                "web" if config.web_workers == 1 else f"web-{number}",
                [python, "-m", "broker_project.ops.supervisor.web", str(descriptor)],
                self.environment,
                terminal,
                pass_fds=(descriptor,),
            )
            for number in range(1, config.web_workers + 1)
        ]
        self.cluster = Child("cluster", [python, "manage.py", "qcluster"], self.environment, terminal)
        self.mirin: Child | None = None
        if "mirin" in get_commands():
            self.mirin = Child("mirin", [python, "manage.py", "mirin"], self.environment, terminal)
        watch = ClusterWatch(config.var, int(str(settings.Q_CLUSTER["workers"])), config.cluster_hang_seconds)
        self.cluster_watch = ClusterWatchThread(watch, lambda: self.cluster.pid)
        self.web_watch = WebWatchThread(url_of(listener))

    def environment(self) -> dict[str, str]:
        """What every part gets beside our own environment. Secrets go here: command lines are public."""
        given = {"REDIS_URL": self.redis_url, "BROKER_VAR": str(self.config.var)}
        if self.config.sandbox:
            given["BROKER_SANDBOX_URL"] = self.sandbox_url
        return given

    def _sandbox_part(self, python: str) -> Child | None:
        """The stand-ins: at the given address unless something serves there already, else near our own port."""
        url = self.config.sandbox_url if self.config.sandbox_url_is_given else ""
        host, _, port = (url or default_sandbox_url(self.config.port)).removeprefix("http://").rpartition(":")
        if url and (host not in ("127.0.0.1", "localhost") or not port_is_free(int(port))):
            return None
        if not port_is_free(int(port)):
            port = str(free_port())
        self.sandbox_url = url or f"http://127.0.0.1:{port}"
        command = [python, "-m", "sandbox", "--port", port, "--state", str(self.config.var / "sandbox.json")]
        command += ["--base-url", self.sandbox_url, "--broker-url", url_of(self.listener), "--lively"]
        secret = {"SANDBOX_WEBHOOK_SECRET": self.config.github.webhook_secret}
        return Child("sandbox", command, lambda: {**self.environment(), **secret}, self.terminal)

    @property
    def parts(self) -> list[Child]:
        found = [self.sandbox, *self.web, self.cluster, self.mirin]
        return [part for part in found if part is not None]

    def run(self, log_in: str) -> None:
        """Run until a signal comes. ``log_in`` is the sentence about logging in for the banner."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nohup ignores SIGHUP so that we outlive the terminal. Shells ignore SIGINT for background jobs as well,
            # but whoever sends us one means it.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        record = sandbox_url_file(self.config.var)
        record.parent.mkdir(parents=True, exist_ok=True)
        if self.sandbox is not None:
            record.write_text(self.sandbox_url)
        else:
            record.unlink(missing_ok=True)
        try:
            for part in self.parts:
                if part is self.cluster:
                    self.wait_for_sandbox()
                part.start()
            self.cluster_watch.start()
            self.web_watch.start()
            has_greeted = False
            while not self.stopping.wait(TICK_SECONDS):
                self.look_after_redis()
                self.look_after_parts()
                if not has_greeted and self.web_watch.is_up.is_set():
                    self.terminal.show(banner(self.config, url_of(self.listener), self.sandbox_url, log_in))
                    has_greeted = True
        finally:
            self.stop()
            if self.sandbox is not None:
                record.unlink(missing_ok=True)

    def wait_for_sandbox(self) -> None:
        """The first pollers run at once, and would fail against stand-ins that are still starting."""
        port, deadline = int(self.sandbox_url.rpartition(":")[2]), time.monotonic() + SANDBOX_START_SECONDS
        while self.sandbox is not None and port_is_free(port) and time.monotonic() < deadline:
            if self.stopping.wait(0.05):
                return

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        self.stopping.set()

    def look_after_parts(self) -> None:
        if self.cluster.pid is not None and self.cluster.pid == self.cluster_watch.hung_pid:
            seconds = self.config.cluster_hang_seconds
            self.terminal.say(
                f"the cluster has done no work for {seconds} s although there is some; starting it again"
            )
            self.cluster.restart_now()
        if self.web_watch.is_silent.is_set():
            self.web_watch.is_silent.clear()
            self.terminal.say("the web has not answered for a minute; starting it again")
            for part in self.web:
                part.restart_now()
        for part in self.parts:
            part.watch()

    def look_after_redis(self) -> None:
        """Start the embedded Redis again if it ended, or if the one of another process that we shared is gone."""
        if self.embedded is None or time.monotonic() < self._redis_look_at:
            return
        self._redis_look_at = time.monotonic() + REDIS_LOOK_SECONDS
        ours = self.embedded.process
        if ours is not None and ours.poll() is None:
            self._redis_failures = 0
            self._redis_look_at = 0.0  # polling our own child costs nothing, so it happens at every tick
            return
        if ours is None and self.embedded.answers():
            return
        self._redis_failures += 1
        try:
            self.embedded.ensure()
        except RedisUnavailable as error:
            self._redis_look_at = time.monotonic() + pause_before_restart(self._redis_failures)
            self.terminal.say(f"Redis is down: {error}")
            return
        self.terminal.say("Redis had ended and was started again")
        if self.embedded.url != self.redis_url:
            self.redis_url = self.embedded.url
            point_to(self.redis_url)
            self.terminal.say(
                "Redis has another port now, since its old one was taken; starting the parts again"
            )
            for part in self.parts:
                part.restart_now()

    def stop(self) -> None:
        """Stop the web first, so that waiting agents are answered, then the pollers, the stand-ins, and Redis last."""
        begun, seen = time.monotonic(), self.signals
        self.terminal.say("stopping")
        self.cluster_watch.stopping.set()
        self.web_watch.stopping.set()
        self.listener.close()
        pollers = [part for part in (self.cluster, self.mirin) if part is not None]
        stands = [self.sandbox] if self.sandbox is not None else []
        for parts, seconds in ((self.web, WEB_GONE), (pollers, CLUSTER_GONE), (stands, SANDBOX_GONE)):
            for part in parts:
                part.ask_to_end()
            for part in parts:
                # A second Ctrl-C means now.
                while not part.has_ended(min(begun + seconds, time.monotonic() + TICK_SECONDS)):
                    if self.signals > seen or time.monotonic() >= begun + seconds:
                        break
                part.kill()
        if self.embedded is not None:
            self.embedded.stop()
        self.terminal.say("stopped")
