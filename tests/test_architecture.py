"""Imports go one way, and the same rooms are in every app (STYLE: the house)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
APPS = ("tasks", "feeds", "fixtures")
# Room → what it must not import of its own app.
OUTER = {"admin", "pollers", "views", "urls", "management", "mirin"}
PURE = {"lifecycle", "branches"}


def modules(package: str) -> Iterator[Path]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "migrations" not in path.parts:
            yield path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path, package: str) -> str:
    return path.relative_to(ROOT / package).with_suffix("").parts[0]


def is_below(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent + ".")


def all_modules() -> list[tuple[str, Path]]:
    return [(package, path) for package in ("broker_project", "sandbox", *APPS) for path in modules(package)]


@pytest.mark.parametrize("path", list(modules("broker_project/lib")), ids=lambda p: p.stem)
def test_lib_imports_no_app_and_nothing_of_the_project_but_itself(path: Path) -> None:
    allowed = ("broker_project.lib", "broker_project.lib.config.loader")
    for name in imports(path):
        assert not any(is_below(name, app) for app in APPS), name
        if is_below(name, "broker_project"):
            assert name == "broker_project" or any(is_below(name, good) for good in allowed), name


@pytest.mark.parametrize("app", APPS)
def test_no_app_imports_another_app(app: str) -> None:
    for path in modules(app):
        for name in imports(path):
            assert not any(is_below(name, other) for other in APPS if other != app), f"{path}: {name}"


@pytest.mark.parametrize("app", APPS)
def test_inner_rooms_do_not_know_the_outer_ones(app: str) -> None:
    for path in modules(app):
        if room(path, app) in OUTER:
            continue
        for name in imports(path):
            for outer in OUTER:
                assert not is_below(name, f"{app}.{outer}"), f"{path}: {name}"


@pytest.mark.parametrize("app", APPS)
def test_models_and_rules_know_no_services_and_no_outside(app: str) -> None:
    for path in modules(app):
        if room(path, app) not in {"models", *PURE}:
            continue
        for name in imports(path):
            assert not is_below(name, f"{app}.services"), f"{path}: {name}"
            for client in ("client", "clients"):
                assert not is_below(name, f"{app}.{client}"), f"{path}: {name}"
            assert name.split(".")[0] not in {"redis", "httpx", "github", "requests"}, f"{path}: {name}"


@pytest.mark.parametrize("app", APPS)
def test_rules_are_pure(app: str) -> None:
    for path in modules(app):
        if room(path, app) in PURE:
            for name in imports(path):
                # Django's Choices are enumerations that happen to live there.
                if name in {
                    "django.db.models",
                    "django.db.models.IntegerChoices",
                    "django.db.models.TextChoices",
                }:
                    continue
                assert not is_below(name, "django.db"), f"{path}: {name}"


@pytest.mark.parametrize("app", APPS)
def test_every_app_has_the_same_rooms(app: str) -> None:
    for name in ("models", "lifecycle", "selectors", "pollers", "metrics"):
        assert (ROOT / app / f"{name}.py").exists(), name
    assert (ROOT / app / "admin.py").exists() or (ROOT / app / "admin").is_dir()
    assert (ROOT / app / "services.py").exists() or (ROOT / app / "services").is_dir()
    assert (ROOT / app / "github").is_dir() or (ROOT / app / "clients").is_dir()


def test_the_sandbox_stands_alone() -> None:
    for path in modules("sandbox"):
        for name in imports(path):
            assert name.split(".")[0] not in {"django", "broker_project", *APPS}, f"{path}: {name}"


def test_nothing_reads_the_environment_but_the_settings() -> None:
    allowed = {
        "broker_project/lib/config/loader.py",
        "broker_project/lib/config/environment.py",
        "broker_project/lib/logs.py",
    }
    starters = (
        "broker_project/ops/supervisor",
        "broker_project/asgi.py",
        "broker_project/lib/redis/embedded.py",
        "broker_project/ops/backups/databases.py",  # hands it on to PostgreSQL's own programs
        "sandbox/",
    )
    for package, path in all_modules():
        relative = str(path.relative_to(ROOT))
        if relative in allowed or relative.startswith(starters) or package == "sandbox":
            continue
        text = path.read_text()
        # Setting a variable for a library is no reading.
        lines = [line for line in text.splitlines() if "os.environ.setdefault" not in line]
        uses = [line for line in lines if "os.environ" in line or "getenv(" in line]
        assert not uses or "BROKER_SUPERVISED" in uses[0], f"{relative}: {uses[0].strip()}"


def test_every_command_has_a_test() -> None:
    texts = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for package in ("broker_project", *APPS):
        for path in (ROOT / package).glob("management/commands/*.py"):
            if path.stem != "__init__":
                assert path.stem in texts, f"no test speaks of manage.py {path.stem}"
