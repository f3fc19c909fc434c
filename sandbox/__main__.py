"""`python -m sandbox`: serve the stand-ins until told to stop."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from sandbox.app import create_app
from sandbox.server import bind, serve


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sandbox", description="Local stand-ins for the systems that the broker talks to."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8001, help="0 takes any free port (default: %(default)s)")
    parser.add_argument("--state", type=Path, help="file that keeps the state across restarts")
    parser.add_argument(
        "--base-url", help="address under which others reach the sandbox, for links in answers"
    )
    parser.add_argument("--broker-url", help="where webhooks go, e.g. http://127.0.0.1:8000")
    parser.add_argument(
        "--webhook-secret",
        default=os.environ.get("SANDBOX_WEBHOOK_SECRET"),
        help="signs webhooks (default: the environment's SANDBOX_WEBHOOK_SECRET, which no `ps` shows)",
    )
    parser.add_argument("--lively", action="store_true", help="people open issues and comment by themselves")
    parser.add_argument(
        "--exit-with-stdin",
        action="store_true",
        help="stop when standard input ends, which it does when the process that holds it dies",
    )
    parser.add_argument("--empty", action="store_true", help="begin without the seeded data")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error("--port must be between 0 and 65535")
    for name in ("base_url", "broker_url"):
        url = getattr(options, name)
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
            parser.error(f"--{name.replace('_', '-')} must be an http address")
    return options


def _stop_at_end_of_input() -> None:
    # Not through sys.stdin: a thread that waits there holds its lock, which aborts the interpreter at exit.
    while os.read(0, 1024):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    options = parse()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        listener = bind(options.host, options.port)
    except OSError as error:
        print(
            f"The sandbox cannot listen on {options.host}:{options.port}: {error.strerror or error}.",
            file=sys.stderr,
        )
        return 1
    host = f"[{options.host}]" if ":" in options.host else options.host
    base_url = options.base_url or f"http://{host}:{listener.getsockname()[1]}"
    app = create_app(
        state_path=options.state,
        base_url=base_url,
        broker_url=options.broker_url,
        webhook_secret=options.webhook_secret,
        lively=options.lively,
        seed=not options.empty,
    )
    if options.exit_with_stdin:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    serve(app, listener, ready_line=f"Sandbox ready at {base_url}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
