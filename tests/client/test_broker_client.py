"""The class for those who write their own agent: typed answers, named errors."""

from __future__ import annotations

import httpx
import pytest

from broker_client import BrokerClient, LeaseLost, Refused, Unavailable, pause_seconds, retry_after_seconds
from tests.support.raw_server import raw_server
from tests.support.server import BrokerServer


def test_a_task_from_request_to_completion(server: BrokerServer) -> None:
    with BrokerClient(server.url, "own-agent", roles=["BACKENDCODER"]) as broker:
        assert broker.current_task() is None
        task = broker.request_task(timeout=0, request_id="first")
        assert task is not None
        assert task.required_role == "BACKENDCODER"
        assert task.is_ours_to_do
        assert 1700 < task.lease_seconds < 1900  # the header Date may be a second or two old
        again = broker.request_task(timeout=0, request_id="first")
        assert again is not None
        assert (again.assignment_id, again.state) == (task.assignment_id, "live")
        current = broker.current_task()
        assert current is not None
        assert current.assignment_id == task.assignment_id
        beat = broker.heartbeat(task.assignment_id, "half")
        assert not beat.cancel
        assert {row.number: row.reason for row in broker.explain()}[task.issue_id] == "an agent has it"
        ending = broker.complete(task.assignment_id, {"tests": 3})
        assert (ending.issue_id, ending.state) == (task.issue_id, "completed")
        assert broker.complete(task.assignment_id) == ending
        with pytest.raises(LeaseLost) as lost:
            broker.fail(task.assignment_id, "too late")
        assert (lost.value.status, lost.value.code) == (409, "lease_lost")
        replayed = broker.request_task(timeout=0, request_id="first")
        assert replayed is not None
        assert not replayed.is_ours_to_do


def test_a_task_can_be_given_back(server: BrokerServer) -> None:
    with BrokerClient(server.url, "giver") as broker:
        task = broker.request_task(timeout=0)
        assert task is not None
        assert broker.release(task.assignment_id).state == "released"
        assert broker.current_task() is None
        with pytest.raises(LeaseLost):
            broker.heartbeat(task.assignment_id)


def test_refusals_are_named(server: BrokerServer) -> None:
    with BrokerClient(server.url, "in-progress") as broker:
        with pytest.raises(Refused) as refused:
            broker.request_task(timeout=0)
        assert (refused.value.status, refused.value.code) == (422, "bad_request")
    with BrokerClient(server.url, "fine") as broker:
        with pytest.raises(Refused) as unknown:
            broker.release(4711)
        assert unknown.value.status == 404
    with pytest.raises(Refused):
        BrokerClient("ftp://example.org", "fine")


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (b"", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{", 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>hi<", 0),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\n<p/>", 0),
        (b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}", 7),
        (b"HTTP/1.1 429 No\r\nRetry-After: 99999\r\nContent-Length: 0\r\n\r\n", 600),
    ],
)
def test_whatever_stands_in_between_is_worth_another_try(answer: bytes, wait: float) -> None:
    with raw_server() as server, BrokerClient(server.url, "coder") as broker:
        server.answer = answer
        with pytest.raises(Unavailable) as away:
            broker.request_task(timeout=0)
    assert away.value.retry_after_seconds == wait


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0),
        ("12", 12),
        ("-1", 0),
        ("soon", 0),
        ("Mon, 16 Nov 2026 05:00:30 GMT", 30),
        ("Mon, 16 Nov 2026 04:00:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_brokers_clock(header: str, seconds: float) -> None:
    answer = httpx.Response(503, headers={"Retry-After": header, "Date": "Mon, 16 Nov 2026 05:00:00 GMT"})
    assert retry_after_seconds(answer) == seconds


@pytest.mark.parametrize(
    ("failures", "at_least", "low", "high"),
    [(1, 0, 0.5, 1), (2, 0, 1, 2), (4, 0, 4, 8), (7, 0, 30, 60), (5000, 0, 30, 60), (1, 60, 60, 61)],
)
def test_pauses_grow_and_are_spread(failures: int, at_least: float, low: float, high: float) -> None:
    found = [pause_seconds(failures, at_least) for _ in range(100)]
    assert low <= min(found) < max(found) <= high
