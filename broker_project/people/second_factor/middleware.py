"""Whoever has a second factor, or must have one, reaches no page without it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin

from broker_project.people.second_factor import devices

# What a half logged-in person may call: to finish, to log out, to switch the language; and what needs no session.
FREE = frozenset(
    {"second-factor", "second-factor-check", "admin:logout", "set_language", "health", "readyz", "metrics"}
)
FREE_NAMESPACE = "agent-api"  # tokens, not sessions


class SecondFactorMiddleware(MiddlewareMixin):
    """Installed unless ``BROKER_ADMIN_2FA`` is off; after django-otp's own, which says who was verified."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        match = request.resolver_match
        if match is not None and (match.view_name in FREE or FREE_NAMESPACE in match.namespaces):
            return None
        user = request.user
        if not user.is_authenticated or user.is_verified():  # type: ignore[attr-defined]
            return None
        if devices.authenticator_of(user) is not None:
            page = "second-factor-check"
        elif devices.must_have_one(user):
            page = "second-factor"
        else:
            return None
        there = request.get_full_path() if request.method in ("GET", "HEAD") else "/"
        return HttpResponseRedirect(f"{reverse(page)}?{urlencode({'next': there})}")
