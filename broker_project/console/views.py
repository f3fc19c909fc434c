from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import resolve
from django.views.decorators.csrf import csrf_exempt


def front_door(request: HttpRequest) -> HttpResponse:
    """Those who are logged in go to the status pages, the others to the log-in."""
    return redirect("/status/" if request.user.is_authenticated else "/admin/login/?next=/status/")


def alias(target: str) -> Callable[[HttpRequest], HttpResponse]:
    """The same call under the seed's own address. Agents authenticate by token, so there is no CSRF to check."""

    @csrf_exempt
    def view(request: HttpRequest) -> HttpResponse:
        match = resolve(target)
        response: HttpResponse = match.func(request, *match.args, **match.kwargs)
        return response

    return view
