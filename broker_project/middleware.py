from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        # Swagger and SVG charts carry style attributes; no script can come in this way.
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


class ContentSecurityPolicy(MiddlewareMixin):
    """Nothing from a foreign host, no inline script, on every answer."""

    get_response: Callable[[HttpRequest], HttpResponse]

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response
