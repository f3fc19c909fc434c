"""``broker_client run`` when the broker is away, or will not have it."""

from __future__ import annotations

import json

from tests.client.agent_process import COPY_ALL, Start, rows
from tests.support.server import BrokerWorld


def test_the_broker_may_be_away_at_any_time(broker_world: BrokerWorld, start_agent: Start) -> None:
    server = broker_world.start()
    server.kill()
    slow = "import pathlib, os, time\nfolder = pathlib.Path(os.environ['FOLDER'])\n"
    slow += "(folder / 'at-work').write_text('1')\n"
    slow += "while not (folder / 'go-on').exists(): time.sleep(0.05)\nprint('finished')\n"
    agent = start_agent(server.url, slow, "--once")
    agent.wait_until_said("The broker does not answer")
    server.start()
    agent.file("at-work")
    server.kill()
    (agent.folder / "go-on").write_text("1")
    agent.wait_until_said("The outcome is sent again")
    server.start()
    assert agent.wait() == 0, agent.said
    (row,) = rows(server, agent.name)
    assert (row["state"], json.loads(row["result"])) == ("completed", "finished")


def test_refusals_end_it_with_a_sentence(broker_world: BrokerWorld, start_agent: Start) -> None:
    server = broker_world.start(BROKER_AGENT_AUTH="token")
    token = server.create_agent("coder", "BACKENDCODER")
    nobody = start_agent(server.url, "pass", "--once", agent="coder")
    assert nobody.wait() == 2
    assert "token" in nobody.said
    wrong = start_agent(server.url, "pass", "--once", agent="other", BROKER_TOKEN=token)
    assert wrong.wait() == 2
    assert "another agent" in wrong.said
    reserved = start_agent(server.url, "pass", "--once", agent="in-progress", BROKER_TOKEN=token)
    assert reserved.wait() == 2
    good = start_agent(server.url, COPY_ALL, "--once", agent="coder", BROKER_TOKEN=token)
    assert good.wait() == 0, good.said
    seen = good.file("seen.json")
    for text in (seen, good.said, nobody.said, wrong.said, reserved.said):
        assert token not in text
    assert "BROKER_TOKEN" not in json.loads(seen)["env"]
    gone = start_agent(server.url, "pass", "--timeout", "700", agent="coder", BROKER_TOKEN=token)
    assert gone.wait() == 2
    assert "timeout" in gone.said
    leaking = start_agent(
        server.url, f"print('my token is', {token!r})", "--once", agent="coder", BROKER_TOKEN=token
    )
    assert leaking.wait() == 0
    assert token not in rows(server, "coder")[-1]["result"]
