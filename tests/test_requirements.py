"""The pinned requirements: complete for every Python and machine that is supported, each file with its hash."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.redis.embedded_server import free_port

FILES = ("requirements.txt", "requirements-dev.txt")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) \\$", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    text = (BASE_DIR / name).read_text()
    return {canonicalize_name(found): version for found, version in PIN.findall(text)}


@pytest.mark.parametrize("name", FILES)
def test_every_line_is_a_pin_with_hashes_and_no_address(name: str) -> None:
    text = (BASE_DIR / name).read_text()
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    assert len(blocks) == len(pins(name)) > 30
    for block in blocks:
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}(?= \\\n|\n)", block)
        assert hashes, block
    assert "://" not in text
    assert not re.search(r"^--(?!hash)", text, re.MULTILINE)


def test_both_files_pin_the_same_versions() -> None:
    runtime, development = (pins(name) for name in FILES)
    both = runtime.keys() & development.keys()
    assert both
    assert {name: runtime[name] for name in both} == {name: development[name] for name in both}


def supported() -> Iterator[dict[str, str]]:
    for version in ("3.11.0", "3.11.14", "3.12.0", "3.13.0", "3.14.0"):
        for system, platform, machine in (
            ("Linux", "linux", "x86_64"),
            ("Linux", "linux", "aarch64"),
            ("Darwin", "darwin", "arm64"),
        ):
            yield {
                "python_full_version": version,
                "python_version": ".".join(version.split(".")[:2]),
                "implementation_version": version,
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
                "os_name": "posix",
                "platform_system": system,
                "sys_platform": platform,
                "platform_machine": machine,
                "platform_release": "",
                "platform_version": "",
            }


@pytest.mark.parametrize("name", FILES)
def test_what_another_python_needs_is_pinned_too(name: str) -> None:
    """With hashes pip installs nothing that is not in the file; the file was compiled on one Python."""
    pinned = pins(name)
    lacking = set()
    for package in pinned:
        for text in distribution(package).requires or []:
            wanted = Requirement(text)
            if canonicalize_name(wanted.name) in pinned:
                continue
            for environment in supported():
                if wanted.marker is None or wanted.marker.evaluate({**environment, "extra": ""}):
                    lacking.add(f"{package} needs {text}")
    assert lacking == set()


@contextmanager
def advisory_service(weak: str) -> Iterator[str]:
    """An advisory service that knows of one weakness, in the package of that name."""

    class Service(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]
            fixed = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}
            weakness = {
                "id": "PYSEC-2000-1",
                "summary": "x",
                "affected": [{"package": asked, "ranges": [fixed]}],
            }
            body = json.dumps({"vulns": [weakness]} if asked["name"] == weak else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def audit(url: str) -> subprocess.CompletedProcess[str]:
    options = ["--vulnerability-service", "osv", "--osv-url", url]
    return subprocess.run(
        [sys.executable, "tools/audit.py", *options],
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.process
@pytest.mark.slow
def test_an_audit_that_cannot_be_done_says_so_and_is_no_pass() -> None:
    done = audit(f"http://127.0.0.1:{free_port()}/")
    assert done.returncode == 2, done.stdout + done.stderr
    (said,) = done.stderr.strip().splitlines()
    assert said.startswith("[audit] NOT DONE: the advisory service gave no answer")
    assert done.stdout == ""


@pytest.mark.process
@pytest.mark.slow
def test_an_audit_asks_about_every_pin_and_names_what_is_weak() -> None:
    every = len({*pins(FILES[0]), *pins(FILES[1])})
    with advisory_service("none of them") as url:
        done = audit(url)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{every} packages asked about, 0 with a known weakness" in done.stdout
    with advisory_service("django") as url:
        done = audit(url)
        assert done.returncode == 1, done.stdout + done.stderr
        assert re.search(r"django \S+: PYSEC-2000-1, mended in 99\.1\n", done.stdout)
        assert "1 with a known weakness" in done.stdout
