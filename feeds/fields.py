"""Columns and indexes with exactly the names and types of seed 004."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    from datetime import datetime

    _DateTimeField = models.DateTimeField[str | datetime, datetime]
else:
    _DateTimeField = models.DateTimeField


class TimestampField(_DateTimeField):
    """A DateTimeField whose column is declared ``TIMESTAMP`` on SQLite, as in the seed."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        if connection.vendor == "sqlite":
            return "timestamp"
        return super().db_type(connection)


class LongNameIndex(models.Index):
    """Django refuses names over 30 characters because of Oracle; SQLite and PostgreSQL accept 63."""

    max_name_length = 63
