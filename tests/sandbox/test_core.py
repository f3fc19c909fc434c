"""Control endpoints, faults, state on disk and the page; the calls go through a real connection."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import httpx
import pytest

from sandbox.app import SYSTEMS, create_app
from sandbox.launcher import SandboxDidNotStart, SandboxHandle, start_sandbox

AUTH = {"Authorization": "Bearer any"}
REPO = "/github/repos/broker-sandbox/demo"


def issue_titles(sandbox: SandboxHandle) -> list[str]:
    return [issue["title"] for issue in sandbox.state("github")["repositories"][0]["issues"]]


def post_issue(sandbox: SandboxHandle, title: str) -> httpx.Response:
    return sandbox.client.post(f"{REPO}/issues", headers=AUTH, json={"title": title})


def test_all_six_systems_are_there():
    app = create_app(seed=False)
    assert tuple(app.state.world.systems) == SYSTEMS


def test_health(sandbox):
    assert sandbox.control("GET", "health") == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "faults", "nonsense", "not JSON"),
        ("POST", "faults", [], "JSON object"),
        ("POST", "faults", {"system": "gitlab", "kind": "drop"}, "'system'"),
        ("POST", "faults", {"system": "github", "kind": "explode"}, "'kind'"),
        ("POST", "faults", {"system": "github", "kind": "drop", "path": "("}, "regular expression"),
        ("POST", "faults", {"system": "github", "kind": "drop", "times": -1}, "'times'"),
        ("POST", "faults", {"system": "github", "kind": "drop", "times": True}, "'times'"),
        ("POST", "faults", {"system": "github", "kind": "status", "status": 99}, "'status'"),
        ("POST", "faults", {"system": "github", "kind": "stall", "seconds": "1"}, "'seconds'"),
        ("POST", "faults", {"system": "github", "kind": "signal", "pid": 1}, "'pid'"),
        ("POST", "faults", {"system": "github", "kind": "signal", "pid": 99, "signal": "X"}, "'signal'"),
        ("POST", "faults", {"system": "github", "kind": "drop", "colour": "red"}, "colour"),
        ("POST", "clock", {"offset_seconds": "soon"}, "'offset_seconds'"),
        ("POST", "clock", {"offset_seconds": 1e300}, "ten years"),
        ("POST", "reset", {"system": "gitlab"}, "no system"),
        ("POST", "reset", {"seed": "no"}, "'seed'"),
        ("PUT", "state/gitlab", {}, "no system"),
        ("PUT", "state/github", {"repositories": [{"name": "x"}]}, "no state of github"),
        ("GET", "journal?limit=none", None, "'limit'"),
        ("GET", "journal?limit=0", None, "'limit'"),
        ("PATCH", "github/settings", {"rate_limit": "many"}, "'rate_limit'"),
        ("PATCH", "github/settings", {"exhausted_status": 500}, "403 or 429"),
    ],
)
def test_control_refuses_with_a_sentence(sandbox, method, path, body, words):
    content = body if isinstance(body, str) else json.dumps(body)
    answer = sandbox.client.request(method, f"/_sandbox/{path}", content=None if body is None else content)
    assert answer.status_code == 422
    assert words in answer.json()["message"]
    assert sandbox.faults() == []


def test_foreign_pages_cannot_pull_the_levers(sandbox):
    order = {"system": "github", "kind": "drop"}
    for origin, status in [("http://evil.example", 403), ("null", 403), (sandbox.base_url, 201)]:
        answer = sandbox.client.post("/_sandbox/faults", json=order, headers={"Origin": origin})
        assert answer.status_code == status
    assert len(sandbox.faults()) == 1


def test_a_refused_state_leaves_the_old_one(sandbox):
    before = sandbox.state("github")
    broken = json.loads(json.dumps(before))
    broken["repositories"][0]["issues"][3]["labels"] = ["no-such-label"]
    with pytest.raises(httpx.HTTPStatusError):
        sandbox.load("github", broken)
    assert sandbox.state("github") == before


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_dump_can_be_loaded_again(sandbox, system):
    before = sandbox.state(system)
    sandbox.load(system, before)
    assert sandbox.state(system) == before


def test_the_clock_moves_what_systems_write(sandbox):
    sandbox.set_clock(-86400 * 30)
    month_ago = post_issue(sandbox, "old").json()["created_at"]
    sandbox.set_clock(0)
    assert month_ago < post_issue(sandbox, "new").json()["created_at"]


def test_reset_without_seed_empties_one_system_only(sandbox):
    feed_before = sandbox.state("feed")
    sandbox.reset("github", seed=False)
    assert sandbox.state("github")["repositories"] == []
    assert sandbox.state("feed") == feed_before


# Faults


def test_status_fault_fires_as_often_as_ordered_and_after_the_skipped_calls(sandbox):
    sandbox.fault(
        "github",
        "status",
        method="get",
        path="/issues$",
        status=503,
        skip=1,
        times=2,
        headers={"Retry-After": "7"},
    )
    answers = [sandbox.client.get(f"{REPO}/issues", headers=AUTH) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 503, 503, 200]
    assert answers[1].headers["retry-after"] == "7"
    assert sandbox.client.get(REPO, headers=AUTH).status_code == 200
    [fault] = sandbox.faults()
    assert (fault["fired"], fault["active"]) == (2, False)


def test_times_0_is_for_ever_until_cleared(sandbox):
    sandbox.fault("github", "status", status=500, times=0, body={"message": "down"})
    assert [sandbox.client.get(REPO).json() for _ in range(3)] == [{"message": "down"}] * 3
    sandbox.clear_faults()
    assert sandbox.client.get(REPO, headers=AUTH).status_code == 200


def test_drop_closes_without_a_byte_and_without_executing(sandbox):
    sandbox.fault("github", "drop", method="POST")
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        post_issue(sandbox, "never stored")
    assert "never stored" not in issue_titles(sandbox)
    assert post_issue(sandbox, "stored").status_code == 201


def test_lose_answer_executes_and_closes_without_a_byte(sandbox):
    sandbox.fault("github", "lose_answer", method="POST")
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        post_issue(sandbox, "stored, unheard")
    assert issue_titles(sandbox).count("stored, unheard") == 1


def test_stall_holds_the_answer_back_then_closes(sandbox):
    sandbox.fault("github", "stall", seconds=0.2)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        post_issue(sandbox, "never stored")
    sandbox.fault("github", "stall", seconds=600)
    with pytest.raises(httpx.ReadTimeout):
        sandbox.client.get(REPO, headers=AUTH, timeout=0.3)
    assert "never stored" not in issue_titles(sandbox)


def test_garbage_is_a_200_that_is_no_json(sandbox):
    sandbox.fault("github", "garbage")
    answer = sandbox.client.get(REPO, headers=AUTH)
    assert answer.status_code == 200
    with pytest.raises(ValueError):
        answer.json()


def test_truncate_sends_half_of_the_body(sandbox):
    whole = sandbox.client.get(REPO, headers=AUTH)
    sandbox.fault("github", "truncate")
    received = b""
    with sandbox.client.stream("GET", REPO, headers=AUTH) as answer:
        assert answer.headers["content-length"] == whole.headers["content-length"]
        chunks = answer.iter_raw()
        try:
            for chunk in chunks:
                received += chunk
        except httpx.RemoteProtocolError as error:
            cut = error
        else:
            raise AssertionError("the body came whole")
    assert "without sending complete message body" in str(cut)
    assert received == whole.content[: len(whole.content) // 2]


@pytest.mark.process
@pytest.mark.parametrize(("when", "stored"), [("before", True), ("after", True)])
def test_signal_reaches_the_process_and_the_call_goes_on(sandbox, when, stored):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        sandbox.fault("github", "signal", method="POST", pid=victim.pid, signal="SIGKILL", when=when)
        assert post_issue(sandbox, "during the kill").status_code == 201
        assert victim.wait(10) == -9
    finally:
        victim.kill()
        victim.wait(10)
    assert ("during the kill" in issue_titles(sandbox)) is stored


@pytest.mark.process
def test_signal_to_a_process_that_has_gone_is_no_error(sandbox):
    victim = subprocess.Popen([sys.executable, "-c", ""])
    victim.wait(30)
    sandbox.fault("github", "signal", pid=victim.pid, when="after")
    assert sandbox.client.get(REPO, headers=AUTH).status_code == 200


def test_a_fault_of_one_system_spares_the_others(sandbox):
    sandbox.fault("gcs", "drop", times=0)
    assert sandbox.client.get(REPO, headers=AUTH).status_code == 200


def test_the_journal_tells_what_happened(sandbox):
    sandbox.fault("github", "status", status=502)
    sandbox.client.get(f"{REPO}/issues?state=all", headers=AUTH)
    sandbox.client.get(f"{REPO}/issues?state=all", headers=AUTH)
    newest, older = sandbox.calls("github")
    assert (newest["status"], newest["fault"]) == (200, None)
    assert (older["status"], older["fault"]) == (502, "status")
    assert older["path"] == f"{REPO}/issues?state=all"
    assert len(sandbox.calls(limit=1)) == 1
    sandbox.clear_calls()
    assert sandbox.calls() == []


# State on disk


def wait_until_saved(path, text):
    for _ in range(200):
        if path.exists() and text in path.read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    raise AssertionError(f"{text!r} was not saved")


@pytest.mark.process
def test_state_survives_sigkill_and_restart(tmp_path):
    path = tmp_path / "ordner mit ü" / "state.json"
    with start_sandbox(state_path=path) as first:
        number = post_issue(first, "survives").json()["number"]
        first.set_clock(1000)
        wait_until_saved(path, "survives")
        wait_until_saved(path, '"clock_offset_seconds": 1000')
        first.kill()
    with start_sandbox(state_path=path) as second:
        assert second.client.get(f"{REPO}/issues/{number}", headers=AUTH).json()["title"] == "survives"
        assert second.control("GET", "clock")["offset_seconds"] == 1000
        assert len(issue_titles(second)) == number


@pytest.mark.process
def test_state_is_saved_at_shutdown_without_waiting(tmp_path):
    path = tmp_path / "state.json"
    with start_sandbox(state_path=path) as first:
        post_issue(first, "just before the end")
    assert first.process.returncode == 0
    assert "just before the end" in path.read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.parametrize("content", ["", "{", '{"version": 99}', '{"version": 1, "systems": {"github": []}}'])
def test_an_unreadable_state_begins_anew(tmp_path, content):
    path = tmp_path / "state.json"
    path.write_text(content)
    with start_sandbox(state_path=path) as sandbox:
        assert len(issue_titles(sandbox)) > 25


@pytest.mark.process
def test_the_sandbox_goes_with_the_process_that_started_it():
    program = (
        "import os, signal\n"
        "from sandbox.launcher import start_sandbox\n"
        "with start_sandbox() as running:\n"
        "    print(running.base_url, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -9
    url = ended.stdout.strip()
    for _ in range(200):
        try:
            httpx.get(f"{url}/_sandbox/health")
        except httpx.ConnectError:
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} still answers")


@pytest.mark.process
def test_a_port_in_use_is_one_sentence(sandbox):
    port = httpx.URL(sandbox.base_url).port
    assert port
    with pytest.raises(SandboxDidNotStart):
        start_sandbox(port=port).__enter__()
    command = [sys.executable, "-m", "sandbox", "--port", str(port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert str(port) in ended.stderr


# The page


def test_the_page_shows_every_system_and_escapes_all(sandbox):
    post_issue(sandbox, "<script>alert(1)</script> & co")
    sandbox.fault("github", "status", path="<b>x</b>")
    page = sandbox.client.get("/").text
    assert "Broker sandbox: stand-ins, nothing here is real" in page
    for system in SYSTEMS:
        assert f'id="{system}"' in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page
    assert page.count("<script>") == 1
    assert "<b>x</b>" not in page
    assert "二重に登録される" in page
    part = sandbox.client.get("/?part=main").text
    assert "<html" not in part
    assert "&lt;script&gt;" in part


def test_the_page_asks_no_foreign_host(sandbox):
    page = sandbox.client.get("/")
    targets = re.findall(r'(?:src|href)="(https?://[^"]+)"', page.text)
    assert targets
    assert all(target.startswith(sandbox.base_url) for target in targets)
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_the_link_of_an_issue_leads_to_a_page(sandbox):
    issue = post_issue(sandbox, "a <i>page</i>").json()
    page = httpx.get(issue["html_url"])
    assert page.status_code == 200
    assert "a &lt;i&gt;page&lt;/i&gt;" in page.text
    assert httpx.get(issue["html_url"] + "999").status_code == 404


def test_the_journal_remembers_as_much_as_is_asked_for(sandbox: SandboxHandle) -> None:
    sandbox.keep_calls(3)
    try:
        for number in range(5):
            sandbox.client.get(f"/github/repos/nobody/{number}")
        assert [call["path"][-1] for call in sandbox.calls("github", limit=3)] == ["4", "3", "2"]
        for size in (0, 1_000_001, "many", True):
            with pytest.raises(httpx.HTTPStatusError):
                sandbox.control("PATCH", "journal", {"size": size})
    finally:
        sandbox.keep_calls(1000)
