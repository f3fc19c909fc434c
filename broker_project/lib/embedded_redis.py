"""Where the embedded Redis listens. Starting and watching it is the supervisor's business."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def data_dir(var: Path) -> Path:
    return var / "redis"


def embedded_url(var: Path) -> str:
    return f"redis://127.0.0.1:{embedded_port(var)}/0"


def embedded_port(var: Path) -> int:
    """The loopback port of this installation's own Redis: chosen once, kept in ``var/redis/port``."""
    folder = data_dir(var)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "port"
    if not path.exists():
        write_port(var, free_port(), replace=False)
    return int(path.read_text())


def write_port(var: Path, port: int, *, replace: bool) -> None:
    path = data_dir(var) / "port"
    draft = path.with_name(f".port.{os.getpid()}.{secrets.token_hex(4)}")
    draft.write_text(str(port))
    try:
        if replace:
            os.replace(draft, path)
        else:
            os.link(draft, path)
    except FileExistsError:
        pass  # another process chose first; its choice is read back
    finally:
        draft.unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
