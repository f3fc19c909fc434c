"""The web part: uvicorn on the socket that the supervisor opened and hands down as a file descriptor."""

from __future__ import annotations

import os
import socket
import sys

import uvicorn

DRAIN_SECONDS = 3  # a waiting agent is answered at once; this is for a slow page


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        "broker_project.asgi:application",
        log_config=None,  # Django's own: structured, and with the secrets taken out
        access_log=False,
        server_header=False,
        proxy_headers=False,  # which proxies are believed is our own setting
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
