"""Secrets stay out of whatever is written, and ordinary text stays as it is."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from broker_project.lib.config import loader as config
from broker_project.lib.environment import ConfigError
from broker_project.lib.redaction import HIDDEN, Redactor, configure_redaction, redact, redact_value

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"
LONG_PEM = "\n".join(
    [
        "-----BEGIN RSA PRIVATE KEY-----",
        "MIIEow" + "A" * 58,
        "B" * 64,
        "C" * 30,
        "-----END RSA PRIVATE KEY-----",
    ]
)

# Every setting that is a secret, with the environment that makes it valid.
SECRETS = {
    "DJANGO_SECRET_KEY": ("dj-" + "k" * 40, {}),
    "BROKER_METRICS_TOKEN": ("metrics-value-123", {}),
    "GITHUB_TOKEN": ("plain-github-value-1", {"GITHUB_REPOSITORY": "o/r"}),
    "GITHUB_APP_PRIVATE_KEY": (PEM, {"GITHUB_APP_ID": "5", "GITHUB_REPOSITORY": "o/r"}),
    "GITHUB_WEBHOOK_SECRET": ("hook-value-123", {}),
    "GEMINI_API_KEY": ("gemini-value-123", {}),
    "MASTODON_ACCESS_TOKEN": ("mastodon-value-123", {"MASTODON_API_URL": "https://m.example"}),
    "API_FOOTBALL_KEY": ("football-value-123", {}),
}


@pytest.mark.parametrize("setting", SECRETS)
def test_the_secret_of_every_setting_is_known(setting: str, tmp_path: Path) -> None:
    value, others = SECRETS[setting]
    environ = {"BROKER_VAR": str(tmp_path), "BROKER_ENV_FILE": "", setting: value, **others}
    loaded = config.load(environ)
    assert value in loaded.secret_values()
    assert value not in repr(loaded)
    shown = Redactor(loaded.secret_values()).text(f"the far side said {value}!")
    assert value not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    ("setting", "url", "password"),
    [
        ("REDIS_URL", "redis://:redis-pass-1@127.0.0.1:6379/0", "redis-pass-1"),
        ("REDIS_URL", "rediss://user:redis-pass-2@redis.example/0", "redis-pass-2"),
        ("DATABASE_URL", "postgres://user:db-pass-123@127.0.0.1/broker", "db-pass-123"),
    ],
)
def test_passwords_of_stores_are_known(setting: str, url: str, password: str, tmp_path: Path) -> None:
    loaded = config.load({"BROKER_VAR": str(tmp_path), "BROKER_ENV_FILE": "", setting: url})
    assert password in loaded.secret_values()
    assert password not in Redactor(loaded.secret_values()).text(f"cannot reach {url} ({password})")


def test_a_password_with_signs_is_known_as_it_is_and_as_it_was_written(tmp_path: Path) -> None:
    url = "redis://:p%40ss%2Fword%221@redis.example/0"
    loaded = config.load({"BROKER_VAR": str(tmp_path), "BROKER_ENV_FILE": "", "REDIS_URL": url})
    shown = Redactor(loaded.secret_values()).text('said p@ss/word"1 and p%40ss%2Fword%221')
    assert shown == f"said {HIDDEN} and {HIDDEN}"


def test_the_secrets_in_googles_file_and_in_a_feeds_address_are_known(tmp_path: Path) -> None:
    file = tmp_path / "google.json"
    file.write_text(json.dumps({"private_key": PEM, "client_email": "broker@example.org"}))
    environ = {"BROKER_VAR": str(tmp_path / "var"), "BROKER_ENV_FILE": "", "GCS_BUCKET": "b"}
    environ |= {
        "GOOGLE_APPLICATION_CREDENTIALS": str(file),
        "FEED_URLS": "https://feed.example/?token=feed%2Bvalue-123&page=2",
    }
    loaded = config.load(environ)
    assert {PEM, "feed+value-123"} <= loaded.secret_values()
    assert "feed+value-123" not in Redactor(loaded.secret_values()).text("GET /?t=feed%2bvalue-123")
    for content, reason in (("{", "is not JSON"), ("[]", "is not JSON"), (None, "cannot be read")):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        with pytest.raises(ConfigError, match=f"GOOGLE_APPLICATION_CREDENTIALS: the file {reason}"):
            config.load(environ)


def test_a_feeds_address_with_a_password_stops_the_start(tmp_path: Path) -> None:
    environ = {
        "BROKER_VAR": str(tmp_path),
        "BROKER_ENV_FILE": "",
        "FEED_URLS": "https://me:pass-word-1@feed.example/x",
    }
    with pytest.raises(ConfigError, match="FEED_URLS must hold no user name or password") as refusal:
        config.load(environ)
    assert "pass-word-1" not in str(refusal.value)


SIGNS = "0a1b+/=&%\"'<\\@: c2d3"


@pytest.mark.parametrize(
    "written",
    [
        quote(SIGNS, safe=""),
        quote(SIGNS),
        quote(SIGNS, safe="").lower(),
        quote_plus(SIGNS),
        json.dumps(SIGNS)[1:-1],
        json.dumps(json.dumps(SIGNS))[3:-3],
        repr(SIGNS)[1:-1],
        json.dumps(repr(SIGNS))[2:-2],
        html.escape(SIGNS),
        SIGNS.encode().hex(),
        base64.b64encode(SIGNS.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(SIGNS.encode()).decode().rstrip("="),
    ],
)
def test_a_secret_is_hidden_in_every_form(written: str) -> None:
    shown = Redactor([SIGNS]).text(f"<{written}>")
    assert HIDDEN in shown
    # Of Base64 the last letter may hold bits of whatever follows.
    assert len(shown) <= len(HIDDEN) + 4


@pytest.mark.parametrize("user", ["", "u", "us", "use", "user", "somebody"])
def test_a_password_is_hidden_in_basic_authorisation_of_whomever(user: str) -> None:
    password = "pass-word-0123456789"
    written = base64.b64encode(f"{user}:{password}".encode()).decode()
    shown = Redactor([password]).text(f"<{written}>")
    assert HIDDEN in shown
    # What is left is the user's name and the letters that it shares with the password's ends.
    assert len(shown.replace(HIDDEN, "")) <= 2 + len(base64.b64encode(user.encode())) + 8


def test_a_private_key_is_hidden_line_by_line() -> None:
    lines = [line for line in LONG_PEM.splitlines() if not line.startswith("-")]
    assert len(lines) == 3
    for line in lines:
        assert Redactor([LONG_PEM]).text(f"at {line} end") == f"at {HIDDEN} end"


LOOK_LIKE_SECRETS = [
    "assertion=eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJicm9rZXIi.0123456789abcdef-0123456789abcdef",
    "Authorization: ya29.0123456789abcdef_0123",
    "Authorization: Bearer abcdefghijkl",
    "authorization: token 0123456789abcdef",
    "Basic dXNlcjpwYXNzd29yZDEyMw==",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0123456789_abcdefghijklmnop",
    "https://generativelanguage.example/v1?key=AIzaSyA0123456789abcdefghijklmnopqrstuv",
    "brk_0123456789abcdefABCDEF",
    "postgres://user:s3cretpass@db.example/x",
    "redis://:s3cretpass@redis.example",
    '{"access_token": "s3cretpass"}',
    '{"token": "s3cretpass"}',
    '{\\"password\\": \\"s3cretpass\\"}',
    "{'client_secret': 's3cretpass'}",
    "x-apisports-key: s3cretpass",
    "GEMINI_API_KEY=s3cretpass",
    "?api_key=s3cretpass&x=1",
    PEM,
    PEM.replace("\n", "\\n"),
    "-----BEGIN PRIVATE KEY-----\nMIIEow and then it is cut off",
]


@pytest.mark.parametrize("text", LOOK_LIKE_SECRETS)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    shown = Redactor().text(text)
    assert HIDDEN in shown
    for secret in ("s3cretpass", "abcdefghijkl", "0123456789abcdef", "dXNlcjpwYXNz", "MIIEow"):
        assert secret not in shown
    assert Redactor().text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "token authentication failed",
        "basic information about the issue",
        "max_output_tokens: 2048",
        "https://example.org:8080/path@home",
        "P1 の課題を 3 件 割り当てました",
        "the secret is out",
        "docs: http://127.0.0.1:8000/api/v1/docs",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redactor().text(text) == text


def test_a_secret_that_contains_another_leaves_no_tail() -> None:
    shown = Redactor(["abcdefgh", "abcdefgh-longer-one"]).text("x abcdefgh-longer-one y")
    assert shown == f"x {HIDDEN} y"


def test_values_inside_documents_are_hidden_by_their_name() -> None:
    document = {"user": "a", "password": "hunter", "list": [{"api_key": "x"}, "Bearer abcdefghijk"], "n": 3}
    shown = Redactor().value(document)
    assert shown == {
        "user": "a",
        "password": HIDDEN,
        "list": [{"api_key": HIDDEN}, f"Bearer {HIDDEN}"],
        "n": 3,
    }
    assert "hunter" not in json.dumps(shown)


def test_redact_cuts_after_hiding_and_drops_control_characters() -> None:
    text = "a\x00b\x1b[31m " + "Bearer " + "z" * 5000
    shown = redact(text, 20)
    assert len(shown) <= 20
    assert "\x00" not in shown
    assert "\x1b" not in shown
    assert "zzzz" not in shown


def test_hostile_text_costs_no_more_than_its_length() -> None:
    # A square of this length would be billions of steps.
    text = "a-" * 200_000 + "://" * 10_000 + "token " * 10_000
    assert len(redact(text, 1_000_000)) == len(text)


def test_configured_secrets_apply_to_the_module_functions() -> None:
    from django.conf import settings as django_settings

    try:
        configure_redaction(["only-here-known"])
        assert redact("x only-here-known y") == f"x {HIDDEN} y"
        assert redact_value(["only-here-known"]) == [HIDDEN]
    finally:
        configure_redaction(django_settings.BROKER.secret_values())
