"""Django looks for admin pages here; each subject keeps its own."""

from __future__ import annotations

from broker_project.ops.clock import admin as clock_admin  # noqa: F401 - registers pollers
from broker_project.people import admin as people_admin  # noqa: F401 - registers accounts
