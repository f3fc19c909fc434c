"""What ``manage.py check --deploy`` adds to Django's own list."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from broker_project.console.context import systems
from broker_project.lib.config.loader import Config
from broker_project.lib.config.outside import Source


@register(Tags.security, deploy=True)
def production_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    config: Config = settings.BROKER
    found: list[CheckMessage] = []
    if not config.secret_key_is_given:
        found.append(
            Error("DJANGO_SECRET_KEY is not set: every machine would make its own.", id="broker.E001")
        )
    if config.debug:
        found.append(Error("DJANGO_DEBUG is on.", id="broker.E002"))
    if config.sandbox:
        names = [name for name, source in systems(config).items() if source is Source.SANDBOX]
        found.append(Error(f"BROKER_SANDBOX is on: {', '.join(names)} would be stand-ins.", id="broker.E003"))
    if config.agent_auth == "open" and config.github.source is Source.REAL:
        found.append(Error("BROKER_AGENT_AUTH is open: anybody could take tasks.", id="broker.E004"))
    if config.github.source is Source.REAL and not config.github.webhook_secret:
        text = "GITHUB_WEBHOOK_SECRET is not set: webhooks are refused and new work waits for the next poll."
        found.append(Warning(text, id="broker.W001"))
    return found
