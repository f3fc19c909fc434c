"""The walks of docs/architecture.md. ``python -m tools.walks --write`` renews the lists."""

from __future__ import annotations

import pytest

from broker_project.ops.clock.pollers import poller_table
from tools.walks import (
    DOCUMENT,
    Walks,
    as_list,
    changes_of_file,
    documented_walks,
    files_in_order,
    quietest,
    step_of,
    traced_walks,
    with_walks,
)

NAMES = {"request-task", "heartbeat", "webhook", "item", "match"}
# The aim is 20. This number only goes down.
MOST_FILES_FOR_A_TASK = 35


@pytest.fixture(scope="module")
def walks() -> Walks:
    return traced_walks()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_document_has_the_walk_of_a_traced_run(name: str, walks: Walks) -> None:
    assert documented_walks(DOCUMENT.read_text(encoding="utf-8"))[name] == as_list(walks[name])


@pytest.mark.slow
@pytest.mark.process
def test_a_task_is_given_in_few_files(walks: Walks) -> None:
    assert len(files_in_order(walks["request-task"])) <= MOST_FILES_FOR_A_TASK


def test_a_walk_has_each_file_once_in_the_order_of_first_entry() -> None:
    entered = [("a.py", "f"), ("b.py", "g"), ("a.py", "h"), ("c.py", "i"), ("d.py", "j")]
    assert files_in_order(entered) == [("a.py", "f"), ("b.py", "g"), ("c.py", "i"), ("d.py", "j")]
    assert changes_of_file(entered) == 4


def test_a_trace_that_a_timer_disturbed_is_not_used() -> None:
    clean = [("a.py", "f"), ("b.py", "g")]
    assert quietest([[("a.py", "f"), ("timer.py", "t"), ("b.py", "g")], clean]) == clean


def test_only_functions_of_the_four_packages_are_steps() -> None:
    assert step_of(as_list.__code__) is None
    assert step_of(poller_table.__code__) == ("broker_project/ops/clock/pollers.py", "poller_table")


def test_lists_are_put_into_the_document_and_read_again() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert documented_walks(text).keys() == NAMES
    walks = {name: [("tasks/x.py", f"{name}_1"), ("tasks/y.py", "X.y")] for name in NAMES}
    assert documented_walks(with_walks(text, walks)) == {
        name: as_list(steps) for name, steps in walks.items()
    }
