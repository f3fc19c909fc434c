"""Typed readers for the environment. A bad value raises :class:`ConfigError` with a sentence naming it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from dotenv.parser import parse_stream


class ConfigError(Exception):
    """The application refuses to start. The text is one sentence for the operator and holds no secret."""


TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})


def read_env_file(path: Path) -> dict[str, str]:
    """The assignments of a ``.env`` file; empty if there is none. A line that is not an assignment is refused."""
    try:
        with path.open(encoding="utf-8") as stream:
            values: dict[str, str] = {}
            for binding in parse_stream(stream):
                if binding.error:
                    raise ConfigError(f"{path.name}, line {binding.original.line}: this is not NAME=value.")
                if binding.key is not None:
                    values[binding.key] = binding.value or ""
            return values
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name} is not UTF-8 text.") from None
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror}.") from None


@dataclass
class Environment:
    """Values by name, with the checks that every setting of a kind shares."""

    values: Mapping[str, str]
    names_read: set[str] = field(default_factory=set)

    def text(self, name: str, default: str = "") -> str:
        self.names_read.add(name)
        return self.values.get(name, "").strip() or default

    def token(self, name: str) -> str:
        """A credential. It is sent in a header, so spaces and line breaks are refused."""
        value = self.text(name)
        if any(not "!" <= character <= "~" for character in value):
            raise ConfigError(f"{name} must be plain letters, digits and signs without spaces.")
        return value

    def is_set(self, name: str) -> bool:
        return bool(self.text(name))

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name).lower()
        if not value:
            return default
        if value in TRUE_WORDS:
            return True
        if value in FALSE_WORDS:
            return False
        raise ConfigError(f"{name} must be 1 or 0, not {value[:40]!r}.")

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        value = self.text(name)
        if not value:
            return default
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise ConfigError(f"{name} must be a whole number, not {value[:40]!r}.")
        if not low <= int(value) <= high:
            raise ConfigError(f"{name} must be from {low} to {high}, not {value}.")
        return int(value)

    def choice(self, name: str, default: str, options: Iterable[str]) -> str:
        value = self.text(name, default)
        if value not in set(options):
            raise ConfigError(f"{name} must be one of {', '.join(sorted(options))}, not {value[:40]!r}.")
        return value

    def listing(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def url(self, name: str, default: str = "", schemes: tuple[str, ...] = ("http", "https")) -> str:
        value = self.text(name, default)
        if value:
            check_url(name, value, schemes)
        return value.rstrip("/")


def check_url(name: str, value: str, schemes: tuple[str, ...] = ("http", "https")) -> None:
    """Refuse anything but an absolute URL of these schemes. The value is not repeated: it may hold a password."""
    try:
        parts = urlsplit(value)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_good = None, False
    if parts is None or parts.scheme not in schemes or not parts.hostname or not port_is_good:
        raise ConfigError(f"{name} must be a URL that begins with {' or '.join(s + '://' for s in schemes)}.")
