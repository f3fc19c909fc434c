"""The flags and settings in Redis as the admin's page shows and changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from broker_project.lib.config import dynamic as dynamic_config
from broker_project.lib.config.dynamic import Setting, Snapshot, clear_flag, set_flag
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.flags import REASON_CHARACTERS
from broker_project.lib.redis.keys import KeySpec
from broker_project.ops.clock.schedules import sync_schedules

FLAGS: dict[str, tuple[KeySpec, Any, Any]] = {
    "maintenance": (
        k.FLAG_MAINTENANCE,
        gettext_lazy("Maintenance"),
        gettext_lazy("Hands out no tasks (503) and lets the pollers stand still; work under way goes on."),
    ),
    "debug": (
        k.FLAG_DEBUG,
        gettext_lazy("Debug logging"),
        gettext_lazy("All processes log everything, within seconds."),
    ),
}
SETTING_TITLES = {
    dynamic_config.CLAUDE_TIMEOUT.title: gettext_lazy(
        "Seconds an agent may be silent before its task is lost"
    ),
    dynamic_config.LONG_POLL_SECONDS.title: gettext_lazy(
        "Seconds request-task waits if the agent names no time"
    ),
    dynamic_config.REVIEW_DELAY_MINUTES.title: gettext_lazy(
        "Minutes an issue rests before its review is offered"
    ),
    dynamic_config.POLL_INTERVAL_SECONDS.title: gettext_lazy(
        "Seconds between two fetches of the open issues"
    ),
}


def flag_rows(found: Snapshot) -> list[dict[str, Any]]:
    flags = {"maintenance": found.maintenance, "debug": found.debug}
    return [
        {"name": name, "title": title, "purpose": purpose, "flag": flags[name]}
        for name, (_spec, title, purpose) in FLAGS.items()
    ]


def setting_rows(found: Snapshot) -> list[dict[str, Any]]:
    return [
        {
            "setting": setting,
            "title": SETTING_TITLES[title],
            "value": dynamic_config.value_of(setting, found),
            "default": setting.default(settings.BROKER),
            "is_stored": title in found.values,
            "problem": found.problems.get(title, ""),
        }
        for title, setting in dynamic_config.SETTINGS.items()
    ]


@dataclass(frozen=True)
class Change:
    """One thing to do, known in full before it is done."""

    key: str
    sentence: str  # for the person who does it
    record: str  # for the history, in English
    fields: dict[str, str]  # what the confirmation repeats
    apply: Callable[[], object]


def parse_change(form: Mapping[str, Any]) -> Change:
    """Raises ValueError with a sentence on anything that is no change."""
    what, to = str(form.get("what", "")), str(form.get("to", ""))
    if what in FLAGS and to in {"on", "off"}:
        return flag_change(what, to == "on", str(form.get("reason", "")))
    if what in dynamic_config.SETTINGS and to in {"value", "default"}:
        return setting_change(dynamic_config.SETTINGS[what], to, str(form.get("value", "")))
    raise ValueError(_("There is no such flag or setting."))


def flag_change(name: str, on: bool, reason: str) -> Change:
    spec, title, _purpose = FLAGS[name]
    key = keyspace().key(spec)
    # The reason is read by agents and people alike: no secret, no control character.
    reason = " ".join(redact(reason, REASON_CHARACTERS).split())
    if not on:
        fields = {"what": name, "to": "off"}
        sentence = _("%(title)s is switched off.") % {"title": title}
        return Change(key, sentence, "off", fields, lambda: clear_flag(spec))
    fields = {"what": name, "to": "on", "reason": reason}
    sentence = _("%(title)s is switched on.") % {"title": title}
    return Change(key, sentence, f"on: {reason}" if reason else "on", fields, lambda: set_flag(spec, reason))


def setting_change(setting: Setting, to: str, text: str) -> Change:
    key = dynamic_config.setting_key(setting)
    if to == "default":
        default = setting.default(settings.BROKER)
        sentence = _("%(name)s is back at its default, %(value)d.") % {
            "name": setting.title,
            "value": default,
        }
        fields = {"what": setting.title, "to": "default"}
        return Change(key, sentence, f"default ({default})", fields, lambda: clear_and_follow(setting))
    try:
        value = setting.parse(text)
    except ValueError:
        limits = {"name": setting.title, "low": setting.low, "high": setting.high}
        raise ValueError(_("%(name)s must be a whole number from %(low)d to %(high)d.") % limits) from None
    sentence = _("%(name)s is set to %(value)d.") % {"name": setting.title, "value": value}
    fields = {"what": setting.title, "to": "value", "value": str(value)}
    return Change(key, sentence, f"set to {value}", fields, lambda: store_and_follow(setting, str(value)))


def store_and_follow(setting: Setting, text: str) -> None:
    dynamic_config.store_setting(setting, text)
    follow(setting)


def clear_and_follow(setting: Setting) -> None:
    dynamic_config.clear_setting(setting)
    follow(setting)


def follow(setting: Setting) -> None:
    """A poller's interval is a row of the clock, too."""
    if setting is dynamic_config.POLL_INTERVAL_SECONDS:
        sync_schedules()
