from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
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


FOR_PROGRAMS = ("/api/", "/request-task", "/tasks/fix", "/webhooks/")
PROBLEMS = {
    400: (
        "bad_request",
        "This request cannot be understood: its Host header, its address or its body is broken.",
    ),
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not take this method; see the header Allow."),
}


class ProblemsAreJson(MiddlewareMixin):
    """A wrong host, address or method under the API is told like every other error there: ``{error, message}``."""

    get_response: Callable[[HttpRequest], HttpResponse]

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        known = PROBLEMS.get(response.status_code)
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        if known is None or is_json or not request.path.startswith(FOR_PROGRAMS):
            return response
        code, message = known
        told = JsonResponse({"error": code, "message": message}, status=response.status_code)
        if "Allow" in response.headers:
            told.headers["Allow"] = response.headers["Allow"]
        return told
