"""Database connections of threads that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import close_old_connections, connection

T = TypeVar("T")


def with_connections(call: Callable[..., T], *arguments: Any) -> T:
    """Django closes what is broken before and after, as it does around a request."""
    close_old_connections()
    try:
        return call(*arguments)
    finally:
        if connection.vendor == "sqlite":
            # Opening a file costs more than a query, and these threads stay. After an error a new one is opened.
            # PostgreSQL's go back to their pool.
            connection.close_at = 0.0 if connection.errors_occurred else None
        close_old_connections()
