"""The agents file: which roles there are, and what each is told about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from broker_project.lib.environment import ConfigError, Environment

# What may not be an agent id or a role, since it already means something as a label.
RESERVED_LABELS = frozenset({"in-progress", "needs-review", "review-done", "parked", "story", "epic", "fix"})


@dataclass(frozen=True)
class AgentRole:
    role: str
    persona: str


def read_agents(env: Environment, base_dir: Path) -> tuple[tuple[AgentRole, ...], Path]:
    path = base_dir / env.text("BROKER_AGENTS_FILE", "agents.yml")
    name = f"BROKER_AGENTS_FILE ({path.name})"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{name}: there is no such file.") from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name} is not valid YAML{where}.") from None
    entries = document.get("agents") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{name} must hold a list 'agents' with at least one entry.")
    roles: dict[str, AgentRole] = {}
    for position, entry in enumerate(entries, start=1):
        role = read_role(name, position, entry)
        if role.role in roles:
            raise ConfigError(f"{name}: the role {role.role!r} is listed twice.")
        roles[role.role] = role
    return tuple(roles.values()), path


def read_role(name: str, position: int, entry: object) -> AgentRole:
    role = entry.get("role") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(role, str) or not role.strip():
        raise ConfigError(f"{name}: entry {position} has no 'role'.")
    role = role.strip()
    if len(role) > 50 or "," in role or not role.isprintable():
        raise ConfigError(
            f"{name}: entry {position}: a role must be a GitHub label of at most 50 characters."
        )
    if role in RESERVED_LABELS or re.fullmatch(r"P[0-9]+", role):
        raise ConfigError(f"{name}: entry {position}: {role!r} has another meaning as a label.")
    persona = entry.get("persona", entry.get("description", ""))
    if not isinstance(persona, str):
        raise ConfigError(f"{name}: entry {position}: 'persona' must be text.")
    return AgentRole(role=role, persona=persona.strip())
