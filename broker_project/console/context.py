"""What every template may show: which outside systems are stand-ins or off."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from broker_project.lib.config.dynamic import maintenance
from broker_project.lib.config.loader import Config
from broker_project.lib.config.outside import Source


def systems(config: Config) -> dict[str, Source]:
    return {
        "GitHub": config.github.source,
        "Gemini": config.gemini.source,
        "Mastodon": config.mastodon.source,
        "API-Football": config.football.source,
        "Cloud Storage": config.storage.source,
    }


def broker(request: HttpRequest) -> dict[str, Any]:
    sources = systems(settings.BROKER)
    return {
        "sandboxed_systems": [name for name, source in sources.items() if source is Source.SANDBOX],
        "systems_off": [name for name, source in sources.items() if source is Source.OFF],
        "maintenance": maintenance(),
        "has_second_factor": settings.BROKER.access.second_factor != "off",
        "sandbox_url": settings.BROKER.sandbox_url if settings.BROKER.sandbox else "",
    }
