"""Work for a Broker as an agent: ask for tasks, run a command for each, say how it went.

One file, Python 3.11+ and httpx; copy it wherever the agent runs.

    export BROKER_TOKEN=brk_…          # not needed where the API is open
    python -m broker_client run --url http://127.0.0.1:8000 --agent-id coder-1 -- my-agent --non-interactive
    python -m broker_client current --url … --agent-id coder-1   # the task in hand as JSON, else status 1
    python -m broker_client explain --url … --agent-id coder-1   # why each issue is or is not on offer

The command gets the prompt on its standard input, the whole task as JSON in the file ``$BROKER_TASK_FILE``,
and

    BROKER_AGENT_ID BROKER_ASSIGNMENT BROKER_ISSUE BROKER_ISSUE_URL BROKER_REPOSITORY BROKER_BRANCH
    BROKER_BASE_BRANCH BROKER_TASK_TYPE BROKER_ROLE BROKER_PULL_REQUEST_URL

in its environment; the token is not there. Exit status 0 completes the task with the last lines of its output
as the result; anything else fails it with the last lines of its standard error as the reason. A command that
opened a pull request may write ``{"pull_request_number": 12}`` (and ``"result"``) to the file
``$BROKER_RESULT_FILE``.

What can be relied on:

- A task whose answer was lost on the way is asked for again by the same ``request_id`` and not lost.
- Heartbeats go on while the command runs. If the broker takes the task back, the command is stopped: SIGTERM
  to its process group, SIGKILL after ``--grace`` seconds.
- Refused (401, 403, 404, 422): one sentence and exit status 2. An outage is waited for, however long.
- An outcome that cannot be delivered is sent again until the lease is over.
- SIGINT and SIGTERM stop the command and give the task back; a second one does not wait for the command.
- A task that an earlier run left behind without a word is reported as failed at the start.

Those who write their own agent use :class:`BrokerClient`::

    with BrokerClient("http://127.0.0.1:8000", "coder-1", token) as broker:
        task = broker.request_task(timeout=120)
        if task is not None:
            broker.heartbeat(task.assignment_id)
            broker.complete(task.assignment_id, "done")
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

T = TypeVar("T")

ANSWER_SECONDS = 30.0  # for an answer, beyond what it was asked to wait
LONGEST_PAUSE_SECONDS = 60.0
LEAVING_SECONDS = 10.0  # for the last word to the broker when we are told to stop
TAIL_LINES = 50
TAIL_CHARACTERS = 6_000  # the broker takes 10,000
RESULT_BYTES = 30_000
HIDDEN = "[hidden]"
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Errors
#
#   BrokerError
#   ├── Refused       the same call would be refused again: 401, 403, 404, 422 …
#   │   └── LeaseLost 409: the assignment is no longer ours
#   └── Unavailable   worth another try: no connection, a broken one, 429, 5xx


class BrokerError(Exception):
    """``message`` is a sentence for people; ``code`` the broker's word for it, if it gave one."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code


class Refused(BrokerError):
    pass


class LeaseLost(Refused):
    pass


class Unavailable(BrokerError):
    def __init__(
        self, message: str, *, status: int | None = None, code: str = "", retry_after_seconds: float = 0
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after_seconds = retry_after_seconds


# What the broker answers


@dataclass(frozen=True)
class Task:
    assignment_id: int
    issue_id: int
    issue_url: str
    title: str
    body: str
    labels: tuple[str, ...]
    repository: str
    branch_name: str
    base_branch: str
    prompt: str
    required_role: str
    task_type: str
    pull_request_url: str | None
    heartbeat_seconds: float
    lease_seconds: float  # from the moment of the answer, by the broker's clock
    state: str | None  # only on a replay: how the assignment stands
    document: dict[str, Any] = field(repr=False)  # the answer as it came

    @property
    def is_ours_to_do(self) -> bool:
        """False for a replayed task that has ended meanwhile."""
        return self.state in (None, "live")


@dataclass(frozen=True)
class Heartbeat:
    cancel: bool
    lease_seconds: float


@dataclass(frozen=True)
class Ending:
    assignment_id: int
    issue_id: int
    state: str


@dataclass(frozen=True)
class Explained:
    number: int
    title: str
    priority: int | None
    offered: bool
    reason: str


class BrokerClient:
    """The agent API, one call a method, no retries. Raises only :class:`BrokerError`.

    Safe to use from several threads.
    """

    def __init__(self, url: str, agent_id: str, token: str = "", roles: Sequence[str] = ()) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"{url!r} is no address: it must begin with http:// or https://.")
        self.agent_id = agent_id
        self.roles = list(roles)
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=ANSWER_SECONDS,
            trust_env=not is_local,  # a proxy cannot reach our own machine
        )

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request_task(self, timeout: float = 120, request_id: str | None = None) -> Task | None:
        """Wait up to ``timeout`` seconds for a task. None: there was none.

        After :class:`Unavailable` ask again with the same ``request_id``: if a task was assigned and its
        answer lost, it comes again. A new id ends whatever this agent still has.
        """
        body: dict[str, Any] = {"agent_id": self.agent_id, "timeout": timeout}
        body["request_id"] = request_id or uuid.uuid4().hex
        if self.roles:
            body["roles"] = self.roles
        answer = self._call("POST", "/api/v1/request-task", body, timeout + ANSWER_SECONDS)
        return _read(answer, _task) if answer.status_code == 200 else None

    def current_task(self) -> Task | None:
        answer = self._call("GET", f"/api/v1/agents/{quote(self.agent_id, safe='')}/current-task")
        return _read(answer, _task) if answer.status_code == 200 else None

    def heartbeat(self, assignment_id: int, progress: str = "") -> Heartbeat:
        """Prolong the lease. ``cancel``: stop, somebody took the task back. Raises :class:`LeaseLost`."""
        body = {"progress": progress[:2000]} if progress else {}
        return _read(self._call("POST", f"/api/v1/assignments/{assignment_id}/heartbeat", body), _heartbeat)

    def complete(
        self, assignment_id: int, result: Any = None, pull_request_number: int | None = None
    ) -> Ending:
        body = {"result": result, "pull_request_number": pull_request_number}
        return _read(self._call("POST", f"/api/v1/assignments/{assignment_id}/complete", body), _ending)

    def fail(self, assignment_id: int, reason: str) -> Ending:
        return _read(
            self._call("POST", f"/api/v1/assignments/{assignment_id}/fail", {"reason": reason}), _ending
        )

    def release(self, assignment_id: int) -> Ending:
        """Give the task back; it counts as no attempt."""
        return _read(self._call("POST", f"/api/v1/assignments/{assignment_id}/release"), _ending)

    def explain(self) -> list[Explained]:
        answer = self._call("GET", f"/api/v1/explain?agent_id={quote(self.agent_id, safe='')}")
        return _read(answer, _explained)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float = ANSWER_SECONDS
    ) -> httpx.Response:
        try:
            answer = self._http.request(
                method, path, json=body, timeout=httpx.Timeout(seconds, connect=ANSWER_SECONDS)
            )
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Unavailable(f"The broker does not answer: {error or type(error).__name__}.") from error
        except httpx.HTTPError as error:
            raise Refused(f"This address cannot be used: {error}.") from error
        if answer.status_code in (200, 202, 204):
            return answer
        raise _error_of(answer)


def _error_of(answer: httpx.Response) -> BrokerError:
    status = answer.status_code
    message, code = f"The broker answered {status}.", ""
    with contextlib.suppress(ValueError):  # a proxy's page, perhaps
        document = answer.json()
        if isinstance(document, dict) and isinstance(document.get("message"), str):
            message, code = document["message"], str(document.get("error", ""))
    if status == 409:
        return LeaseLost(message, status=status, code=code)
    if status == 429 or status >= 500:
        wait = retry_after_seconds(answer)
        return Unavailable(message, status=status, code=code, retry_after_seconds=wait)
    return Refused(message, status=status, code=code)


def retry_after_seconds(answer: httpx.Response) -> float:
    """The header, in seconds or as a date; 0 without one. Never more than ten minutes."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), 600.0)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return min(max((moment - _broker_now(answer)).total_seconds(), 0.0), 600.0)


def _broker_now(answer: httpx.Response) -> datetime:
    """By the broker's clock: ours may be wrong."""
    try:
        moment = parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return datetime.now(UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _read(answer: httpx.Response, make: Callable[[Any, httpx.Response], T]) -> T:
    """A body that is not what it should be may come from something in between: worth another try."""
    try:
        return make(answer.json(), answer)
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"The answer of the broker makes no sense: {error!r}.", status=answer.status_code
        ) from error


def _lease_seconds(document: Any, answer: httpx.Response) -> float:
    expires_at = datetime.fromisoformat(document["lease_expires_at"])
    return max((expires_at - _broker_now(answer)).total_seconds(), 0.0)


def _task(document: Any, answer: httpx.Response) -> Task:
    return Task(
        assignment_id=int(document["assignment_id"]),
        issue_id=int(document["issue_id"]),
        issue_url=str(document["issue_url"]),
        title=str(document["title"]),
        body=str(document["body"]),
        labels=tuple(str(label) for label in document["labels"]),
        repository=str(document["repository"]),
        branch_name=str(document["branch_name"]),
        base_branch=str(document["base_branch"]),
        prompt=str(document["prompt"]),
        required_role=str(document["required_role"]),
        task_type=str(document["task_type"]),
        pull_request_url=document["pull_request_url"],
        heartbeat_seconds=max(float(document["heartbeat_seconds"]), 0.1),
        lease_seconds=_lease_seconds(document, answer),
        state=document.get("state"),
        document=dict(document),
    )


def _heartbeat(document: Any, answer: httpx.Response) -> Heartbeat:
    return Heartbeat(bool(document["cancel"]), _lease_seconds(document, answer))


def _ending(document: Any, answer: httpx.Response) -> Ending:
    return Ending(int(document["assignment_id"]), int(document["issue_id"]), str(document["state"]))


def _explained(document: Any, answer: httpx.Response) -> list[Explained]:
    return [
        Explained(
            int(row["number"]), str(row["title"]), row["priority"], bool(row["offered"]), str(row["reason"])
        )
        for row in document["issues"]
    ]


# The command


def _die_with_parent() -> Callable[[], None] | None:
    """A child of a killed client is told to end: its task will be given to somebody else. Linux only."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork
    return lambda: libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Tail:
    """The last lines of a stream that is passed on as it comes."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self.lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.thread = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
        self.thread.start()

    def _pump(self, source: IO[bytes], sink: IO[bytes]) -> None:
        # A piece at a time: a "line" of a gigabyte must not become ours.
        while piece := source.readline(TAIL_CHARACTERS):
            self.lines.append(piece)
            with contextlib.suppress(OSError, ValueError):  # nobody listens to us: no matter to the work
                sink.write(piece)
                sink.flush()

    @property
    def text(self) -> str:
        """Without colours and control characters, which no database or page is fond of."""
        plain = COLOURS.sub("", b"".join(tuple(self.lines)).decode(errors="replace"))
        kept = "".join(char for char in plain if char.isprintable() or char in "\n\t")
        return kept[-TAIL_CHARACTERS:].strip()

    @property
    def last_line(self) -> str:
        return self.text.rpartition("\n")[2].strip()[:200]


class Command:
    """The agent's command at work on one task, in a process group of its own. Raises OSError if it cannot
    start."""

    def __init__(
        self, arguments: Sequence[str], task: Task, agent_id: str, on_end: Callable[[], None]
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="broker-task-"))
        try:
            task_file = self.folder / "task.json"
            task_file.write_text(json.dumps(task.document, ensure_ascii=False), encoding="utf-8")
            environment = {name: value for name, value in os.environ.items() if name != "BROKER_TOKEN"}
            environment |= {
                "BROKER_TASK_FILE": str(task_file),
                "BROKER_RESULT_FILE": str(self.folder / "result.json"),
                "BROKER_AGENT_ID": agent_id,
                "BROKER_ASSIGNMENT": str(task.assignment_id),
                "BROKER_ISSUE": str(task.issue_id),
                "BROKER_ISSUE_URL": task.issue_url,
                "BROKER_REPOSITORY": task.repository,
                "BROKER_BRANCH": task.branch_name,
                "BROKER_BASE_BRANCH": task.base_branch,
                "BROKER_TASK_TYPE": task.task_type,
                "BROKER_ROLE": task.required_role,
                "BROKER_PULL_REQUEST_URL": task.pull_request_url or "",
            }
            self.process = subprocess.Popen(
                list(arguments),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches us alone; we decide what becomes of it
                preexec_fn=_die_with_parent(),
            )
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.output = Tail(self.process.stdout, sys.stdout.buffer)
        self.errors = Tail(self.process.stderr, sys.stderr.buffer)
        self._start(self._feed, self.process.stdin, task.prompt.encode())
        self._start(self._watch, on_end)

    @staticmethod
    def _start(target: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    @staticmethod
    def _feed(stdin: IO[bytes], prompt: bytes) -> None:
        with contextlib.suppress(BrokenPipeError), stdin:  # it need not read
            stdin.write(prompt)

    def _watch(self, on_end: Callable[[], None]) -> None:
        self.process.wait()
        on_end()

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def stop(self, grace_seconds: float, is_in_hurry: Callable[[], bool]) -> None:
        """SIGTERM to all of it, then SIGKILL."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while not self.has_ended and time.monotonic() < deadline and not is_in_hurry():
            time.sleep(0.05)

    def close(self) -> None:
        """End what is left of it, and gather the last lines."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        for tail in (self.output, self.errors):
            tail.thread.join(2.0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def told_result(self) -> tuple[Any, int | None]:
        """What the command wrote to its result file: result and pull request; None where it said nothing."""
        try:
            with (self.folder / "result.json").open("rb") as file:
                document = json.loads(file.read(RESULT_BYTES))
        except (OSError, ValueError, RecursionError):
            return None, None
        if not isinstance(document, dict):
            return document, None
        number = document.get("pull_request_number")
        is_number = isinstance(number, int) and not isinstance(number, bool) and number > 0
        return document.get("result"), number if is_number else None

    def reason(self) -> str:
        """Why it failed, for people."""
        code = self.process.returncode
        if code >= 0:
            ending = f"exit status {code}"
        else:
            names = {member.value: member.name for member in signal.Signals}
            ending = f"killed by {names.get(-code, f'signal {-code}')}"
        text = self.errors.text or self.output.text
        return f"{ending}\n{text}" if text else ending


# The loop


class Stopped(Exception):
    """SIGINT or SIGTERM came while we waited."""


class Runner:
    """``run``: one task after the other until told to stop."""

    def __init__(
        self,
        make_client: Callable[[], BrokerClient],
        command: Sequence[str],
        *,
        timeout: float,
        grace_seconds: float,
        token: str = "",
    ) -> None:
        self.make_client = make_client
        self.client = make_client()
        self.command = list(command)
        self.timeout = timeout
        self.grace_seconds = grace_seconds
        self.token = token
        self.news = threading.Event()  # the command ended, the broker wants it back, or a signal came
        self.signals = 0
        self.is_waiting = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        self.news.set()
        if self.is_waiting:
            self.is_waiting = False
            raise Stopped

    def run(self, once: bool) -> int:
        """The exit status. Raises :class:`Refused` if going on makes no sense."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        try:
            self.patiently(self.settle_leftover)
            while True:
                task = self.wait_for_task()
                is_good = True
                if task is not None:
                    is_good = self.work_on(task)
                if self.signals:
                    return 0
                if once:
                    if task is None:
                        say(f"no task within {self.timeout:g} seconds")
                    return 0 if is_good else 1
                if task is None:
                    with self.interruptible():
                        time.sleep(pause_seconds(1, 0.0 if self.timeout else 5.0))
        except Stopped:
            self.give_back_unseen()
            return 0
        finally:
            self.client.close()

    # Waiting

    def patiently(self, call: Callable[[], T]) -> T:
        """Call until there is a definite answer. Raises :class:`Refused`; :class:`Stopped` on a signal."""
        for failures in range(1, sys.maxsize):
            try:
                with self.interruptible():
                    return call()
            except Unavailable as error:
                pause = pause_seconds(failures, error.retry_after_seconds)
                say(f"{error.message} Again in {pause:.0f} s.")
            with self.interruptible():
                time.sleep(pause)
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        self.is_waiting = True
        try:
            if self.signals:
                raise Stopped
            yield
        finally:
            self.is_waiting = False

    def settle_leftover(self) -> None:
        left = self.client.current_task()
        if left is not None:
            with contextlib.suppress(LeaseLost):
                self.client.fail(left.assignment_id, "the client ended before it reported an outcome")
                say(f"issue {left.issue_id} was left behind by an earlier run: reported as failed")

    def wait_for_task(self) -> Task | None:
        """A task, or None if there was none within the time-out."""
        request_id = uuid.uuid4().hex
        task = self.patiently(lambda: self.client.request_task(self.timeout, request_id))
        if task is not None and not task.is_ours_to_do:
            say(f"issue {task.issue_id} came too late: the assignment is {task.state}")
            return None
        return task

    def give_back_unseen(self) -> None:
        """We hung up while waiting. A claim already under way is completed all the same: give it back."""
        self.client.close()
        self.client = self.make_client()
        for _ in range(3):
            try:
                task = self.client.current_task()
                if task is not None:
                    self.client.release(task.assignment_id)
                    say(f"issue {task.issue_id} given back")
                    return
            except BrokerError:
                return
            time.sleep(0.3)

    # Working

    def work_on(self, task: Task) -> bool:
        """Run the command for a task and report; True if it was completed."""
        say(f"issue {task.issue_id} ({task.task_type}) on {task.branch_name}: {printable(task.title)}")
        self.news.clear()
        if self.signals:
            self.report(task, lambda: self.client.release(task.assignment_id), "given back")
            return False
        try:
            command = Command(self.command, task, self.client.agent_id, self.news.set)
        except OSError as error:
            self.report(task, lambda: self.client.release(task.assignment_id), "given back")
            raise Refused(f"{self.command[0]} cannot be started: {error.strerror}.") from error
        keeper = Keeper(self.client, task, command, self.news, self.hide)
        try:
            while not (command.has_ended or keeper.verdict or self.signals):
                self.news.wait()
                self.news.clear()
            was_stopped = not command.has_ended
            if was_stopped:
                command.stop(self.grace_seconds, lambda: self.signals > 1)
            result, pull_number = command.told_result()
        finally:
            keeper.stop()
            command.close()
        if keeper.refusal is not None:
            raise keeper.refusal
        if keeper.verdict == "lost":
            say(f"issue {task.issue_id} is no longer ours; the command was stopped")
            return False
        lease_ends_at = keeper.lease_ends_at
        if was_stopped:
            self.report(task, lambda: self.client.release(task.assignment_id), "given back", lease_ends_at)
            return False
        if command.process.returncode == 0:
            told = self.hide_all(result) if result is not None else self.hide(command.output.text)
            return self.report(
                task,
                lambda: self.client.complete(task.assignment_id, told, pull_number),
                "completed",
                lease_ends_at,
            )
        reason = self.hide(command.reason())
        self.report(
            task, lambda: self.client.fail(task.assignment_id, reason), "reported as failed", lease_ends_at
        )
        return False

    def report(
        self, task: Task, call: Callable[[], Ending], words: str, lease_ends_at: float | None = None
    ) -> bool:
        """Deliver an outcome; again and again until the lease is over, or briefly when we are to stop."""
        deadline = lease_ends_at if lease_ends_at is not None else time.monotonic() + task.lease_seconds
        stop_by: float | None = None
        for failures in range(1, sys.maxsize):
            try:
                call()
                say(f"issue {task.issue_id} {words}")
                return True
            except LeaseLost as error:
                say(f"issue {task.issue_id} is no longer ours: {error.message}")
                return False
            except Unavailable as error:
                pause = pause_seconds(failures, error.retry_after_seconds)
                if self.signals and stop_by is None:
                    stop_by = time.monotonic() + LEAVING_SECONDS
                end = min(deadline, stop_by if stop_by is not None else deadline)
                left = end - time.monotonic()
                if left <= 0:
                    break
                say(f"{error.message} The outcome is sent again.")
                self.news.clear()
                self.news.wait(min(pause, left))  # a signal cuts it short
        say(f"issue {task.issue_id}: the broker could not be told in time that it was {words}")
        return False

    def hide(self, text: str) -> str:
        return text.replace(self.token, HIDDEN) if self.token else text

    def hide_all(self, value: Any) -> Any:
        return json.loads(self.hide(json.dumps(value, ensure_ascii=False)))


class Keeper:
    """Keeps the lease while the command runs. ``verdict``: ``lost``, ``cancel``, or nothing to say."""

    def __init__(
        self,
        client: BrokerClient,
        task: Task,
        command: Command,
        news: threading.Event,
        hide: Callable[[str], str],
    ) -> None:
        self.client, self.task, self.command, self.news, self.hide = client, task, command, news, hide
        self.verdict = ""
        self.refusal: Refused | None = None
        self.lease_ends_at = time.monotonic() + task.lease_seconds
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """No further heartbeats; one on its way may still arrive, and is harmless."""
        self.done.set()
        self.thread.join(1.0)

    def _beat(self) -> None:
        pause, failures = self.task.heartbeat_seconds, 0
        while not self.done.wait(pause):
            asked_at = time.monotonic()
            try:
                progress = self.hide(self.command.output.last_line)
                beat = self.client.heartbeat(self.task.assignment_id, progress)
            except Unavailable as error:
                failures += 1
                pause = min(pause_seconds(failures, error.retry_after_seconds), self.task.heartbeat_seconds)
                continue
            except Refused as error:
                self.verdict = "lost"
                if error.status in (401, 403):
                    self.refusal = error
                self.news.set()
                return
            failures, pause = 0, self.task.heartbeat_seconds
            self.lease_ends_at = asked_at + beat.lease_seconds
            if beat.cancel:
                self.verdict = "cancel"
                self.news.set()
                return


def pause_seconds(failures: int, at_least_seconds: float = 0.0) -> float:
    """Before the next try: 1, 2, 4 … 60 s, spread at random so that clients do not come back together."""
    longest = min(LONGEST_PAUSE_SECONDS, 2.0 ** min(failures - 1, 10))
    spread = random.uniform(0.5, 1.0) * longest  # noqa: S311 - no secret
    return at_least_seconds + spread * (0.25 if at_least_seconds else 1.0)


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: titles are written by anybody."""
    return "".join(char if char.isprintable() else " " for char in text)


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"broker_client: {text}", file=sys.stderr, flush=True)


# The command line


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", required=True, help="where the broker is, e.g. http://127.0.0.1:8000")
    common.add_argument("--agent-id", required=True)
    common.add_argument(
        "--token",
        help="the agent's token; better in the environment as BROKER_TOKEN, which `ps` does not show",
    )
    parser = argparse.ArgumentParser(prog="broker_client", description="Work for a Broker as an agent.")
    commands = parser.add_subparsers(dest="action", required=True)
    run = commands.add_parser("run", parents=[common], help="ask for tasks and run a command for each")
    run.add_argument(
        "--role", action="append", default=[], dest="roles", help="only such tasks; repeat for several"
    )
    run.add_argument(
        "--once", action="store_true", help="ask once, do that task, and end (exit status 1 if it failed)"
    )
    run.add_argument("--timeout", type=float, default=120, help="seconds that one request waits, 0 to 600")
    run.add_argument("--grace", type=float, default=10, help="seconds between SIGTERM and SIGKILL")
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ARGS …")
    commands.add_parser("current", parents=[common], help="print the task in hand as JSON")
    commands.add_parser("explain", parents=[common], help="say why each issue is or is not on offer")
    options = parser.parse_args(arguments)
    if options.action == "run":
        options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
        if not options.command:
            run.error("give the command after --")
        if shutil.which(options.command[0]) is None:
            run.error(f"there is no command {options.command[0]!r}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    token = options.token or os.environ.get("BROKER_TOKEN", "")

    def make_client() -> BrokerClient:
        return BrokerClient(options.url, options.agent_id, token, getattr(options, "roles", ()))

    try:
        if options.action == "run":
            runner = Runner(
                make_client,
                options.command,
                timeout=options.timeout,
                grace_seconds=options.grace,
                token=token,
            )
            return runner.run(options.once)
        with make_client() as client:
            return show_current(client) if options.action == "current" else show_explanation(client)
    except Refused as error:
        say(error.message)
        return 2
    except Unavailable as error:
        say(error.message)
        return 1


def show_current(client: BrokerClient) -> int:
    task = client.current_task()
    if task is None:
        say("no task in hand")
        return 1
    print(json.dumps(task.document, ensure_ascii=False, indent=2))
    return 0


def show_explanation(client: BrokerClient) -> int:
    for row in client.explain():
        priority = "-" if row.priority is None else f"P{row.priority}"
        print(f"#{row.number:<6} {priority:4} {printable(row.reason):40} {printable(row.title)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
