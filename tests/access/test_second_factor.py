"""The second factor: set up, asked for on every page, lost and recovered."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django_otp.oath import TOTP
from django_otp.plugins.otp_static.models import StaticDevice, StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from broker_project.people.second_factor import devices
from tests.access.test_log_in import ELSEWHERE
from tests.support.server import BrokerWorld

pytestmark = pytest.mark.database

PAGE, CHECK = "/account/second-factor/", "/account/second-factor/check/"
PASSWORD = "a-rather-long-password"


def switch(settings: Any, mode: str) -> None:
    """As the settings do it for ``BROKER_ADMIN_2FA``; the real thing is in the last test here."""
    settings.BROKER = replace(settings.BROKER, access=replace(settings.BROKER.access, second_factor=mode))
    after = settings.MIDDLEWARE.index("django.contrib.auth.middleware.AuthenticationMiddleware") + 1
    ours = [
        "django_otp.middleware.OTPMiddleware",
        "broker_project.people.second_factor.middleware.SecondFactorMiddleware",
    ]
    settings.MIDDLEWARE = [*settings.MIDDLEWARE[:after], *ours, *settings.MIDDLEWARE[after:]]


@pytest.fixture
def optional(settings: Any, db: None, store: object) -> None:
    switch(settings, "optional")


@pytest.fixture
def required(settings: Any, db: None, store: object) -> None:
    switch(settings, "required")


def make(name: str = "suzuki", **more: Any) -> User:
    return User.objects.create_user(name, password=PASSWORD, **{"is_staff": True, **more})


def log_in(name: str = "suzuki", there: str = "/status/") -> Client:
    client = Client()
    form = {"username": name, "password": PASSWORD, "next": there}
    assert client.post("/admin/login/", form).status_code == 302
    return client


def code_of(user: User) -> str:
    """What the telephone shows now. The step may be used once; the tests are quicker than thirty seconds."""
    device = TOTPDevice.objects.get(user=user)
    TOTPDevice.objects.filter(pk=device.pk).update(
        last_t=-1, drift=0, throttling_failure_count=0, throttling_failure_timestamp=None
    )
    totp = TOTP(device.bin_key)
    totp.time = time.time()
    return f"{totp.token():06d}"


def enrol(client: Client, user: User) -> list[str]:
    """The recovery codes."""
    assert client.post(PAGE, {"deed": "begin"}).status_code == 302
    answer = client.post(PAGE, {"deed": "confirm", "code": code_of(user)})
    assert answer.status_code == 200
    return re.findall(r"<li><code>([^<]+)</code>", answer.content.decode())


def where(answer: Any) -> str:
    return str(answer.headers.get("Location", ""))


def test_off_there_is_no_such_page_and_nobody_is_asked(db: None, store: object) -> None:
    user = make()
    TOTPDevice.objects.create(user=user, confirmed=True)
    client = log_in()
    assert client.get("/status/").status_code == 200
    assert client.get(PAGE).status_code == client.get(CHECK).status_code == 404


def test_set_up_and_asked_for_ever_after(optional: None) -> None:
    user = make()
    client = log_in()
    assert client.get("/status/").status_code == 200, "who has none is not asked"
    assert client.get(PAGE).status_code == 200
    before = client.session.session_key
    codes = enrol(client, user)
    assert client.session.session_key != before
    assert len(set(codes)) == devices.RECOVERY_CODES
    assert client.get("/status/").status_code == 200, "this session has shown a code"
    other = log_in()
    for page in (
        "/status/",
        "/admin/",
        "/admin/password_change/",
        "/",
        "/admin/redis/",
        "/status/fixtures/reports/",
    ):
        assert where(other.get(page)).startswith(f"{CHECK}?next="), page
    assert where(other.get(PAGE)).startswith(CHECK), "nor is it enough to look at the secret or take it away"
    assert where(
        other.post("/admin/redis/change/", {"what": "debug", "to": "on", "confirmed": "yes"})
    ).startswith(CHECK)
    assert other.post(CHECK, {"code": "000000"}).status_code == 200
    assert where(other.get("/admin/")).startswith(CHECK)
    before = other.session.session_key
    answer = other.post(CHECK, {"code": code_of(user), "next": "/admin/"})
    assert (answer.status_code, where(answer)) == (302, "/admin/")
    assert other.session.session_key != before
    assert other.get("/admin/").status_code == 200
    assert other.post("/admin/logout/").status_code in (200, 302)
    assert where(log_in().get("/status/")).startswith(CHECK)


def test_a_code_opens_once_and_wrong_ones_make_it_wait(optional: None) -> None:
    user = make()
    enrol(log_in(), user)
    code = code_of(user)
    one, two = log_in(), log_in()
    assert one.post(CHECK, {"code": code}).status_code == 302
    assert two.post(CHECK, {"code": code}).status_code == 200, "seen over the shoulder, it is worth nothing"
    assert two.post(CHECK, {"code": code_of(user)}).status_code == 302, "the next one is good"
    code = code_of(user)
    three = log_in()
    three.post(CHECK, {"code": "000000" if code != "000000" else "111111"})
    rows = TOTPDevice.objects.filter(user=user)
    assert rows.get().throttling_failure_count == 1
    rows.update(throttling_failure_count=12)  # as after a dozen: more than an hour to wait
    assert three.post(CHECK, {"code": code}).status_code == 200, "too soon after wrong ones"


def test_recovery_codes_open_once_and_are_kept_as_hashes(optional: None) -> None:
    user = make()
    codes = enrol(log_in(), user)
    stored = set(StaticToken.objects.values_list("token", flat=True))
    assert not stored & {code.replace("-", "") for code in codes}
    first = log_in()
    assert first.post(CHECK, {"code": codes[0].upper().replace("-", " ")}).status_code == 302
    assert log_in().post(CHECK, {"code": codes[0]}).status_code == 200
    StaticDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    # Another person's codes are nothing here.
    other = make("tanaka")
    enrol(log_in("tanaka"), other)
    assert log_in("tanaka").post(CHECK, {"code": codes[1]}).status_code == 200
    fresh = first.post(PAGE, {"deed": "codes", "code": code_of(user)})
    again = re.findall(r"<li><code>([^<]+)</code>", fresh.content.decode())
    assert len(again) == devices.RECOVERY_CODES
    assert log_in().post(CHECK, {"code": codes[2]}).status_code == 200, "the old ones are worthless"
    StaticDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    assert log_in().post(CHECK, {"code": again[0]}).status_code == 302


def test_taking_it_away_needs_a_code(optional: None) -> None:
    user = make()
    client = log_in()
    enrol(client, user)
    client.post(PAGE, {"deed": "remove", "code": "000000"})
    assert devices.authenticator_of(user) is not None
    client.post(PAGE, {"deed": "remove", "code": code_of(user)})
    assert devices.authenticator_of(user) is None
    assert not StaticDevice.objects.filter(user=user).exists()
    assert log_in().get("/status/").status_code == 200


def test_required_staff_set_one_up_before_anything_else(required: None) -> None:
    user, viewer = make(), make("viewer", is_staff=False)
    viewer.groups.add(Group.objects.get(name="viewer"))
    assert log_in("viewer").get("/status/").status_code == 200, "it is the admin that must have one"
    client = log_in(there="/admin/")
    assert where(client.get("/admin/")) == f"{PAGE}?next=%2Fadmin%2F"
    assert "Staff must have" in client.get(PAGE, headers={"accept-language": "en"}).content.decode()
    enrol(client, user)
    assert client.get("/admin/").status_code == 200
    client.post(PAGE, {"deed": "remove", "code": code_of(user)})
    assert devices.authenticator_of(user) is not None, "and keep it"


def test_a_half_logged_in_person_may_leave_and_change_the_language(optional: None) -> None:
    user = make()
    enrol(log_in(), user)
    client = log_in()
    assert client.post("/i18n/setlang/", {"language": "en", "next": CHECK}).status_code == 302
    assert "The second factor" in client.get(CHECK).content.decode()
    assert client.get("/health").status_code == 200
    client.post("/admin/logout/")
    assert where(client.get(CHECK)).startswith("/admin/login/")


@pytest.mark.parametrize("there", ELSEWHERE)
def test_it_sends_nobody_elsewhere(optional: None, there: str) -> None:
    user = make()
    enrol(log_in(), user)
    client = log_in()
    assert where(client.post(CHECK, {"code": code_of(user), "next": there})) == "/status/"
    assert where(client.get(CHECK, {"next": there})) == "/status/"


@pytest.mark.parametrize("language", ["ja", "en"])
def test_the_pages_need_no_inline_script_or_style_and_no_foreign_host(optional: None, language: str) -> None:
    user = make()
    client = log_in()
    client.cookies["django_language"] = language
    begun = client.post(PAGE, {"deed": "begin"}, follow=True)
    device = TOTPDevice.objects.get(user=user)
    codes = client.post(PAGE, {"deed": "confirm", "code": code_of(user)})
    manage, check = client.get(PAGE), log_in().get(CHECK)
    assert "<svg" in begun.content.decode()
    assert "otpauth://totp/Broker%3Asuzuki?" in begun.content.decode()
    for answer in (begun, codes, manage, check):
        text = answer.content.decode()
        assert answer.status_code == 200
        assert not re.search(r"<style|\sstyle=|<script(?! src=)|\son\w+=", text)
        assert not re.findall(r'(?:src|href|action)="(?:https?:)?//', text)
        assert "no-store" in answer.headers["Cache-Control"]
    for answer in (codes, manage, check):
        assert device.key not in answer.content.decode(), (
            "the secret is shown while it is set up, and never again"
        )


def test_only_admins_take_it_from_others_and_only_superusers_from_superusers(optional: None) -> None:
    root, plain = make("root", is_superuser=True), make("plain")
    for user in (root, plain):
        enrol(log_in(user.username), user)
    address = "/admin/broker/secondfactor/"
    rows = [str(pk) for pk in TOTPDevice.objects.values_list("pk", flat=True)]
    form = {"action": "remove", "_selected_action": rows, "confirmed": "1"}
    for group in ("viewer", "operator", "admin"):
        helper = make(group)
        helper.groups.add(Group.objects.get(name=group))
        client = log_in(group)
        if group != "admin":
            assert client.get(address).status_code == client.post(address, form).status_code == 403
            continue
        page = client.get(address).content.decode()
        for device in TOTPDevice.objects.all():
            assert device.key not in page
        assert client.post(address, form).status_code == 302
    assert devices.authenticator_of(plain) is None
    assert devices.authenticator_of(root) is not None


def test_the_setting_alone_does_it(broker_world: BrokerWorld) -> None:
    server = broker_world.start(BROKER_ADMIN_2FA="required")
    made = "from django.contrib.auth.models import User; User.objects.create_superuser('boss', password='%s')"
    server.manage("shell", "--no-imports", "-c", made % PASSWORD)
    with server.client() as client:
        client.get("/admin/login/")
        form = {"username": "boss", "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        assert client.post("/admin/login/", data=form).status_code == 302
        assert client.get("/admin/").headers["location"] == f"{PAGE}?next=%2Fadmin%2F"
        assert client.get(PAGE).status_code == 200
