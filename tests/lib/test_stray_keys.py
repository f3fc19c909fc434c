"""Nothing but the registry puts a key together: no other code, and no script, holds the beginning of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_project.lib.redis.keys import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker_project", "tasks", "feeds", "fixtures")
REGISTRY_FILES = {
    ROOT / "broker_project/lib/redis" / name for name in ("keys.py", "keyspace.py", "key_config.py")
}
# Redis commands that no dictionary or file object has as a method.
COMMANDS = frozenset(
    {"hset", "hget", "hgetall", "hmget", "hdel", "hincrby", "sadd", "srem", "smembers", "sismember", "scard"}
    | {"zadd", "zrem", "zrange", "zcard", "zscore", "lpush", "rpush", "lrange", "ltrim", "llen", "expire"}
    | {"pexpire", "unlink", "publish", "setex", "mget", "incrby", "dump", "restore", "ttl", "pttl", "strlen"}
)


def beginnings() -> set[str]:
    """The literal beginning of every pattern that is recognisable as one: ``issue_lock_``, ``queue:`` …"""
    heads = {spec.pattern.split("{", 1)[0] for spec in REGISTRY.values()}
    return {head for head in heads if ":" in head or head.endswith("_")}


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path not in REGISTRY_FILES and "migrations" not in path.parts:
                yield path


def looks_like_a_key(text: str, heads: set[str]) -> bool:
    """Keys hold no blanks, so a sentence about keys is none. A namespace may stand before the colon."""
    if re.search(r"\s", text):
        return False
    # "review_delay_minutes" is a word; a key goes on with a number, or with what an f-string puts there.
    return any(
        re.match(re.escape(head) + (r"(\d|$)" if head.endswith("_") else ""), text.lstrip(":"))
        for head in heads
    )


def stray_keys(tree: ast.AST) -> Iterator[tuple[int, str]]:
    heads = beginnings()
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            if looks_like_a_key(node.value, heads):
                yield node.lineno, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            is_text = isinstance(first, ast.JoinedStr) or (
                isinstance(first, ast.Constant) and isinstance(first.value, str)
            )
            if node.func.attr in COMMANDS and is_text:
                yield node.lineno, ast.unparse(first)


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_writes_a_key_by_hand(path: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in stray_keys(ast.parse(path.read_text()))
    ]
    assert found == []


def scripts() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.lua"))


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_scripts_get_their_keys_from_outside(path: Path) -> None:
    code = re.sub(r"--[^\n]*", "", path.read_text())
    texts = re.findall(r"'([^'\n]*)'|\"([^\"\n]*)\"", code)
    assert [text for pair in texts for text in pair if text and looks_like_a_key(text, beginnings())] == []
    assert re.findall(r"redis\.p?call\(\s*['\"]\w+['\"]\s*,\s*['\"][^'\"]*['\"]", code) == []


STRAY = [
    'client.get("issue:status:1")',
    'key = "review_delay_7"',
    'client.get(f"{namespace}:issue:status:{n}")',
    'key = f"issue_lock_{n}"',
    'key = "queue:" + name',
    'client.hset("open", "a", 1)',
    'client.publish(f"{x}", "y")',
]


@pytest.mark.parametrize("code", STRAY)
def test_the_rule_finds_stray_keys(code: str) -> None:
    assert list(stray_keys(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        '"""issue_lock_{n} is a key."""',
        'print("queue: three left")',
        'document.get("issue")',
        "client.hset(names.key(k.QUEUE, priority='high'), 'a', 1)",
        'headings = ["issue", "open_issues"]',
    ],
)
def test_the_rule_lets_other_text_be(code: str) -> None:
    assert list(stray_keys(ast.parse(code))) == []
