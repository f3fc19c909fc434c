"""What import-linter (``[tool.importlinter]`` in pyproject.toml) cannot say about the house."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.dead_code import unused_code

ROOT = Path(__file__).resolve().parent.parent
APPS = ("tasks", "feeds", "fixtures")
LONGEST_MODULE = 400  # lines; past that a module has two subjects
# These start processes and hand the environment on, or set up logging before the settings exist.
READS_ENVIRONMENT = (
    "broker_project/lib/config/",
    "broker_project/lib/logs.py",
    "broker_project/ops/supervisor/",
    "broker_project/ops/backups/databases.py",
    "broker_project/asgi.py",
    "sandbox/",
)


def modules(*packages: str) -> Iterator[Path]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


@pytest.mark.process
def test_imports_keep_to_their_contracts() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_no_unused_code() -> None:
    assert unused_code() == []


@pytest.mark.parametrize("app", APPS)
def test_every_app_has_the_same_rooms(app: str) -> None:
    for room in ("models", "lifecycle", "selectors", "pollers", "metrics", "admin", "services"):
        assert (ROOT / app / f"{room}.py").exists() or (ROOT / app / room).is_dir(), room
    assert (ROOT / app / "github").is_dir() or (ROOT / app / "clients").is_dir()


@pytest.mark.parametrize("app", APPS)
def test_rules_use_nothing_of_the_database_but_choices(app: str) -> None:
    text = (ROOT / app / "lifecycle.py").read_text()
    imported = re.findall(r"^from (django\.db\S*) import (.+)$", text, re.MULTILINE)
    names = {name.strip() for _, found in imported for name in found.split(",")}
    assert names <= {"models", "IntegerChoices", "TextChoices"}
    assert "objects." not in text


def test_nothing_reads_the_environment_but_the_settings() -> None:
    for path in modules("broker_project", "sandbox", *APPS):
        relative = str(path.relative_to(ROOT))
        if relative.startswith(READS_ENVIRONMENT):
            continue
        # Setting a variable for a library is not reading.
        lines = [line for line in path.read_text().splitlines() if "os.environ.setdefault" not in line]
        uses = [line for line in lines if "os.environ" in line or "getenv(" in line]
        assert not uses or "BROKER_SUPERVISED" in uses[0], f"{relative}: {uses[0].strip()}"


LONG_FOR_NOW = {
    "tasks/services/assignment.py",
}


def test_no_module_is_too_long() -> None:
    found = modules("broker_project", "sandbox", "bench", "tools", *APPS)
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in found}
    too_long = {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE}
    assert too_long.keys() <= LONG_FOR_NOW, too_long


def test_every_command_has_a_test() -> None:
    texts = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for package in ("broker_project", *APPS):
        for path in (ROOT / package).glob("management/commands/*.py"):
            if path.stem != "__init__":
                assert path.stem in texts, f"no test speaks of manage.py {path.stem}"
