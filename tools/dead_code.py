"""Name code that nothing uses: vulture, and what it cannot see by itself.

Tests do not count as a use: what only a test calls is dead. A name that stands in a template, in a script of a page or
in a string that looks like a name (a dotted path in the settings, a field in ``list_display``) counts as used.
Known exceptions are in ``[tool.broker.dead_code]`` of pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from vulture import Vulture
from vulture.core import Item

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("broker_project", "tasks", "feeds", "fixtures", "sandbox", "bench", "broker_client.py")
READ_BY_DJANGO = ("settings.py", "formats.py")
NAME = re.compile(r"[A-Za-z_]\w*")
DOTTED_NAME = re.compile(r"[A-Za-z_][\w.]*")


def python_files() -> Iterator[Path]:
    for package in PACKAGES:
        path = ROOT / package
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def names_in_strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and DOTTED_NAME.fullmatch(node.value)
        ):
            yield from NAME.findall(node.value)


def names_in_pages() -> Iterator[str]:
    for folder, pattern in ((ROOT / "templates", "*.html"), (ROOT / "broker_project/static", "*.js")):
        for path in folder.rglob(pattern):
            yield from NAME.findall(path.read_text(encoding="utf-8"))


def is_for_tests(item: Item, names_in_tests: set[str]) -> bool:
    """The sandbox and the bench are there for tests as well."""
    return item.filename.relative_to(ROOT).parts[0] in ("sandbox", "bench") and item.name in names_in_tests


def unused_code() -> list[str]:
    """A line for each finding."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["broker"]["dead_code"]
    files = [path for path in python_files() if "migrations" not in path.parts]
    used = set(names_in_pages())
    for path in files:
        used |= set(names_in_strings(path))
    vulture = Vulture(
        ignore_names=[*known["names"], *known["leaving"]], ignore_decorators=known["decorators"]
    )
    vulture.scavenge(files)
    in_tests = {name for path in (ROOT / "tests").rglob("*.py") for name in NAME.findall(path.read_text())}
    return [
        f"{item.filename.relative_to(ROOT)}:{item.first_lineno}: {item.message}"
        for item in vulture.get_unused_code(min_confidence=60)
        if item.name not in used
        and item.filename.name not in READ_BY_DJANGO
        and not is_for_tests(item, in_tests)
    ]


if __name__ == "__main__":
    lines = unused_code()
    print("\n".join(lines) or "No unused code.")
    sys.exit(1 if lines else 0)
