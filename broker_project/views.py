from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect


def front_door(request: HttpRequest) -> HttpResponse:
    """Those who are logged in go to the status pages, the others to the log-in."""
    return redirect("/status/" if request.user.is_authenticated else "/admin/login/?next=/status/")
