"""Rows by statements that are written once: what the ORM reads and writes, they read and write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection, transaction
from django.forms.models import model_to_dict
from django.test.utils import CaptureQueriesContext

from broker_project.lib.quick_rows import fetch_rows, insert_rows, update_rows
from tasks.models import Agent, Assignment, Event, Issue, Repository

NOW = datetime(2026, 8, 1, 12, 30, 15, 123456, tzinfo=UTC)

pytestmark = pytest.mark.django_db


@pytest.fixture
def repository() -> Repository:
    return Repository.objects.create(full_name="o/quick", namespace="quick")


def new_issue(repository: Repository, number: int) -> Issue:
    return Issue(
        repository=repository,
        number=number,
        title="題名 %s 'quoted'",
        body="100 %",
        labels=["P0", "日本"],
        opened_at=NOW,
        updated_at=NOW,
        raw={"number": number, "nested": {"a": [1, None, 1.5, "é"]}},
    )


def new_assignment(repository: Repository, agent: Agent, number: int = 7) -> Assignment:
    return Assignment(
        agent=agent,
        repository=repository,
        number=number,
        task_type="development",
        state="claiming",
        created_at=NOW,
        last_heartbeat_at=NOW,
    )


def test_a_row_is_read_as_the_orm_reads_it(repository: Repository) -> None:
    for number in (3, 4, 5):
        new_issue(repository, number).save()
    found = fetch_rows(Issue, [3, 5, 99], "number", repository_id=repository.pk, is_open=True)
    by_number = {issue.number: issue for issue in found}
    assert sorted(by_number) == [3, 5]
    for number, issue in by_number.items():
        same = Issue.objects.get(number=number)
        assert issue == same
        for field in Issue._meta.concrete_fields:
            ours, theirs = getattr(issue, field.attname), getattr(same, field.attname)
            assert (type(ours), ours) == (type(theirs), theirs), field.name
        assert not issue._state.adding
    by_number[3].title = "changed"
    by_number[3].save()
    assert Issue.objects.get(number=3).title == "changed"


def test_every_condition_must_hold(repository: Repository) -> None:
    new_issue(repository, 3).save()
    assert fetch_rows(Issue, [9], "number", repository_id=repository.pk, is_open=True) == []
    assert fetch_rows(Issue, [3], "number", repository_id=repository.pk, is_open=False) == []


def test_a_row_is_written_as_the_orm_writes_it(repository: Repository) -> None:
    by_hand, by_orm, another = (new_issue(repository, number) for number in (5, 6, 7))
    insert_rows([by_hand, another])
    by_orm.save()
    assert by_hand.pk != another.pk
    assert Issue.objects.get(pk=another.pk).number == 7
    assert by_hand._state.db == "default"
    leave_out = ["id", "number", "raw"]
    assert model_to_dict(Issue.objects.get(pk=by_hand.pk), exclude=leave_out) == model_to_dict(
        Issue.objects.get(pk=by_orm.pk), exclude=leave_out
    )
    assert Issue.objects.get(pk=by_hand.pk).raw == {"number": 5, "nested": {"a": [1, None, 1.5, "é"]}}


def test_nothing_and_null_are_kept_apart(repository: Repository) -> None:
    agent = Agent.objects.create(name="agent-a")
    assignment = new_assignment(repository, agent)
    insert_rows([assignment])
    found = Assignment.objects.get(pk=assignment.pk)
    assert (found.request_id, found.result, found.labels_due, found.pull_number) == (None, None, None, None)
    assert Assignment.objects.filter(labels_due__isnull=True).exists()
    insert_rows([Event(repository=repository, number=7, what="assigned", at=NOW, assignment=assignment)])
    assert Event.objects.get(number=7).assignment == assignment


def test_a_second_of_what_must_be_one_is_refused_with_all_beside_it(repository: Repository) -> None:
    agent, other = (Agent.objects.create(name=name) for name in ("agent-a", "agent-b"))
    insert_rows([new_assignment(repository, agent)])
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_rows([new_assignment(repository, other, number=8), new_assignment(repository, agent)])
    assert Assignment.objects.count() == 1


def test_rows_are_changed_where_all_conditions_hold(repository: Repository) -> None:
    agent = Agent.objects.create(name="agent-a")
    assignment = new_assignment(repository, agent)
    insert_rows([assignment])
    changes = {
        "state": "live",
        "answer": {"title": "é %s"},
        "started_at": NOW,
        "repository_id": repository.pk,
    }
    assert update_rows(Assignment, changes, id=assignment.pk, state="claiming") == 1
    assert update_rows(Assignment, changes, id=assignment.pk, state="claiming") == 0
    found = Assignment.objects.get(pk=assignment.pk)
    assert (found.state, found.answer, found.started_at) == ("live", {"title": "é %s"}, NOW)


def test_each_is_one_statement_with_its_values_beside_it(repository: Repository) -> None:
    issue = new_issue(repository, 8)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        insert_rows([issue])
        fetch_rows(Issue, [issue.pk], "id")
        update_rows(Issue, {"title": "x'; DROP TABLE tasks_issue; --"}, id=issue.pk)
    assert len(queries) == 3
    assert Issue.objects.get(pk=issue.pk).title == "x'; DROP TABLE tasks_issue; --"


def test_a_name_that_is_no_column_is_refused_before_anything_is_sent() -> None:
    with CaptureQueriesContext(connection) as queries:
        with pytest.raises(KeyError):
            fetch_rows(Issue, [1], "nothing")
        with pytest.raises(KeyError):
            fetch_rows(Issue, [1], "id", nothing=1)
        with pytest.raises(KeyError):
            update_rows(Issue, {"title": "x"}, nothing=1)
    assert len(queries) == 0
