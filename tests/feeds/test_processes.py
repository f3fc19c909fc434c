"""Several workers at once, and workers that are killed: real processes on a real database file."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sandbox.launcher import SandboxHandle
from tests.feeds.conftest import add_page, page_url, posts_for
from tests.support.poll_process import PollWorld

pytestmark = [pytest.mark.process, pytest.mark.database]

UNPROCESSED, PENDING = 0, 2
TEXT = ["総務省は、無線局の免許の手続を見直す省令案を取りまとめ、意見の募集を開始しました。"]


@pytest.fixture
def world(tmp_path: Path) -> PollWorld:
    return PollWorld(tmp_path)


# The step, the item's status when it is claimed, the worker's last call, killed before or after it is carried
# out. # Pending ones first: that is the order in which workers take them.
KILLS = [
    ("document", PENDING, "feed", "/main_content/", "before"),
    ("summary", PENDING, "gemini", "generateContent", "before"),
    ("summary answered", PENDING, "gemini", "generateContent", "after"),
    ("limits", PENDING, "mastodon", "/api/v2/instance", "before"),
    ("before the post", PENDING, "mastodon", "/api/v1/statuses$", "before"),
    ("after the post", PENDING, "mastodon", "/api/v1/statuses$", "after"),
    ("page", UNPROCESSED, "feed", "/s-news/", "before"),
    ("screening", UNPROCESSED, "gemini", "generateContent", "before"),
    ("screening answered", UNPROCESSED, "gemini", "generateContent", "after"),
]


@pytest.mark.slow
def test_killed_at_any_step_an_item_has_one_post_at_the_most(
    sandbox: SandboxHandle, world: PollWorld
) -> None:
    urls: dict[str, str] = {}
    for number, (step, status, system, path, when) in enumerate(KILLS):
        document = {"name": f"k{number}.pdf", "title": "省令案", "paragraphs": TEXT}
        urls[step] = add_page(sandbox, f"kill_{number}", paragraphs=TEXT, documents=[document])
        world.add_items([urls[step]], status)
        worker = world.start_waiting("poll", "items")
        sandbox.clear_faults()
        sandbox.fault(system, "signal", pid=worker.pid, path=path, when=when)
        worker.begin()
        assert worker.wait() == -signal.SIGKILL, f"{step}: {worker.output}"
        # The lease stands: the next worker takes another item.
        assert world.rows("SELECT count(*) FROM feeds_itemlease")[0][0] == number + 1, step
    sandbox.clear_faults()
    before = {step: posts_for(sandbox, url) for step, url in urls.items()}
    # A worker killed while its call arrives may or may not have it carried out; both must end well.
    assert before.pop("before the post") in (0, 1)
    assert before == {**dict.fromkeys(before, 0), "after the post": 1}

    world.rows("UPDATE feeds_itemlease SET expires_at = claimed_at")
    done = world.run("poll", "items", "--all")
    assert done.returncode == 0, done.stderr
    assert f"crashed={len(KILLS)}" in done.stdout
    for step, url in urls.items():
        found = world.rows("SELECT status, reason, retry_count FROM items WHERE url = ?", url)
        assert (step, found) == (step, [(3, 0, 1)])
        assert (step, posts_for(sandbox, url)) == (step, 1)
    crashed = world.rows("SELECT count(DISTINCT item_id) FROM feeds_itemevent WHERE what = 'crashed'")
    assert crashed == [(len(KILLS),)]


@pytest.mark.slow
def test_four_workers_at_once_do_each_thing_once(sandbox: SandboxHandle, world: PollWorld) -> None:
    slugs = [item["slug"] for item in sandbox.state("feed")["items"]]
    world.add_items([page_url(sandbox, slug) for slug in slugs])
    workers = [world.start_waiting("poll", "items", "--all") for _ in range(4)]
    for worker in workers:
        worker.begin()
    assert [worker.wait() for worker in workers] == [0] * 4, [worker.output for worker in workers]
    urls = [url for (url,) in world.rows("SELECT url FROM items WHERE status = 3 AND reason = 0")]
    assert len(urls) > 5
    assert [posts_for(sandbox, url) for url in urls] == [1] * len(urls)
    assert len(sandbox.state("mastodon")["statuses"]) == len(urls)
    # Whatever was counted is on record, and nothing was counted without being on record.
    counted = world.rows(
        "SELECT items.retry_count, count(*) FROM items JOIN feeds_itemevent e ON e.item_id = items.id"
        " WHERE e.what IN ('no', 'wait', 'fetch failed', 'all too large', 'api failed') GROUP BY items.id"
    )
    assert counted
    assert all(retry_count == events for retry_count, events in counted)
    assert world.rows("SELECT count(*) FROM items WHERE status = 0") == [(0,)]
    assert world.rows("SELECT count(*) FROM feeds_itemlease") == [(0,)]
    assert len(world.rows("SELECT DISTINCT item_id FROM feeds_itemevent")) == len(slugs)


@pytest.mark.slow
def test_two_processes_add_a_feed_once(sandbox: SandboxHandle, world: PollWorld) -> None:
    """Without the poller's lock: the database alone keeps addresses apart."""
    sandbox.load("feed", {"items": [], "bulk": 2000})
    code = (
        "from broker_project.ops.clock.pollers import PollOptions; from feeds.pollers import poll_feeds;"
        "print(poll_feeds(PollOptions())['added'])"
    )
    workers = [world.start_waiting("shell", "--no-imports", "-c", code) for _ in range(2)]
    for worker in workers:
        worker.begin()
    assert [worker.wait() for worker in workers] == [0, 0], [worker.output for worker in workers]
    assert world.rows("SELECT count(*), count(DISTINCT url) FROM items") == [(2000, 2000)]
    assert world.rows("SELECT count(*) FROM feeds_itemdetail") == [(2000,)]
    # The second may come when everything is known and its feed is not due any more.
    added = [int(worker.output.split()[-1]) for worker in workers]
    assert max(added) > 0
    assert sum(added) == 2000
