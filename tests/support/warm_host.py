"""The process from which tests fork Python programs: everything that is not ours is imported already.

``python -m tests.support.warm_host FD`` reads requests from the socket FD, one message each: JSON with ``arguments``
(as after ``python``: a script, ``-m module`` or ``-c code``), ``environment``, ``folder`` and ``constants``, and four
file descriptors (standard input, output, error, and one for the outcome). For each it forks a process that runs the
program as ``__main__``, and writes two lines to the outcome: the process id at once, the exit status at the end.

``constants`` are what the program finds another value of than the source has, by module and name: pauses and
time-outs that a test would only sit through. ``POLICY.base_seconds`` is an attribute of a constant.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import runpy
import selectors
import signal
import socket
import sys
import types
from contextlib import suppress
from dataclasses import FrozenInstanceError
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
MAX_REQUEST_BYTES = 1 << 20

ROOT = Path(__file__).resolve().parents[2]
NEEDS_SETTINGS = "ninja"
OURS = ("broker_project", "tasks", "feeds", "fixtures", "sandbox", "bench", "tests")
IMPORT = re.compile(r"^ *(?:from|import) ([a-z_][\w.]*)", re.MULTILINE)
# Imported by name while a program runs.
LATE = (
    "django.core.management.commands.migrate",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "pydantic.networks",
    "pydantic.type_adapter",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)


class Program:
    """What a forked process is to run."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.arguments: list[str] = request["arguments"]
        self.environment: dict[str, str] = request["environment"]
        self.folder: str = request["folder"]
        self.constants: dict[str, dict[str, Any]] = request["constants"]

    def run(self) -> None:
        if self.constants:
            sys.meta_path.insert(0, Constants(self.constants))
        first, *rest = self.arguments
        if first == "-m":
            sys.argv = rest
            sys.path[0] = self.folder
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.path[0] = ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = self.arguments
            sys.path[0] = str((Path(self.folder) / first).parent)
            runpy.run_path(first, run_name="__main__")


class Constants(MetaPathFinder):
    """Sets constants right after their module was read, so that others import the new value."""

    def __init__(self, constants: dict[str, dict[str, Any]]) -> None:
        self.constants = constants
        assert sys.modules.keys().isdisjoint(constants), "these modules have been imported by the host"

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in self.constants:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_set(module: types.ModuleType) -> None:
            execute(module)
            for constant, value in self.constants[name].items():
                owner, _, attribute = constant.rpartition(".")
                holder = getattr(module, owner) if owner else module
                value = type(getattr(holder, attribute))(value)
                try:
                    setattr(holder, attribute, value)
                except FrozenInstanceError:
                    object.__setattr__(holder, attribute, value)

        spec.loader.exec_module = execute_and_set  # type: ignore[method-assign]
        return spec


def import_others() -> None:
    """Import what the product's files import from others."""
    files = (path for package in OURS[:5] for path in (ROOT / package).rglob("*.py"))
    named = {name for path in files for name in IMPORT.findall(path.read_text(encoding="utf-8"))}
    for name in (*sorted(named), *LATE):
        if name.split(".")[0] not in (*OURS, NEEDS_SETTINGS):
            # Not there, or it reads Django's settings, which each program has for itself.
            with suppress(Exception):
                importlib.import_module(name)
    assert not any(name.startswith(OURS) and name.split(".")[0] != "tests" for name in sys.modules)
    gc.freeze()


def serve(requests: socket.socket) -> Program | None:
    """Fork for each request until the other end closes. Gives a program in a forked process, None in this one."""
    outcomes: dict[int, int] = {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if reader in ready:
                os.read(reader, 4096)
                report_ended(outcomes)
            if requests not in ready:
                continue
            message, files, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
            if not message:
                return None
            outcome = files.pop()
            here = os.getpid()
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                program = Program(json.loads(message))
                become(program, files, here)
                for open_here in (reader, writer, outcome, requests.fileno(), *outcomes.values()):
                    os.close(open_here)
                requests.detach()
                return program
            for file in files:
                os.close(file)
            outcomes[child] = outcome
            os.write(outcome, f"{child}\n".encode())


def become(program: Program, files: list[int], host: int) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != host:
            os._exit(1)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)


def report_ended(outcomes: dict[int, int]) -> None:
    while outcomes:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        outcome = outcomes.pop(child)
        with suppress(BrokenPipeError):
            os.write(outcome, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(outcome)


if __name__ == "__main__":
    import_others()
    # Outside of any function: a forked process ends as any Python program does, with its threads and `atexit`.
    here = sys.modules["__main__"]  # kept, also when a program takes its name
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        program.run()
