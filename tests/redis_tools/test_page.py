"""The admin's Redis page: who may see and switch what, and that it stays bounded and safe."""

from __future__ import annotations

import re

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django_q.models import Schedule

from broker_project.lib.config import dynamic as dynamic_config
from broker_project.lib.config.dynamic import POLL_INTERVAL_SECONDS, value_of
from broker_project.ops.clock.schedules import sync_schedules

pytestmark = pytest.mark.django_db
PAGES = ["/admin/redis/", "/admin/redis/keys/", "/admin/redis/check/", "/admin/redis/key/?name=poppo:issue:1"]


def client_for(*permissions: str, is_superuser: bool = False, is_staff: bool = True) -> Client:
    user = User.objects.create_user("u", password="p", is_staff=is_staff, is_superuser=is_superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(headers={"accept-language": "en"})
    client.force_login(user)
    return client


@pytest.fixture
def boss(store: redis.Redis) -> Client:
    store.set("poppo:issue:1", '{"title": "<script>alert(1)</script>", "token": "abcdefgh"}')
    return client_for(is_superuser=True)


def text(client: Client, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status
    return answer.content.decode()


@pytest.mark.parametrize("address", PAGES)
def test_who_may_look(store: redis.Redis, address: str) -> None:
    store.set("poppo:issue:1", "{}")
    assert Client().get(address).headers["Location"].startswith("/admin/login/")
    assert client_for("view_poller").get(address).status_code == 403
    User.objects.all().delete()
    assert client_for("view_redis").get(address).status_code == 200
    User.objects.all().delete()
    outsider = client_for("view_redis", is_staff=False)
    assert outsider.get(address).headers["Location"].startswith("/admin/login/")


def test_the_index_links_for_those_who_may(store: redis.Redis) -> None:
    assert 'href="/admin/redis/"' in text(client_for("view_redis"), "/admin/")
    User.objects.all().delete()
    assert 'href="/admin/redis/"' not in text(client_for("view_poller"), "/admin/")


def test_the_overview_shows_components(boss: Client, store: redis.Redis) -> None:
    store.set("poppo:temp:x", "1")
    store.set("poppo:bogus", "1")
    store.set("foreign:thing", "1")
    page = text(boss, "/admin/redis/")
    for word in ("issue", "temp", "unknown", "Maintenance", "config:claude:timeout", "1800"):
        assert word in page
    assert "foreign" not in page


def test_browsing_pages_through_all_keys(boss: Client, store: redis.Redis) -> None:
    store.mset({f"poppo:issue:status:{number}": "x" for number in range(1, 1301)} | {"foreign:1": "x"})
    address, seen = "/admin/redis/keys/?pattern=issue:status:*", set()
    for _ in range(40):
        page = text(boss, address)
        seen |= set(re.findall(r"\?name=poppo%3Aissue%3Astatus%3A(\d+)", page))
        following = re.search(r'href="(\?pattern=[^"]*?&amp;from=[^"]+)"', page)
        if following is None:
            break
        address = "/admin/redis/keys/" + following.group(1).replace("&amp;", "&")
    assert seen == {str(number) for number in range(1, 1301)}
    assert "foreign:1" not in text(boss, "/admin/redis/keys/?pattern=foreign*")


def test_a_key_is_escaped_and_without_secrets(boss: Client) -> None:
    page = text(boss, "/admin/redis/key/?name=poppo:issue:1")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "abcdefgh" not in page


@pytest.mark.parametrize("name", ["foreign:x", "poppo:nothing", "", "%00", "%ff", "a" * 3000])
def test_no_key_of_ours_is_no_page(boss: Client, store: redis.Redis, name: str) -> None:
    store.set("foreign:x", "1")
    answer = boss.get(f"/admin/redis/key/?name={name}")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/admin/redis/keys/"


def test_names_that_are_no_text_do_no_harm(boss: Client, store: redis.Redis) -> None:
    store.execute_command("SET", b"poppo:temp:\xff<b>", "1")
    for address in ("/admin/redis/", "/admin/redis/keys/", "/admin/redis/check/"):
        page = text(boss, address)
        assert "<b>" not in page


def test_the_check_is_shown(boss: Client, store: redis.Redis) -> None:
    store.set("poppo:bogus", "1")
    page = text(boss, "/admin/redis/check/")
    assert "3 keys checked, 1 problems." in page  # the log-in is one of them
    assert "no entry of the registry explains it" in page


def switch(client: Client, **form: str) -> tuple[int, str]:
    answer = client.post("/admin/redis/change/", form)
    return answer.status_code, answer.content.decode()


def test_a_flag_is_switched_after_a_confirmation(boss: Client, store: redis.Redis) -> None:
    status, page = switch(boss, what="maintenance", to="on", reason="moving <house>")
    assert status == 200
    assert "moving &lt;house&gt;" in page
    assert not store.exists("poppo:flags:maintenance")
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
    assert fields["confirmed"] == "yes"
    status, _ = switch(boss, what="maintenance", to="on", reason="moving <house>", confirmed="yes")
    assert status == 302
    assert store.get("poppo:flags:maintenance") == '{"reason": "moving <house>"}'
    assert dynamic_config.maintenance().is_on
    assert "moving &lt;house&gt;" in text(boss, "/admin/redis/")
    switch(boss, what="maintenance", to="off", confirmed="yes")
    assert not store.exists("poppo:flags:maintenance")
    entries = LogEntry.objects.order_by("pk").values_list("user__username", "object_repr", "change_message")
    assert list(entries) == [
        ("u", "poppo:flags:maintenance", "on: moving <house>"),
        ("u", "poppo:flags:maintenance", "off"),
    ]


def test_a_setting_is_changed_and_the_clock_follows(boss: Client, store: redis.Redis) -> None:
    sync_schedules()
    assert switch(boss, what="poll:interval_seconds", to="value", value="600")[0] == 200
    assert switch(boss, what="poll:interval_seconds", to="value", value="600", confirmed="yes")[0] == 302
    assert store.get("poppo:config:poll:interval_seconds") == "600"
    assert value_of(POLL_INTERVAL_SECONDS) == 600
    assert Schedule.objects.get(name="issues").minutes == 10
    switch(boss, what="poll:interval_seconds", to="default", confirmed="yes")
    assert not store.exists("poppo:config:poll:interval_seconds")
    assert Schedule.objects.get(name="issues").minutes == 5


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"what": "issue:1", "to": "on"},
        {"what": "maintenance", "to": "value"},
        {"what": "claude:timeout", "to": "value", "value": "soon"},
        {"what": "claude:timeout", "to": "value", "value": "-1"},
        {"what": "claude:timeout", "to": "on"},
        {"what": "github:ratelimit", "to": "value", "value": "1"},
    ],
)
def test_nonsense_changes_nothing(boss: Client, store: redis.Redis, form: dict[str, str]) -> None:
    before = set(store.scan_iter(match="poppo:[fc]*"))
    status, _ = switch(boss, **form, confirmed="yes")
    assert status == 302
    assert {key for key in store.scan_iter(match="poppo:[fc]*") if "cache" not in key} == {
        key for key in before if "cache" not in key
    }
    assert not LogEntry.objects.exists()


def test_who_may_only_look_may_not_switch(store: redis.Redis) -> None:
    client = client_for("view_redis")
    assert switch(client, what="maintenance", to="on", confirmed="yes")[0] == 403
    assert "/admin/redis/change/" not in text(client, "/admin/redis/")
    assert not store.exists("poppo:flags:maintenance")


def test_switching_needs_a_post_and_a_token(boss: Client, store: redis.Redis) -> None:
    assert boss.get("/admin/redis/change/?what=maintenance&to=on&confirmed=yes").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    form = {"what": "maintenance", "to": "on", "confirmed": "yes"}
    assert strict.post("/admin/redis/change/", form).status_code == 403
    assert not store.exists("poppo:flags:maintenance")


def test_the_page_speaks_without_javascript_and_foreign_hosts(boss: Client) -> None:
    page = text(boss, "/admin/redis/")
    assert "onclick" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
