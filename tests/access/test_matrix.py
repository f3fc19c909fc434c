"""Who may open and do what: every page of the URL conf, every model and every action of the admin.

A page, a model or an action that is in none of these tables fails the first test: whoever adds one writes down who
may have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.test import Client, RequestFactory
from django.urls import URLResolver, get_resolver

from tests.access.rows import make_row

# guest: in the group viewer, but not staff. The other three groups here are staff, as they must be for the admin.
PEOPLE = ("anonymous", "nobody", "guest", "staff", "viewer", "operator", "admin", "superuser")

# ok: it answers · log-in: sent there · no: 403 · token: 401, sessions do not count · 404, 405: so for everybody
PAGES = """
address                                       anonymous nobody  guest   staff   viewer  operator admin  superuser
GET /                                         ok        ok      ok      ok      ok      ok      ok      ok
GET /health                                   ok        ok      ok      ok      ok      ok      ok      ok
GET /healthz                                  ok        ok      ok      ok      ok      ok      ok      ok
GET /readyz                                   ok        ok      ok      ok      ok      ok      ok      ok
GET /metrics                                  token     token   token   token   token   token   token   token
GET /favicon.ico                              ok        ok      ok      ok      ok      ok      ok      ok
POST /i18n/setlang/                           ok        ok      ok      ok      ok      ok      ok      ok
GET /account/second-factor/                   404       404     404     404     404     404     404     404
GET /account/second-factor/check/             404       404     404     404     404     404     404     404

GET /api/v1/                                  404       404     404     404     404     404     404     404
GET /api/v1/docs                              ok        ok      ok      ok      ok      ok      ok      ok
GET /api/v1/openapi.json                      ok        ok      ok      ok      ok      ok      ok      ok
POST /api/v1/request-task                     token     token   token   token   token   token   token   token
POST /request-task                            token     token   token   token   token   token   token   token
POST /api/v1/assignments/1/heartbeat          token     token   token   token   token   token   token   token
POST /api/v1/assignments/1/complete           token     token   token   token   token   token   token   token
POST /api/v1/assignments/1/fail               token     token   token   token   token   token   token   token
POST /api/v1/assignments/1/release            token     token   token   token   token   token   token   token
GET /api/v1/agents/agent-1/current-task       token     token   token   token   token   token   token   token
GET /api/v1/explain                           token     token   token   token   token   token   token   token
POST /api/v1/tasks/fix                        token     token   token   token   token   token   token   token
POST /tasks/fix                               token     token   token   token   token   token   token   token
POST /webhooks/github                         token     token   token   token   token   token   token   token

GET /status/                                  log-in    no      ok      ok      ok      ok      ok      ok
GET /status/tasks/                            log-in    no      ok      ok      ok      ok      ok      ok
GET /status/feeds/                            log-in    no      ok      ok      ok      ok      ok      ok
GET /status/fixtures/                         log-in    no      ok      ok      ok      ok      ok      ok
GET /status/fixtures/reports/                 log-in    no      ok      ok      ok      ok      ok      ok
GET /status/fixtures/reports.rss              log-in    no      ok      ok      ok      ok      ok      ok
GET /status/fixtures/reports.ics              log-in    no      ok      ok      ok      ok      ok      ok
GET /status/fixtures/ROW/report/              log-in    no      ok      ok      ok      ok      ok      ok

GET /admin/                                   log-in    log-in  log-in  ok      ok      ok      ok      ok
GET /admin/login/                             ok        ok      ok      ok      ok      ok      ok      ok
POST /admin/logout/                           ok        ok      ok      ok      ok      ok      ok      ok
GET /admin/password_change/                   log-in    log-in  log-in  ok      ok      ok      ok      ok
GET /admin/password_change/done/              log-in    log-in  log-in  ok      ok      ok      ok      ok
GET /admin/jsi18n/                            log-in    log-in  log-in  ok      ok      ok      ok      ok
GET /admin/autocomplete/                      log-in    log-in  log-in  no      no      no      no      no
GET /admin/r/1/1/                             log-in    log-in  log-in  404     404     404     404     404
GET /admin/tasks/                             log-in    log-in  log-in  404     ok      ok      ok      ok
GET /admin/auth/                              log-in    log-in  log-in  404     404     404     ok      ok
GET /admin/nowhere                            log-in    log-in  log-in  404     404     404     404     404

GET /admin/redis/                             log-in    log-in  log-in  no      ok      ok      ok      ok
GET /admin/redis/keys/                        log-in    log-in  log-in  no      ok      ok      ok      ok
GET /admin/redis/key/                         log-in    log-in  log-in  no      ok      ok      ok      ok
GET /admin/redis/check/                       log-in    log-in  log-in  no      ok      ok      ok      ok
POST /admin/redis/change/                     log-in    log-in  log-in  no      no      no      ok      ok
POST /admin/redis/change/ maintenance         log-in    log-in  log-in  no      no      no      ok      ok
POST /admin/redis/change/ debug               log-in    log-in  log-in  no      no      no      ok      ok
GET /admin/tasks/agent/ROW/rotate/            log-in    log-in  log-in  no      no      no      ok      ok
POST /admin/tasks/agent/ROW/rotate/           log-in    log-in  log-in  no      no      no      ok      ok
GET /admin/tasks/issue/in/1/1/                log-in    log-in  log-in  no      404     404     404     404
GET /admin/tasks/issue/ROW/difference/        log-in    log-in  log-in  no      ok      ok      ok      ok
POST /admin/tasks/issue/ROW/difference/       log-in    log-in  log-in  no      no      ok      ok      ok
POST /admin/tasks/prompttemplate/preview/     log-in    log-in  log-in  no      ok      ok      ok      ok
POST /admin/feeds/item/ROW/summary/           log-in    log-in  log-in  no      no      ok      ok      ok
POST /admin/auth/user/ROW/password/           log-in    log-in  log-in  no      no      no      ok      ok
"""

# v sees its list, its rows and their history · a adds · c changes by the form · d deletes · - none of these.
# Nobody who is not staff gets beyond the log-in, whatever the model.
MODELS = """
model                     staff  viewer operator admin  superuser
auth.user                 -      -      -        vacd   vacd
auth.group                -      -      -        v      vacd
admin.logentry            -      -      -        v      v
broker.loginfailure       -      -      -        v      v
broker.secondfactor       -      -      -        v      v
broker.poller             -      v      v        v      v
broker.pollerrun          -      v      v        v      v
tasks.agent               -      v      v        vac    vac
tasks.assignment          -      v      v        v      v
tasks.pullrequest         -      v      v        v      v
tasks.fixtask             -      v      v        v      v
tasks.event               -      v      v        v      v
tasks.webhookdelivery     -      v      v        v      v
tasks.issue               -      v      v        v      v
tasks.prompttemplate      -      v      v        vacd   vacd
tasks.repository          -      v      v        vac    vac
feeds.item                -      v      v        v      v
feeds.itemevent           -      v      v        v      v
feeds.feed                -      v      vac      vacd   vacd
feeds.feedsettings        -      v      v        vc     vc
fixtures.fixturestatus    -      v      v        v      v
fixtures.match            -      v      v        v      v
fixtures.report           -      v      v        v      v
fixtures.event            -      v      v        v      v
fixtures.fixturesettings  -      v      v        vc     vc
"""

ACTIONS = """
action                                staff  viewer operator admin  superuser
auth.user delete_selected             -      -      -        yes    yes
auth.group delete_selected            -      -      -        -      yes
admin.logentry export_csv             -      -      -        yes    yes
broker.loginfailure unlock            -      -      -        yes    yes
broker.loginfailure export_csv        -      -      -        yes    yes
broker.secondfactor remove            -      -      -        yes    yes
broker.secondfactor export_csv        -      -      -        yes    yes
broker.poller run_now                 -      -      yes      yes    yes
broker.poller pause                   -      -      yes      yes    yes
broker.poller resume                  -      -      yes      yes    yes
broker.poller export_csv              -      yes    yes      yes    yes
broker.pollerrun export_csv           -      yes    yes      yes    yes
tasks.agent enable                    -      -      -        yes    yes
tasks.agent disable                   -      -      -        yes    yes
tasks.agent revoke                    -      -      -        yes    yes
tasks.agent export_csv                -      yes    yes      yes    yes
tasks.assignment release              -      -      yes      yes    yes
tasks.assignment park                 -      -      yes      yes    yes
tasks.assignment offer_again          -      -      yes      yes    yes
tasks.assignment export_csv           -      yes    yes      yes    yes
tasks.pullrequest export_csv          -      yes    yes      yes    yes
tasks.fixtask export_csv              -      yes    yes      yes    yes
tasks.event export_csv                -      yes    yes      yes    yes
tasks.webhookdelivery export_csv      -      yes    yes      yes    yes
tasks.issue park                      -      -      yes      yes    yes
tasks.issue offer_again               -      -      yes      yes    yes
tasks.issue export_csv                -      yes    yes      yes    yes
tasks.prompttemplate delete_selected  -      -      -        yes    yes
tasks.prompttemplate export_csv       -      yes    yes      yes    yes
tasks.repository enable               -      -      -        yes    yes
tasks.repository disable              -      -      -        yes    yes
tasks.repository read_anew            -      -      -        yes    yes
tasks.repository export_csv           -      yes    yes      yes    yes
feeds.item retry                      -      -      yes      yes    yes
feeds.item skip                       -      -      yes      yes    yes
feeds.item screen_now                 -      -      yes      yes    yes
feeds.item summarise_now              -      -      yes      yes    yes
feeds.item export_csv                 -      yes    yes      yes    yes
feeds.itemevent export_csv            -      yes    yes      yes    yes
feeds.feed fetch_now                  -      -      yes      yes    yes
feeds.feed pause                      -      -      yes      yes    yes
feeds.feed resume                     -      -      yes      yes    yes
feeds.feed delete_selected            -      -      -        yes    yes
feeds.feed export_csv                 -      yes    yes      yes    yes
fixtures.fixturestatus retry          -      -      yes      yes    yes
fixtures.fixturestatus generate_now   -      -      yes      yes    yes
fixtures.fixturestatus reset_attempts -      -      yes      yes    yes
fixtures.fixturestatus mark_complete  -      -      yes      yes    yes
fixtures.fixturestatus export_csv     -      yes    yes      yes    yes
fixtures.match export_csv             -      yes    yes      yes    yes
fixtures.report export_csv            -      yes    yes      yes    yes
fixtures.event export_csv             -      yes    yes      yes    yes
"""

BODIES: dict[str, dict[str, str]] = {
    "POST /admin/redis/change/ maintenance": {"what": "maintenance", "to": "on"},
    "POST /admin/redis/change/ debug": {"what": "debug", "to": "on"},
    "POST /admin/tasks/prompttemplate/preview/": {"body": "Hello {title}"},
}


def read_table(text: str) -> dict[str, dict[str, str]]:
    """First column → who → outcome. The first column may hold single spaces."""
    head, *lines = [line for line in text.splitlines() if line.strip()]
    people = head.split()[1:]
    found = {}
    for line in lines:
        words = line.split()
        found[" ".join(words[: -len(people)])] = dict(zip(people, words[-len(people) :], strict=True))
    return found


def routes(resolver: URLResolver, prefix: str = "/") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, prefix + str(pattern.pattern))
        else:
            yield prefix + str(pattern.pattern)


def model_routes() -> set[str]:
    """What the admin makes for every model by itself; the table of models is about these."""
    found = set()
    for model in admin.site._registry:
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        ends = ("", "add/", "<path:object_id>/", "<path:object_id>/change/", "<path:object_id>/delete/")
        found |= {base + end for end in (*ends, "<path:object_id>/history/")}
    return found


def as_pattern(route: str) -> str:
    """A route as an expression for the addresses of the table."""
    if "(?P" in route:  # the admin's two expressions: an app, and everything else
        return "/admin/(tasks|auth)/" if "app_label" in route else "/admin/nowhere"
    return re.sub(r"<[^>]+>", "[^/]+", route)


def test_every_page_model_and_action_has_its_line() -> None:
    listed = {line.split()[1] for line in read_table(PAGES)}
    unlisted = [
        route
        for route in set(routes(get_resolver())) - model_routes()
        if not any(re.fullmatch(as_pattern(route), address) for address in listed)
    ]
    assert unlisted == []
    assert {model._meta.label_lower for model in admin.site._registry} == set(read_table(MODELS))
    assert set(all_actions()) == set(read_table(ACTIONS))


def all_actions() -> list[str]:
    request = RequestFactory().get("/admin/")
    request.user = User(username="root", is_superuser=True, is_staff=True, is_active=True)
    return [
        f"{model._meta.label_lower} {name}"
        for model, model_admin in admin.site._registry.items()
        for name in model_admin.get_actions(request)
    ]


# The people


@pytest.fixture
def person(request: pytest.FixtureRequest, db: None, store: object) -> tuple[str, Client]:
    name: str = request.param
    client = Client(REMOTE_ADDR="203.0.113.20")
    if name != "anonymous":
        user = User.objects.create_user(name, password=None)
        user.is_superuser = name == "superuser"
        user.is_staff = name not in ("nobody", "guest")
        user.save()
        if group := {"guest": "viewer", "viewer": "viewer", "operator": "operator", "admin": "admin"}.get(
            name
        ):
            user.groups.add(Group.objects.get(name=group))
        client.force_login(user)
    return name, client


everybody = pytest.mark.parametrize("person", PEOPLE, indirect=True)


@pytest.fixture
def tokens_only(settings: Any) -> None:
    from dataclasses import replace

    settings.BROKER = replace(settings.BROKER, agent_auth="token")


def outcome(answer: Any) -> str:
    place = answer.headers.get("Location", "")
    if answer.status_code == 302 and place.startswith("/admin/login/?next=/"):
        return "log-in"
    words = {403: "no", 401: "token", 404: "404", 405: "405"}
    return words.get(
        answer.status_code, "ok" if answer.status_code < 400 or answer.status_code == 422 else "?"
    )


@everybody
def test_pages(person: tuple[str, Client], tokens_only: None) -> None:
    name, client = person
    report = make_row(admin_model("fixtures.report"))
    rows = {
        "agent": make_row(admin_model("tasks.agent")).pk,
        "item": make_row(admin_model("feeds.item")).pk,
        "issue": make_row(admin_model("tasks.issue")).pk,
        "user": User.objects.create_user("somebody").pk,
        "fixtures": report.pk,
    }
    wanted, found = {}, {}
    for line, outcomes in read_table(PAGES).items():
        method, address, *_ = line.split()
        if line == "GET /" and name == "anonymous":
            assert client.get("/").headers["Location"] == "/admin/login/?next=/status/"
            continue
        if "ROW" in address:
            kind = next(word for word in rows if f"/{word}/" in address)
            address = address.replace("ROW", str(rows[kind]))
        if address == "/admin/logout/":
            assert outcome(Client().post(address)) == "ok"
            continue  # it would end this person's test
        body = BODIES.get(line, {})
        answer = client.post(address, body) if method == "POST" else client.get(address)
        wanted[line], found[line] = outcomes[name], outcome(answer)
    assert found == wanted


def admin_model(label: str) -> type[Model]:
    return next(model for model in admin.site._registry if model._meta.label_lower == label)


@everybody
def test_models(person: tuple[str, Client]) -> None:
    name, client = person
    wanted, found = {}, {}
    for label, outcomes in read_table(MODELS).items():
        model = admin_model(label)
        row = make_row(model)
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        own = f"{base}{row.pk}/"
        calls = {
            "v": [client.get(base), client.get(f"{own}change/"), client.get(f"{own}history/")],
            "a": [client.get(f"{base}add/"), client.post(f"{base}add/", {})],
            "c": [client.post(f"{own}change/", {})],
            "d": [client.get(f"{own}delete/"), client.post(f"{own}delete/", {})],
        }
        if name not in outcomes:
            for answer in (answer for answers in calls.values() for answer in answers):
                assert outcome(answer) == "log-in", label
            continue
        letters = ""
        for letter, answers in calls.items():
            told = {outcome(answer) for answer in answers}
            assert told in ({"ok"}, {"no"}), (label, letter, [answer.status_code for answer in answers])
            letters += letter if told == {"ok"} else ""
        wanted[label], found[label] = outcomes[name], letters or "-"
    assert found == wanted


@everybody
def test_actions(person: tuple[str, Client]) -> None:
    """Asked for by whoever may: a page that asks again, or the file. By others: nothing, even if "confirmed"."""
    name, client = person
    wanted, found = {}, {}
    rows: dict[str, Model] = {}
    for line, outcomes in read_table(ACTIONS).items():
        label, action = line.split()
        model = admin_model(label)
        row = rows[label] = rows.get(label) or make_row(model)
        address = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        form = {"action": action, "_selected_action": [str(row.pk)]}
        answer = client.post(address, form)
        text = answer.content.decode("utf-8", "replace")
        asks = 'name="confirmed"' in text or 'name="post" value="yes"' in text
        is_done = answer.headers.get("Content-Type", "").startswith("text/csv")
        wanted[line] = outcomes.get(name, "-")
        found[line] = "yes" if answer.status_code == 200 and (asks or is_done) else "-"
        if wanted[line] == "-":
            before = model._default_manager.filter(pk=row.pk).values()[0]
            entries = LogEntry.objects.count()
            client.post(address, {**form, "confirmed": "1", "post": "yes"})
            assert model._default_manager.filter(pk=row.pk).values()[0] == before, line
            assert LogEntry.objects.count() == entries, line
    assert found == wanted


# What a table cannot say: nobody gives what he has not.


@pytest.fixture
def keeper(db: None, store: object) -> Client:
    """A member of the group admin."""
    user = User.objects.create_user("keeper", is_staff=True)
    user.groups.add(Group.objects.get(name="admin"))
    client = Client()
    client.force_login(user)
    return client


def form_of(user: User, **more: Any) -> dict[str, Any]:
    return {
        "username": user.username,
        "first_name": "",
        "last_name": "",
        "email": "",
        "last_login_0": "",
        "last_login_1": "",
        "date_joined_0": "2026-11-16",
        "date_joined_1": "12:00:00",
        "is_active": "on",
        **more,
    }


def test_an_admin_cannot_become_a_superuser_or_touch_one(keeper: Client) -> None:
    me = User.objects.get(username="keeper")
    root = User.objects.create_superuser("root", password="a-rather-long-password")
    other = Group.objects.create(name="made by root")
    permission = Group.objects.get(name="admin").permissions.first()
    assert permission is not None
    form = form_of(
        me,
        is_staff="on",
        is_superuser="on",
        user_permissions=[permission.pk],
        groups=[Group.objects.get(name="admin").pk],
    )
    assert keeper.post(f"/admin/auth/user/{me.pk}/change/", form).status_code == 302
    me.refresh_from_db()
    assert not me.is_superuser
    assert not me.user_permissions.exists()
    assert me.groups.get().name == "admin"
    bold = {**form, "groups": [other.pk]}
    assert keeper.post(f"/admin/auth/user/{me.pk}/change/", bold).status_code == 200, "not a choice"
    assert me.groups.get().name == "admin"
    own = f"/admin/auth/user/{root.pk}/"
    for address in (f"{own}change/", f"{own}password/", f"{own}delete/"):
        assert keeper.post(address, form_of(root)).status_code == 403, address
    chosen = {"action": "delete_selected", "_selected_action": [str(root.pk)], "post": "yes"}
    keeper.post("/admin/auth/user/", chosen)
    assert User.objects.filter(username="root").exists()
    group = Group.objects.get(name="admin")
    assert keeper.post(f"/admin/auth/group/{group.pk}/change/", {"name": "admin"}).status_code == 403


def test_an_admin_makes_people_and_puts_them_into_our_groups(keeper: Client) -> None:
    new = {
        "username": "sato",
        "usable_password": "true",
        "password1": "x9-long-enough",
        "password2": "x9-long-enough",
    }
    assert keeper.post("/admin/auth/user/add/", new).status_code == 302
    sato = User.objects.get(username="sato")
    kept = Group.objects.create(name="made by root")
    sato.groups.add(kept)
    groups = [Group.objects.get(name="operator").pk, kept.pk]
    assert (
        keeper.post(
            f"/admin/auth/user/{sato.pk}/change/", form_of(sato, is_staff="on", groups=groups)
        ).status_code
        == 302
    )
    assert {group.name for group in sato.groups.all()} == {"operator", "made by root"}
