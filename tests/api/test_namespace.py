"""Another namespace changes every key that the application writes."""

from __future__ import annotations

from tests.support.server import BrokerWorld


def test_the_whole_flow_stays_inside_its_namespace(broker_world: BrokerWorld) -> None:
    broker_world.redis.flushall()
    server = broker_world.start(BROKER_NAMESPACE="elsewhere")
    for name in ("issues", "zombies", "metrics", "cleanup", "feeds", "items", "fixtures", "dispatch"):
        server.poll(name)
    with server.client() as client:
        tasks = [
            client.post("/api/v1/request-task", json={"agent_id": f"agent-{n}", "timeout": 0}).json()
            for n in range(4)
        ]
        calls: list[tuple[str, dict[str, str]]] = [
            ("heartbeat", {}),
            ("complete", {}),
            ("fail", {"reason": "x"}),
            ("release", {}),
        ]
        for task, (call, body) in zip(tasks, calls, strict=True):
            answer = client.post(f"/api/v1/assignments/{task['assignment_id']}/{call}", json=body)
            assert answer.status_code == 200, answer.text
        fix = {"pull_request_number": 32, "review_comments": ["please"]}
        assert client.post("/api/v1/tasks/fix", json=fix).status_code == 202
        assert client.get("/admin/login/").status_code == 200
        assert client.get("/readyz").status_code == 200
    server.poll("zombies")
    keys = sorted(str(key) for key in broker_world.redis.scan_iter())
    assert len(keys) > 30
    assert [key for key in keys if not key.startswith("elsewhere:")] == []
    report = server.manage("keys", "check")
    assert "poppo" not in report
