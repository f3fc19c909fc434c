"""Tasks in the admin: evidence is read-only, actions call services and report what really changed."""

from tasks.admin import agents, assignments, evidence, issues, prompts, repositories

__all__ = ["agents", "assignments", "evidence", "issues", "prompts", "repositories"]
