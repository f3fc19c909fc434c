"""Which version of the code made the tables."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.migrations.loader import MigrationLoader


def unknown_migrations(applied: Iterable[tuple[str, str]], loader: MigrationLoader) -> list[str]:
    """Migrations of our apps that this code neither has nor had before squashing: a newer version made them."""
    known = set(loader.disk_migrations)
    known |= {key for migration in loader.disk_migrations.values() for key in migration.replaces}
    apps = {app for app, _ in loader.disk_migrations}
    return sorted(f"{app}.{name}" for app, name in applied if app in apps and (app, name) not in known)
