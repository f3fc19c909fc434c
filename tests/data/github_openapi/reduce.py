"""Write reduced.json: the responses of the operations in OPERATIONS, and every schema they need."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REPO = "/repos/{owner}/{repo}"
ISSUE = f"{REPO}/issues/{{issue_number}}"
PULL = f"{REPO}/pulls/{{pull_number}}"
OPERATIONS = {
    REPO: ["get"],
    f"{REPO}/issues": ["get", "post"],
    f"{REPO}/issues/comments": ["get"],
    f"{REPO}/issues/comments/{{comment_id}}": ["get", "patch", "delete"],
    ISSUE: ["get", "patch"],
    f"{ISSUE}/comments": ["get", "post"],
    f"{ISSUE}/labels": ["get", "post", "put", "delete"],
    f"{ISSUE}/labels/{{name}}": ["delete"],
    f"{REPO}/labels": ["get", "post"],
    f"{REPO}/labels/{{name}}": ["get", "patch", "delete"],
    f"{REPO}/pulls": ["get", "post"],
    f"{REPO}/pulls/comments": ["get"],
    f"{REPO}/pulls/comments/{{comment_id}}": ["get", "patch", "delete"],
    PULL: ["get", "patch"],
    f"{PULL}/merge": ["put"],
    f"{PULL}/comments": ["get", "post"],
    f"{PULL}/comments/{{comment_id}}/replies": ["post"],
    f"{PULL}/reviews": ["get", "post"],
    f"{PULL}/commits": ["get"],
    f"{PULL}/files": ["get"],
    f"{REPO}/git/ref/{{ref}}": ["get"],
    f"{REPO}/git/matching-refs/{{ref}}": ["get"],
    f"{REPO}/git/refs": ["post"],
    f"{REPO}/git/refs/{{ref}}": ["patch", "delete"],
    f"{REPO}/branches": ["get"],
    f"{REPO}/branches/{{branch}}": ["get"],
    f"{REPO}/commits": ["get"],
    f"{REPO}/commits/{{ref}}": ["get"],
    f"{REPO}/compare/{{basehead}}": ["get"],
    f"{REPO}/collaborators/{{username}}/permission": ["get"],
    f"{REPO}/installation": ["get"],
    "/rate_limit": ["get"],
    "/user": ["get"],
    "/app/installations": ["get"],
    "/app/installations/{installation_id}/access_tokens": ["post"],
}
PROSE = {"description", "example", "examples", "externalDocs", "title", "summary", "deprecated"}


class Reducer:
    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self.components: dict[str, dict[str, Any]] = {}

    def run(self) -> dict[str, Any]:
        paths = {
            path: {
                method: {
                    status: self.response(response)
                    for status, response in self.description["paths"][path][method]["responses"].items()
                }
                for method in methods
            }
            for path, methods in OPERATIONS.items()
        }
        version = self.description["info"]["version"]
        openapi = self.description["openapi"]
        return {"openapi": openapi, "version": version, "paths": paths, "components": self.components}

    def response(self, response: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in response:
            return self.response(self.resolve(response["$ref"]))
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        return {"schema": self.clean(schema)} if schema else {}

    def resolve(self, reference: str) -> Any:
        _, _, kind, name = reference.split("/")
        return self.description["components"][kind][name]

    def clean(self, node: Any, *, names_properties: bool = False) -> Any:
        """The node without prose; keys of a `properties` object are names, not keywords, and all stay."""
        if isinstance(node, list):
            return [self.clean(item) for item in node]
        if not isinstance(node, dict):
            return node
        if isinstance(node.get("$ref"), str):
            self.keep(node["$ref"])
        return {
            key: self.clean(value, names_properties=key == "properties" and not names_properties)
            for key, value in node.items()
            if names_properties or not (key in PROSE or key.startswith("x-"))
        }

    def keep(self, reference: str) -> None:
        _, _, kind, name = reference.split("/")
        kept = self.components.setdefault(kind, {})
        if name not in kept:
            kept[name] = {}  # known before it is cleaned: schemas refer to themselves
            kept[name] = self.clean(self.resolve(reference))


if __name__ == "__main__":
    whole = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text = json.dumps(Reducer(whole).run(), separators=(",", ":"), sort_keys=True)
    (Path(__file__).parent / "reduced.json").write_text(text + "\n", encoding="utf-8")
