"""Logging in: limits on attempts, with the same answer whether or not the name exists."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from broker_project.lib.config.access import Rate
from broker_project.lib.rate_limits import TooManyRequests, address_of, limits

View = Callable[..., HttpResponseBase]


def client_address(request: HttpRequest) -> str | None:
    """The address that failures are counted by, beside the name; for IPv6 that of the network."""
    address = address_of(request)
    return address.key.partition("/")[0] if address.text else None


def locked_out(request: HttpRequest, *ignored: Any) -> HttpResponse:
    """The page after too many failures. It says nothing about the name."""
    return try_later(request, settings.BROKER.access.login_lock_minutes * 60)


def try_later(request: HttpRequest, seconds: int) -> HttpResponse:
    context = {"minutes": max(1, round(seconds / 60))}
    response = render(request, "account/try_later.html", context, status=429)
    response.headers["Retry-After"] = str(seconds)
    response.headers["Cache-Control"] = "no-store"
    return response


def limited(view: View) -> View:
    """Limit the forms that one address may send in a minute, whatever the names in them."""

    @wraps(view)
    def counted(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "POST":
            try:
                limits().count(Rate.LOGIN, address_of(request))
            except TooManyRequests as error:
                return try_later(request, error.retry_after_seconds)
        return view(request, *args, **kwargs)

    return counted
