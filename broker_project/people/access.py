"""Who may see the status pages: staff, and members of the groups for viewers, operators and admins."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

STATUS_GROUPS = ("viewer", "operator", "admin")

View = Callable[..., HttpResponseBase]


def may_see_status(user: User | AnonymousUser) -> bool:
    if not user.is_authenticated or not user.is_active:
        return False
    if user.is_staff:
        return True
    return bool(user.groups.filter(name__in=STATUS_GROUPS).exists())


def status_page(view: View) -> View:
    """Anonymous visitors are sent to the log-in page; people without permission get 403."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        if not may_see_status(request.user):
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return guarded
