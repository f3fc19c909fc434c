"""What must hold after a chaos run, from what clients saw, the database and GitHub's labels; nothing else.

Each rule gives sentences about what is wrong; none is good. An agent *holds* an issue from the moment it has
the task in its hands until it says a last word, asks for another task, hears that it was taken away, or the
lease ends that it was last told of. In that time nobody else may be given the issue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from tests.faults.invariants import (
    Evidence,
    more_than_one_live,
    overlapping_work,
    repeated_posts,
    stray_labels,
)
from tests.faults.records import Records, moment
from tests.soak.ledger import Ledger, forgotten_endings
from tests.soak.sightings import REQUEST, Sighting

LAST_WORDS = ("complete", "fail", "release")


@dataclass
class Hold:
    agent: str
    request_id: str
    assignment: int
    issue: int
    since: float
    lease_until: float
    ended: float | None = None

    @property
    def until(self) -> float:
        return self.lease_until if self.ended is None else min(self.ended, self.lease_until)


@dataclass(frozen=True)
class Row:
    """An assignment in the database."""

    pk: int
    agent: str
    issue: int
    state: str
    request_id: str | None
    created: float
    ended: float | None


@dataclass
class Verdict:
    broken: list[str] = field(default_factory=list)
    unreported: int = 0  # completed by the agent's next request, without a word about it


def judge(ledger: Ledger, evidence: Evidence) -> Verdict:
    """Everything that can be said once all is quiet."""
    rows = assignments(evidence.records)
    superseded, unasked = unreported_completions(ledger.sightings, rows)
    broken = [
        *handed_out_twice(holds(ledger.sightings)),
        *more_than_one_live(evidence),
        *overlapping_work(evidence),
        *forgotten_endings(evidence.records, ledger.endings),
        *several_tasks_for_one_id(ledger.sightings),
        *unrecorded_tasks(ledger.sightings, rows),
        *unasked,
        *stray_labels(evidence.records, evidence.sandbox),
        *repeated_posts(evidence.records, evidence.sandbox),
        *ledger.surprises,
    ]
    if any(row.state == "superseded" for row in rows):
        # The broker has a name of its own for these; then none of them may be `completed`.
        broken += [f"assignment {pk} is completed, and its agent said nothing about it" for pk in superseded]
    return Verdict(broken, len(superseded))


def assignments(records: Records) -> list[Row]:
    found = records.rows(
        "SELECT a.id, g.name, a.number, a.state, a.request_id, a.created_at, a.ended_at"
        " FROM tasks_assignment a JOIN tasks_agent g ON g.id = a.agent_id ORDER BY a.id"
    )
    return [
        Row(pk, agent, number, state, request_id, seconds_of(created) or 0.0, seconds_of(ended))
        for pk, agent, number, state, request_id, created, ended in found
    ]


def seconds_of(value: object) -> float | None:
    found = moment(value)
    return None if found is None else found.timestamp()


def holds(sightings: Iterable[Sighting]) -> list[Hold]:
    """Who had what, as the agents saw it."""
    found: list[Hold] = []
    in_hand: dict[str, Hold] = {}
    known: set[int] = set()
    for seen in sorted(sightings, key=lambda one: one.at):
        held = in_hand.get(seen.agent)
        if seen.is_task and seen.assignment not in known:
            known.add(seen.assignment)
            hold = Hold(seen.agent, seen.request_id, seen.assignment, seen.issue, seen.at, seen.lease_until)
            found.append(hold)
            in_hand[seen.agent] = hold
        elif held is not None and ends(seen, held):
            held.ended = seen.at
            del in_hand[seen.agent]
        elif held is not None and seen.is_answer and seen.assignment == held.assignment:
            held.lease_until = max(held.lease_until, seen.lease_until)
    return found


def ends(seen: Sighting, held: Hold) -> bool:
    if seen.call == REQUEST:
        return not seen.is_answer and seen.request_id != held.request_id
    if seen.assignment != held.assignment:
        return False
    if seen.call in LAST_WORDS:
        return not seen.is_answer
    return seen.is_answer and (seen.status == 409 or seen.is_cancelled)


def handed_out_twice(found: Iterable[Hold]) -> list[str]:
    by_issue: dict[int, list[Hold]] = defaultdict(list)
    for hold in found:
        by_issue[hold.issue].append(hold)
    return [
        f"issue {number} was given to {other.agent} as {other.assignment}"
        f" {one.until - other.since:.1f} s before {one.agent} gave up {one.assignment}"
        for number, group in by_issue.items()
        for one, other in combinations(sorted(group, key=lambda hold: hold.since), 2)
        if other.since < one.until
    ]


def several_tasks_for_one_id(sightings: Iterable[Sighting]) -> list[str]:
    given: dict[tuple[str, str], set[int]] = defaultdict(set)
    for seen in sightings:
        if seen.call == REQUEST and seen.is_answer and seen.status == 200:
            given[(seen.agent, seen.request_id)].add(seen.assignment)
    return [
        f"{agent} was given {sorted(numbers)} for the request_id {request_id}"
        for (agent, request_id), numbers in given.items()
        if len(numbers) > 1
    ]


def unrecorded_tasks(sightings: Iterable[Sighting], rows: Iterable[Row]) -> list[str]:
    """What an agent was given is on record as given to it, for this issue and this request."""
    by_id = {row.pk: (row.agent, row.issue, row.request_id) for row in rows}
    return [
        f"{agent} was given {pk} for {request_id}: issue {issue}; on record is {by_id.get(pk)}"
        for pk, agent, issue, request_id in sorted(
            {(seen.assignment, seen.agent, seen.issue, seen.request_id) for seen in sightings if seen.is_task}
        )
        if by_id.get(pk) != (agent, issue, request_id)
    ]


def unreported_completions(sightings: Iterable[Sighting], rows: Iterable[Row]) -> tuple[list[int], list[str]]:
    """Tasks on record as completed that their agents never called so.

    The first part: the agent has meanwhile asked with another request_id, which is how it gives up a task. The second:
    it has not; something else has ended its task.
    """
    sent = [seen for seen in sightings if not seen.is_answer]
    reported = {seen.assignment for seen in sent if seen.call == "complete"}
    requests: dict[str, list[Sighting]] = defaultdict(list)
    for seen in sent:
        if seen.call == REQUEST:
            requests[seen.agent].append(seen)
    superseded, unasked = [], []
    for row in rows:
        if row.state != "completed" or row.pk in reported or row.agent not in requests:
            continue
        began = min((one.at for one in requests[row.agent] if one.request_id == row.request_id), default=0.0)
        others = [
            one
            for one in requests[row.agent]
            if one.request_id != row.request_id and began < one.at <= (row.ended or 0.0)
        ]
        if others:
            superseded.append(row.pk)
        else:
            unasked.append(
                f"assignment {row.pk} of {row.agent} is completed, and nobody has said or asked anything"
            )
    return superseded, unasked
