"""The first page of text: where everything is, how to log in, and one line to try."""

from __future__ import annotations

import socket

from broker_project.lib.config.loader import Config

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised here, not bound


def reachable_host(listener: socket.socket) -> str:
    """An address under which this machine reaches its own listener."""
    host = str(listener.getsockname()[0])
    return ANYWHERE.get(host, host)


def url_of(listener: socket.socket) -> str:
    host = reachable_host(listener)
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def banner(config: Config, url: str, sandbox_url: str, log_in: str) -> str:
    rows = [
        ("Broker", f"{url}/"),
        ("Status", f"{url}/status/"),
        ("Admin", f"{url}/admin/"),
        ("Log-in", log_in),
        ("Agent API", f"{url}/api/v1/docs"),
    ]
    if config.sandbox:
        rows.append(("Sandbox", f"{sandbox_url}/   (stand-ins for every system without credentials)"))
    lines = ["", *(f"{name:<10} {text}" for name, text in rows), ""]
    body = '\'{"agent_id": "agent-1", "timeout": 10}\''
    header = ""
    if config.agent_auth == "token":
        lines.append("Make a token for an agent:  .venv/bin/python manage.py create_agent agent-1")
        header = '-H "Authorization: Bearer $TOKEN" '
    lines += [
        "Ask for a task:",
        f"  curl -s -X POST {url}/api/v1/request-task {header}-H 'Content-Type: application/json' -d {body}",
        "",
        "Ctrl-C ends everything.",
    ]
    return "\n".join(lines)
