"""The operations that faults are done to: how each begins, what it does, and how it must have ended.

``begin`` starts from a snapshot and gives the process that will do the work; ``act`` lets it do the work and
gives a word for what came back; ``settle`` does what agents and pollers do afterwards by themselves, and checks
what is particular to the operation. What holds for all of them is in :mod:`tests.faults.invariants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.faults.invariants import csv_rows, posts_by_link
from tests.faults.world import HOUR, LEAGUE, FaultWorld, Process, matches_of

TEXT = ["総務省は、無線局の免許の手続を見直す省令案を取りまとめ、意見の募集を開始しました。"]
LONG_TEXT = "as long as what agents say " * 50  # needs room of its own in the database
FOREIGN = "foreign-1"


@dataclass
class Run:
    """One go at an operation."""

    process: Process
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    name: str
    systems: tuple[str, ...]  # that it calls
    prepare: Callable[[FaultWorld], None]  # from the empty world to its snapshot, once a session
    begin: Callable[..., Run]
    act: Callable[[FaultWorld, Run], str]
    settle: Callable[[FaultWorld, Run], None]
    has_redis: bool = True
    is_web: bool = False

    def ready(self, world: FaultWorld) -> None:
        if self.name not in world.snapshots:
            world.begin()
            self.prepare(world)
            world.snapshot(self.name)
        world.begin(self.name)


def nothing(world: FaultWorld) -> None:
    """The empty world will do."""


def word(answer: Any) -> str:
    return "no answer" if answer is None else str(answer.status_code)


def web(world: FaultWorld, run: Run) -> Process:
    """The server, started again if it was killed, as the supervisor would."""
    if not run.process.is_alive:
        run.process = world.start_web()
    return run.process


def on_web(world: FaultWorld, **options: Any) -> Run:
    return Run(world.start_web(**options))


# Assignment


def ask_for_task(world: FaultWorld, run: Run) -> str:
    return word(world.ask(run.process, request_id="first"))


def settle_assignment(world: FaultWorld, run: Run) -> None:
    """The agent asks again with the same request id, as the client does, until it has its task; and does it."""
    state = world.records.rows("SELECT state FROM tasks_assignment WHERE request_id = 'first'")
    answer = None if state == [("claiming",)] else world.ask(web(world, run), request_id="first")
    if answer is None or answer.status_code != 200:
        # The maker died half-way: nobody waits for it longer than its lock lives.
        world.pass_time()
        world.run("poll", "zombies", "--force")
        answer = world.ask(web(world, run), request_id="first")
    assert answer is not None
    assert answer.status_code == 200, (answer.status_code, answer.text)
    assert answer.json().get("state", "live") == "live", answer.text
    given = answer.json()["assignment_id"]
    done = world.post(web(world, run), f"/api/v1/assignments/{given}/complete", {"result": "done"})
    assert done is not None
    assert done.status_code == 200, done.text
    states = world.records.rows("SELECT state FROM tasks_assignment WHERE state != 'aborted'")
    assert states == [("completed",)], states
    world.settle()


# Completion: complete, fail, release


def with_task(world: FaultWorld, **options: Any) -> Run:
    run = on_web(world, **options)
    answer = world.ask(run.process)
    assert answer is not None
    assert answer.status_code == 200, answer.text
    run.facts["task"] = answer.json()
    return run


def ending(name: str, body: dict[str, Any]) -> Callable[[FaultWorld, Run], str]:
    def act(world: FaultWorld, run: Run) -> str:
        number = run.facts["task"]["assignment_id"]
        return word(world.post(run.process, f"/api/v1/assignments/{number}/{name}", body))

    return act


def settle_ending(act: Callable[[FaultWorld, Run], str], state: str) -> Callable[[FaultWorld, Run], None]:
    def settle(world: FaultWorld, run: Run) -> None:
        """The agent says it again until it hears that it is on record."""
        task = run.facts["task"]
        web(world, run)
        assert act(world, run) == "200"
        found = world.records.value("SELECT state FROM tasks_assignment WHERE id = ?", task["assignment_id"])
        assert found == state
        world.settle()
        labels = {label["name"] for label in world.github("GET", f"/issues/{task['issue_id']}/labels")}
        assert ("needs-review" in labels) == (state == "completed"), labels
        attempts = world.records.value(
            "SELECT lost_attempts FROM tasks_issue WHERE number = ?", task["issue_id"]
        )
        assert attempts == (1 if state == "failed" else 0)
        if state != "completed":
            answers = [world.ask(web(world, run), f"agent-{number}") for number in (2, 3, 4)]
            assert task["issue_id"] in {
                one.json()["issue_id"] for one in answers if one and one.status_code == 200
            }
            world.settle()

    return settle


# Heartbeat


def with_old_task(world: FaultWorld, **options: Any) -> Run:
    """An agent that was silent for 20 of its 30 minutes: what it says now has to reach the database."""
    run = with_task(world, **options)
    world.pass_time(1200)
    return run


def beat(world: FaultWorld, run: Run) -> str:
    number = run.facts["task"]["assignment_id"]
    return word(world.post(run.process, f"/api/v1/assignments/{number}/heartbeat", {"progress": LONG_TEXT}))


def settle_heartbeat(world: FaultWorld, run: Run) -> None:
    """It goes on saying so, and 20 minutes later nobody has taken the work away."""
    web(world, run)
    assert beat(world, run) == "200"
    world.pass_time(1200)
    world.run("poll", "zombies", "--force")
    number = run.facts["task"]["assignment_id"]
    assert world.records.value("SELECT state FROM tasks_assignment WHERE id = ?", number) == "live"
    assert beat(world, run) == "200"
    world.run("poll", "issues", "--force")


# Sweep


def leave_work(world: FaultWorld) -> None:
    """An agent that died, an assignment that died half-way, and a claim that never became a row."""
    server = world.start_web()
    for agent in ("agent-1", "agent-2"):
        answer = world.ask(server, agent)
        assert answer is not None
        assert answer.status_code == 200
    world.end_processes()
    world.records.rows(
        "UPDATE tasks_assignment SET state = 'claiming', started_at = NULL WHERE agent_id ="
        " (SELECT id FROM tasks_agent WHERE name = 'agent-2')"
    )
    world.records.rows(
        "DELETE FROM tasks_event WHERE assignment_id IN"
        " (SELECT id FROM tasks_assignment WHERE state = 'claiming')"
    )
    world.pass_time()


def settle_sweep(world: FaultWorld, run: Run) -> None:
    """The next sweep finishes it: each counted once, and all three issues can be had."""
    world.settle()
    states: dict[str, str] = dict(
        world.records.rows(
            "SELECT g.name, a.state FROM tasks_assignment a JOIN tasks_agent g ON g.id = a.agent_id"
        )
    )
    assert states == {"agent-1": "lost", "agent-2": "aborted"}
    assert world.records.value("SELECT sum(lost_attempts) FROM tasks_issue") == 1
    server = world.start_web()
    answers = [world.ask(server, f"agent-{number}") for number in (3, 4, 5)]
    assert [word(answer) for answer in answers] == ["200"] * 3
    assert len({answer.json()["issue_id"] for answer in answers if answer is not None}) == 3
    world.settle()


# Feeds


def command(*arguments: str) -> Callable[..., Run]:
    def begin(world: FaultWorld, **options: Any) -> Run:
        return Run(world.start(*arguments, **options))

    return begin


def run_command(world: FaultWorld, run: Run) -> str:
    run.process.go()
    status = run.process.wait()
    return "killed" if status == -9 else f"exit {status}"


def small_feed(world: FaultWorld) -> None:
    world.sandbox.load("feed", {"items": [], "bulk": 5})


def settle_feeds(world: FaultWorld, run: Run) -> None:
    world.pass_time(30 * HOUR)
    world.run("poll", "feeds")
    rows = world.records.rows("SELECT url FROM items")
    assert len(rows) == len(set(rows)) == 5
    assert world.records.value("SELECT count(*) FROM feeds_itemdetail") == 5
    assert world.records.rows("SELECT last_error, failures FROM feeds_feed") == [("", 0)]


def page(world: FaultWorld, slug: str, status: int, **given: Any) -> str:
    world.sandbox.load(
        "feed", {"items": [], "bulk": 0, "add": [{"slug": slug, "title": "追加の題名", **given}]}
    )
    url = f"{world.sandbox.base_url}/feed/menu_news/s-news/{slug}.html"
    at = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    world.records.rows(
        "INSERT INTO items (url, title, published_at, status, retry_count, created_at, last_checked_at)"
        " VALUES (?, '題名', ?, ?, 0, ?, ?)",
        *(url, at, status, at, at),
    )
    return url


def unscreened_item(world: FaultWorld) -> None:
    page(world, "fault", 0, paragraphs=TEXT * 20)


def pending_item(world: FaultWorld) -> None:
    document = {"name": "fault.pdf", "title": "省令案", "paragraphs": TEXT}
    page(world, "fault", 2, paragraphs=TEXT, documents=[document])


def summarised_item(world: FaultWorld) -> None:
    pending_item(world)
    # Let one run get as far as the post, and be told that it is not taken.
    world.sandbox.fault("mastodon", "status", status=422, method="POST", path="/api/v1/statuses$")
    world.run("poll", "items")
    world.sandbox.clear_faults()
    world.records.rows("UPDATE items SET status = 2, reason = 0, retry_count = 0")
    assert world.records.rows("SELECT state FROM feeds_post") == [("draft",)]


def settle_item(world: FaultWorld, run: Run) -> None:
    """Within a few runs it is posted, once. A crash or an outage has cost attempts, no more than allowed."""
    for _ in range(3):
        world.pass_time()
        world.run("poll", "items", "--all")
    ((url, status, reason),) = world.records.rows("SELECT url, status, reason FROM items")
    assert (status, reason) == (3, 0)
    assert posts_by_link(world.sandbox, [url])[url] == 1
    texts = [one["text"] for one in world.sandbox.state("mastodon")["statuses"]]
    assert len(texts) == 1


# Matches


def one_match(world: FaultWorld) -> None:
    """One match in the window, the others called off; and a row that somebody else put into the file."""
    kickoff = datetime.now(UTC) + timedelta(minutes=30)
    match = {"league": LEAGUE, "home": 33, "away": 40, "kickoff": kickoff.isoformat()}
    called_off = {fixture_id: {"status": "PST"} for fixture_id in matches_of(world.sandbox, LEAGUE)}
    world.sandbox.load("football", {"extra": [match], "overrides": called_off})
    header = "fixture_id,date,kickoff_jst,status,first_attempt_at,last_attempt_at,attempts,error_message"
    put_csv(world, f"{header}\n{FOREIGN},2026-01-02,2026-01-02T03:00:00+09:00,complete,,,0,\n")


def put_csv(world: FaultWorld, text: str) -> None:
    answer = world.sandbox.client.post(
        "/gcs/upload/storage/v1/b/guides/o",
        params={"uploadType": "media", "name": "schedule/fixture_status.csv"},
        content=text.encode(),
        headers={"Content-Type": "text/csv"},
    )
    answer.raise_for_status()


def settle_matches(world: FaultWorld, run: Run) -> None:
    """Within the attempts that it has, the match is complete; the file tells of it and kept the foreign row."""
    for _ in range(3):
        world.pass_time()
        world.run("poll", "dispatch", "--force")
    world.run("poll", "fixtures", "--force")
    rows: dict[str, str] = dict(world.records.rows("SELECT fixture_id, status FROM fixture_status"))
    assert rows.pop(FOREIGN) == "complete"
    assert "complete" in rows.values(), rows
    completed = world.records.rows("SELECT fixture_id FROM fixtures_event WHERE what = 'completed'")
    assert len(completed) == len(set(completed))
    table = csv_rows(world.sandbox)
    assert table is not None
    assert FOREIGN in table


def untold_matches(world: FaultWorld) -> None:
    """The rows are ahead of the file: a match was given up, and the run that did it died before it could tell."""
    one_match(world)
    world.run("poll", "fixtures", "--force")
    row = ("given-up", "2026-01-03", "2026-01-03T03:00:00+09:00", "failed", 3, "no answer")
    world.records.rows(
        "INSERT INTO fixture_status (fixture_id, date, kickoff_jst, status, attempts, error_message)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        *row,
    )
    world.records.rows("UPDATE fixtures_csvstate SET revision = revision + 1")
    world.records.rows(
        "INSERT INTO fixtures_foreignrow (fixture_id, seen_at) VALUES (?, '2026-01-03')", row[0]
    )


OPERATIONS = [
    Operation("assignment", ("github",), nothing, on_web, ask_for_task, settle_assignment, is_web=True),
    *(
        Operation(
            f"completion-{name}",
            ("github",),
            nothing,
            with_task,
            ending(name, body),
            settle_ending(ending(name, body), state),
            is_web=True,
        )
        for name, body, state in (
            ("complete", {"result": LONG_TEXT}, "completed"),
            ("fail", {"reason": LONG_TEXT}, "failed"),
            ("release", {}, "released"),
        )
    ),
    Operation("heartbeat", (), nothing, with_old_task, beat, settle_heartbeat, is_web=True),
    Operation("sweep", ("github",), leave_work, command("poll", "zombies"), run_command, settle_sweep),
    Operation("feed-fetch", ("feed",), small_feed, command("poll", "feeds"), run_command, settle_feeds),
    Operation(
        "screening", ("feed", "gemini"), unscreened_item, command("poll", "items"), run_command, settle_item
    ),
    Operation(
        "summary", ("feed", "gemini"), pending_item, command("poll", "items"), run_command, settle_item
    ),
    Operation("post", ("mastodon",), summarised_item, command("poll", "items"), run_command, settle_item),
    Operation(
        "match-run",
        ("football", "gemini", "gcs"),
        one_match,
        command("poll", "fixtures"),
        run_command,
        settle_matches,
    ),
    Operation(
        "csv-write", ("gcs",), untold_matches, command("poll", "dispatch"), run_command, settle_matches
    ),
]
BY_NAME = {operation.name: operation for operation in OPERATIONS}
