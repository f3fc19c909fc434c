from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.deprecation import MiddlewareMixin

# Nothing inline: no script, no style element, no style attribute. What a page needs beyond this it says itself.
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "font-src": "'self'",
    "connect-src": "'self'",
    "manifest-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}


def policy_text(**exceptions: str) -> str:
    """The policy as a header, with other sources for some directives: ``policy_text(img_src="'self' data:")``."""
    directives = POLICY | {name.replace("_", "-"): sources for name, sources in exceptions.items()}
    return "; ".join(f"{name} {sources}" for name, sources in directives.items())


STRICT = policy_text()
# Swagger's own style sheet has its icons inside it. Everything else of it keeps to the rules.
API_DOCS = policy_text(img_src="'self' data:")
API_DOCS_PATH = "/api/v1/docs"


class ContentSecurityPolicy(MiddlewareMixin):
    """Nothing from a foreign host, nothing inline, on every answer."""

    get_response: Callable[[HttpRequest], HttpResponse]

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        policy = API_DOCS if request.path == API_DOCS_PATH else STRICT
        response.headers.setdefault("Content-Security-Policy", policy)
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
