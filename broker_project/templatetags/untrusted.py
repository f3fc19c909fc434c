"""``{{ text|visible }}``: what somebody else wrote, with its hidden characters shown. Escaped like any other text."""

from __future__ import annotations

from django import template

from broker_project.lib import hidden_text

register = template.Library()


@register.filter
def visible(text: object) -> str:
    return hidden_text.made_visible(str(text))


@register.filter
def hidden_count(text: object) -> int:
    return hidden_text.hidden_count(str(text))
