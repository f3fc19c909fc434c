"""What must be true whatever happened, read from what was recorded: rows, events, Redis, the stand-ins.

Made for the fault tests and for anything that runs longer. It needs no fixture: give :class:`Evidence` the
records (a database address, or a configured Django), a Redis client and the sandbox's handle. Each check gives
sentences about what is wrong; none is good. :func:`broken` asks them all.

While work goes on, :func:`broken_at_any_time` holds. What a killed process left behind is healed by the pollers
in their own time: :func:`broken` holds once the sweep and a poll have run after the last lease ended.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import redis

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from fixtures.csv.parsing import parse_table
from sandbox.launcher import SandboxHandle
from tests.faults.records import Records, moment

LIVE = ("claiming", "live")
STATES = {"claiming", "live", "completed", "failed", "released", "lost", "aborted"}
ENDED = STATES - set(LIVE)
ENDING_EVENTS = {"completed", "failed", "released", "lost", "parked", "aborted"}
# Status and reason of an item that has left the queue, and of one that is still in it.
ITEM_ENDINGS = {(3, 0), (3, 1), (3, 6)}
# YES leaves the reason that an item was deferred with; it means nothing while the item is pending (seed 004).
ITEM_WAITING = {
    (0, None),
    (2, 0),
    (2, None),
    *((status, reason) for status in (1, 2) for reason in range(1, 6)),
}
FIXTURE_STATES = {"pending", "processing", "complete", "failed"}
# Two processes read the clock before they write: so far may their rows disagree about who was first.
CLOCK_TOLERANCE = timedelta(seconds=5)


@dataclass
class Evidence:
    records: Records
    store: redis.Redis
    sandbox: SandboxHandle
    keys: Keyspace = field(default_factory=lambda: Keyspace(RedisNames()))
    clock_is_steady: bool = True
    csv_rows_seen: set[str] = field(default_factory=set)

    def remember_csv(self) -> None:
        """Rows that are in the file now must stay in it."""
        self.csv_rows_seen |= set(csv_rows(self.sandbox) or {})


def broken_at_any_time(evidence: Evidence) -> list[str]:
    return [
        *more_than_one_live(evidence),
        *overlapping_work(evidence),
        *nameless_states(evidence),
        *repeated_posts(evidence.records, evidence.sandbox),
        *lost_csv_rows(evidence),
        *eternal_locks(evidence.store),
    ]


def broken(evidence: Evidence) -> list[str]:
    return [
        *broken_at_any_time(evidence),
        *unfinished_work(evidence),
        *stray_labels(evidence.records, evidence.sandbox),
        *issues_in_limbo(evidence),
        *redis_shows_other_work(evidence),
        *csv_is_behind(evidence),
    ]


def more_than_one_live(evidence: Evidence) -> list[str]:
    """By the events in the order they were written: nobody is given what another has, nor two things at once."""
    found = []
    holder: dict[Any, int] = {}
    busy: dict[Any, int] = {}
    rows = evidence.records.rows(
        "SELECT e.what, e.assignment_id, a.repository_id, a.number, a.agent_id FROM tasks_event e"
        " JOIN tasks_assignment a ON a.id = e.assignment_id ORDER BY e.id"
    )
    for what, assignment, repository, number, agent in rows:
        issue = (repository, number)
        if what == "assigned":
            if issue in holder:
                found.append(f"issue {number} was given as {assignment} while {holder[issue]} had it")
            if agent in busy:
                found.append(f"agent {agent} was given {assignment} while it had {busy[agent]}")
            holder[issue], busy[agent] = assignment, assignment
        elif what in ENDING_EVENTS:
            if holder.get(issue) == assignment:
                del holder[issue]
            if busy.get(agent) == assignment:
                del busy[agent]
    counted = Counter((what, assignment) for what, assignment, *_ in rows if what in ENDING_EVENTS)
    found += [f"assignment {a} ended as {what} {n} times" for (what, a), n in counted.items() if n > 1]
    return found


def overlapping_work(evidence: Evidence) -> list[str]:
    """By the times in the rows. A clock that jumped tells nothing, the events still do."""
    rows = evidence.records.rows(
        "SELECT id, repository_id, number, agent_id, started_at, ended_at FROM tasks_assignment"
        " WHERE started_at IS NOT NULL ORDER BY id"
    )
    if not evidence.clock_is_steady:
        return []
    found = []
    for position, name in ((2, "issue"), (3, "agent")):
        spans: dict[Any, list[tuple[datetime, datetime, int]]] = defaultdict(list)
        for row in rows:
            end = moment(row[5]) or datetime.max.replace(tzinfo=UTC)
            key = (row[1], row[2]) if position == 2 else row[3]
            start = moment(row[4])
            assert start is not None
            spans[key].append((start, end, row[0]))
        for key, times in spans.items():
            times.sort()
            for one, other in pairwise(times):
                if one[1] - CLOCK_TOLERANCE > other[0]:
                    found.append(f"{name} {key}: assignments {one[2]} and {other[2]} overlap")
    return found


def nameless_states(evidence: Evidence) -> list[str]:
    records = evidence.records
    found = [
        f"assignment {pk} is {state!r}"
        for pk, state in records.rows("SELECT id, state FROM tasks_assignment")
        if state not in STATES
    ]
    found += [
        f"item {pk} has status {status}, reason {reason}"
        for pk, status, reason in records.rows("SELECT id, status, reason FROM items")
        if (status, reason) not in ITEM_ENDINGS | ITEM_WAITING
    ]
    found += [
        f"match {pk} is {status!r}"
        for pk, status in records.rows("SELECT fixture_id, status FROM fixture_status")
        if status not in FIXTURE_STATES
    ]
    return found


def unfinished_work(evidence: Evidence) -> list[str]:
    """Claims that nobody holds any more, and debts that nobody paid."""
    records = evidence.records
    found = [
        f"assignment {pk} is still being made"
        for (pk,) in records.rows("SELECT id FROM tasks_assignment WHERE state = 'claiming'")
    ]
    found += [
        f"assignment {pk} owes labels: {owed}"
        for pk, owed in records.rows(
            "SELECT id, labels_due FROM tasks_assignment WHERE labels_due IS NOT NULL"
        )
        if owed not in ("null", None)
    ]
    found += [
        f"item {pk} is claimed by {who}"
        for pk, who in records.rows("SELECT item_id, claimed_by FROM feeds_itemlease")
    ]
    found += [
        f"match {pk} is in processing without a claim"
        for (pk,) in records.rows(
            "SELECT s.fixture_id FROM fixture_status s LEFT JOIN fixtures_matchlease l"
            " ON l.fixture_id = s.fixture_id AND l.expires_at IS NOT NULL"
            " WHERE s.status = 'processing' AND l.fixture_id IS NULL"
        )
    ]
    return found


def posts_by_link(sandbox: SandboxHandle, links: Iterable[str]) -> Counter[str]:
    texts = [status["text"].split() for status in sandbox.state("mastodon")["statuses"]]
    return Counter({link: sum(link in words for words in texts) for link in links})


def repeated_posts(records: Records, sandbox: SandboxHandle) -> list[str]:
    rows = records.rows("SELECT url, status, reason FROM items")
    posts = posts_by_link(sandbox, [url for url, *_ in rows])
    found = [f"{url} was posted {posts[url]} times" for url, *_ in rows if posts[url] > 1]
    found += [
        f"{url} is on record as posted and is not there"
        for url, status, reason in rows
        if (status, reason) == (3, 0) and posts[url] == 0
    ]
    return found


def github_issues(sandbox: SandboxHandle) -> dict[tuple[str, int], set[str]]:
    """The labels of every open issue and pull request."""
    found = {}
    for repository in sandbox.state("github")["repositories"]:
        names = {label["name"].lower(): label["name"] for label in repository["labels"]}
        full_name = f"{repository['owner']}/{repository['name']}"
        for issue in repository["issues"]:
            if issue["state"] == "open":
                found[(full_name, issue["number"])] = {names[label.lower()] for label in issue["labels"]}
    return found


def stray_labels(records: Records, sandbox: SandboxHandle) -> list[str]:
    """``in-progress`` and an agent's name mean a live assignment, and the other way round."""
    live = {
        (full_name, number): agent
        for full_name, number, agent in records.rows(
            "SELECT r.full_name, a.number, g.name FROM tasks_assignment a"
            " JOIN tasks_repository r ON r.id = a.repository_id JOIN tasks_agent g ON g.id = a.agent_id"
            " WHERE a.state IN ('claiming', 'live')"
        )
    }
    agents = {name for (name,) in records.rows("SELECT name FROM tasks_agent")}
    ours = {
        (full_name, number)
        for full_name, number in records.rows(
            "SELECT DISTINCT r.full_name, a.number FROM tasks_assignment a"
            " JOIN tasks_repository r ON r.id = a.repository_id"
        )
    }
    found = []
    for issue, labels in github_issues(sandbox).items():
        if issue not in ours:
            continue
        wanted = {"in-progress", live[issue]} if issue in live else set()
        shown = labels & ({"in-progress"} | agents)
        if shown != wanted:
            found.append(f"issue {issue[1]} has the labels {sorted(shown)} instead of {sorted(wanted)}")
    return found


def issues_in_limbo(evidence: Evidence) -> list[str]:
    """Every open issue is in the index; what may be offered is offered, waits for its time, or is being taken."""
    store, keys = evidence.store, evidence.keys
    if not store.exists(keys.key(k.INDEX_READY)):
        return []  # the next request builds it
    entries = {
        int(number): json.loads(text) for number, text in store.hgetall(keys.key(k.INDEX_ENTRIES)).items()
    }
    rows = evidence.records.rows(
        "SELECT i.number FROM tasks_issue i JOIN tasks_repository r ON r.id = i.repository_id"
        " WHERE r.namespace = ? AND i.is_open",
        keys.names.namespace,
    )
    found = [f"issue {number} is not in the index" for (number,) in rows if number not in entries]
    offered: set[int] = set()
    for key in (
        keys.key(k.INDEX_OFFER, role="*"),
        keys.key(k.INDEX_FLOAT, role="*"),
        keys.key(k.INDEX_WAITING),
        keys.key(k.INDEX_CLAIMED),
    ):
        offered |= set(scores(store, key))
    taken = live_numbers(evidence)
    for number, entry in entries.items():
        if entry["o"] == 1 and number not in offered:
            found.append(f"issue {number} is on offer by its entry and in no queue")
        if entry["o"] == 1 and number in taken:
            found.append(f"issue {number} is on offer although an agent has it")
    for number, score in scores(store, keys.key(k.INDEX_CLAIMED)).items():
        age = datetime.now(UTC).timestamp() - score
        if number not in taken and age > k.ISSUE_LOCK_SECONDS:
            found.append(f"issue {number} was taken off the index {age:.0f} s ago for nobody")
    return found


def scores(store: redis.Redis, key: str) -> dict[int, float]:
    """A sorted set of issue numbers."""
    found: Any = store.zrange(key, 0, -1, withscores=True)
    return {int(number): float(score) for number, score in found}


def live_numbers(evidence: Evidence) -> set[int]:
    rows = evidence.records.rows(
        "SELECT a.number FROM tasks_assignment a JOIN tasks_repository r ON r.id = a.repository_id"
        " WHERE a.state IN ('claiming', 'live') AND r.namespace = ?",
        evidence.keys.names.namespace,
    )
    return {number for (number,) in rows}


def redis_shows_other_work(evidence: Evidence) -> list[str]:
    """Who looks into Redis sees the work that there is, and none that has ended."""
    store, keys = evidence.store, evidence.keys
    if not store.exists(keys.key(k.INDEX_READY)):
        return []
    shown = {int(number) for number in store.smembers(keys.key(k.ISSUES_PROCESSING))}
    live = live_numbers(evidence)
    return [f"Redis shows work on {number}, which has ended" for number in sorted(shown - live)] + [
        f"Redis does not show the work on {number}" for number in sorted(live - shown)
    ]


def csv_rows(sandbox: SandboxHandle) -> dict[str, str] | None:
    """Fixture and status of each row in the bucket's file; None if there is no file."""
    for entry in sandbox.state("gcs")["objects"]:
        if entry["name"].endswith("fixture_status.csv"):
            return {row.fixture_id: row.status.value for row in parse_table(base64.b64decode(entry["data"]))}
    return None


def lost_csv_rows(evidence: Evidence) -> list[str]:
    rows = csv_rows(evidence.sandbox) or {}
    return [f"the CSV has lost the row of {one}" for one in sorted(evidence.csv_rows_seen - set(rows))]


def csv_is_behind(evidence: Evidence) -> list[str]:
    rows = csv_rows(evidence.sandbox)
    table: dict[str, str] = dict(evidence.records.rows("SELECT fixture_id, status FROM fixture_status"))
    if rows is None:
        return [f"there is no CSV, and {len(table)} rows to tell of"] if table else []
    return [
        f"the CSV says {rows.get(one)} of match {one}, its row {table.get(one)}"
        for one in sorted(set(rows) | set(table))
        if rows.get(one) != table.get(one)
    ]


def eternal_locks(store: redis.Redis) -> list[str]:
    locks = [key for key in store.scan_iter(count=1000) if "lock" in str(key).split(":", 1)[-1].lower()]
    return [f"the lock {key} never ends" for key in locks if store.ttl(key) == -1]


def late_pollers(
    records: Records, intervals: dict[str, float], now: datetime, slack_seconds: float = 60
) -> list[str]:
    """Pollers that have not begun a run within their interval, by the record of runs. For a running cluster."""
    last = {
        name: moment(started)
        for name, started in records.rows("SELECT name, max(started_at) FROM broker_pollerrun GROUP BY name")
    }
    found = []
    for name, seconds in intervals.items():
        begun = last.get(name)
        if begun is None:
            found.append(f"{name} has never run")
        elif (now - begun).total_seconds() > seconds + slack_seconds:
            found.append(
                f"{name} ran {(now - begun).total_seconds():.0f} s ago, its interval is {seconds:.0f} s"
            )
    return found
