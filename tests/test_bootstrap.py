"""`tools/bootstrap.py`: what it does twice, and the sentence for each thing that can go wrong."""

from __future__ import annotations

import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.redis.embedded_server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bootstrap"), pytest.mark.process]


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    """A package index that has nothing."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()


class Folder:
    """A copy of the project's first steps in a folder with a difficult name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "tools").mkdir(parents=True)
        shutil.copy(BASE_DIR / "tools" / "bootstrap.py", path / "tools")
        shutil.copy(BASE_DIR / "Makefile", path)
        self.require("")

    def require(self, text: str) -> None:
        (self.path / "requirements.txt").write_text(text)

    def bootstrap(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        nowhere = f"http://127.0.0.1:{free_port()}/simple"
        env = {**kept, "PIP_INDEX_URL": nowhere, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull, **environ}
        return subprocess.run(
            [sys.executable, str(self.path / "tools" / "bootstrap.py"), *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    found = Folder(tmp_path_factory.mktemp("clone") / "ブローカー with späces")
    done = found.bootstrap()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "making the virtual environment" in done.stdout
    return found


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("[setup] ")
    return line.removeprefix("[setup] ")


def test_the_second_time_nothing_is_done_and_no_network_needed(folder: Folder) -> None:
    folder.require("")
    folder.bootstrap()
    again = folder.bootstrap()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_changed_requirements_are_installed_again(folder: Folder) -> None:
    folder.require("# nothing, but other than before\n")
    assert "installing 0 pinned packages" in folder.bootstrap().stdout
    assert folder.bootstrap().stdout == ""


def test_without_network_one_sentence(folder: Folder) -> None:
    folder.require(f"broker-does-not-exist==1.0 --hash=sha256:{'0' * 64}\n")
    said = sentence(folder.bootstrap())
    assert said.startswith("the package index could not be reached or lacks a pinned package")
    # What failed is tried again: no stamp was left.
    assert folder.bootstrap().returncode == 1


def test_a_package_that_the_index_lacks(folder: Folder, index: str) -> None:
    folder.require(f"broker-does-not-exist==1.0 --hash=sha256:{'0' * 64}\n")
    said = sentence(folder.bootstrap(PIP_INDEX_URL=index))
    assert "broker-does-not-exist==1.0" in said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that says when it is installed, as a file beside which no index is needed."""
    path = tmp_path_factory.mktemp("wheels") / "broker_sample-1.0-py3-none-any.whl"
    info = "broker_sample-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("broker_sample.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: broker-sample\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def has_sample(folder: Folder) -> bool:
    python = folder.path / ".venv" / "bin" / "python"
    return subprocess.run([python, "-c", "import broker_sample"], capture_output=True).returncode == 0


def test_only_the_pinned_file_is_installed(folder: Folder, wheel: Path, index: str) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    where = {"PIP_FIND_LINKS": str(wheel.parent), "PIP_INDEX_URL": index}
    folder.require(f"broker-sample==1.0 --hash=sha256:{'a' * 64}\n")
    said = sentence(folder.bootstrap(**where))
    assert said.startswith("broker-sample==1.0 is not the file that was pinned, and nothing was installed")
    assert str(wheel.parent) not in said
    assert not has_sample(folder)
    folder.require("broker-sample==1.0\n")
    said = sentence(folder.bootstrap(**where))
    assert said.startswith("broker-sample==1.0 has no hash in the requirements, and nothing was installed")
    assert not has_sample(folder)
    folder.require(f"broker-sample==1.0 --hash=sha256:{found}\n")
    done = folder.bootstrap(**where)
    assert done.returncode == 0, done.stderr
    assert has_sample(folder)


def test_a_broken_environment_is_made_anew(folder: Folder) -> None:
    folder.require("")
    python = folder.path / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    done = folder.bootstrap()
    assert done.returncode == 0, done.stderr
    assert python.exists()


def test_a_place_where_no_environment_can_be_made(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "clone")
    (folder.path / ".venv").write_text("a file in the way")
    said = sentence(folder.bootstrap())
    assert ".venv" in said


def test_requirements_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "clone")
    (folder.path / "requirements.txt").unlink()
    assert "requirements.txt" in sentence(folder.bootstrap())


def test_help_lists_every_command(tmp_path: Path) -> None:
    listed = subprocess.run(["make", "-C", str(BASE_DIR), "help"], capture_output=True, text=True, check=True)
    for name in ("run", "test", "check", "format", "audit", "lock", "messages", "clean", "help"):
        assert f"make {name} " in listed.stdout
