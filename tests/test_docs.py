"""The documents name only files and commands that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from django.core.management import get_commands

from tools.walks import PLACE

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "README.md"],
)
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:py|lua|md|html|css|js|toml|yml|yaml|txt|in|sh|json|svg|png)")
LINK = re.compile(r"\]\(([^)#\s]+)\)")
COMMAND = re.compile(r"manage\.py ([a-z_]+)")
TARGET = re.compile(r"make ([a-z-]+)")
# Files of a running installation, of an agent's own machine, or of the outside world.
NOT_HERE = re.compile(
    r"var/.*|.*fixture_status\.csv|openapi\.json|agents\.local\.yml|news\.rdf|.*broker-state.*"
)


@cache
def paths() -> frozenset[str]:
    """Every file and folder of ours, relative to the root."""
    top = [path for path in ROOT.iterdir() if path.name not in (".git", ".venv", "var")]
    found = [*top, *(path for folder in top if folder.is_dir() for path in folder.rglob("*"))]
    return frozenset(str(path.relative_to(ROOT)) for path in found)


def exists(name: str) -> bool:
    return any(path == name or path.endswith(f"/{name}") for path in paths())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_commands_and_links_exist(document: Path) -> None:
    text = PLACE.sub("", document.read_text(encoding="utf-8"))  # walks are compared with a traced run
    code = [part for found in CODE.findall(text) for part in found.split()]
    files = {part for part in code if FILE.fullmatch(part) and not NOT_HERE.fullmatch(part)}
    assert sorted(name for name in files if not exists(name)) == []
    links = {link for link in LINK.findall(text) if "://" not in link}
    assert sorted(link for link in links if not (document.parent / link).exists()) == []


def test_commands_and_make_targets_exist() -> None:
    texts = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert set(COMMAND.findall(texts)) <= get_commands().keys()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {name for part in CODE.findall(texts) for name in TARGET.findall(part)} <= targets
