"""A small disk of its own that can be filled, and files that nobody may write to. Both need root.

The disk is an ext4 image, mounted for this process and its children alone: the mount ends with the last of
them, however they end. A tmpfs can be filled as well, but it lets whoever has a file open write to it for ever.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNS = 0x00020000
DISK_BYTES = 1 << 30  # the image is sparse: it costs what is written
SMALLEST_PIECE = 4096
COMMAND_SECONDS = 60


class NoDisk(Exception):
    """What this machine lacks, in words."""


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Until not one more block is free."""
        with self._ballast.open("ab") as file:
            piece = DISK_BYTES
            while piece >= SMALLEST_PIECE:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def relieve(self) -> None:
        self._ballast.unlink(missing_ok=True)


def forbid_writing(paths: Sequence[Path]) -> None:
    """Also to those who have the files open; root is not excepted. Raises :class:`NoDisk`."""
    _run("chattr", "+i", *map(str, paths))


def allow_writing(paths: Sequence[Path]) -> None:
    _run("chattr", "-i", *map(str, paths))


def check_writing_can_be_forbidden(folder: Path) -> None:
    """Raises :class:`NoDisk`."""
    probe = folder / "probe"
    with probe.open("wb", buffering=0) as file:
        forbid_writing([probe])
        try:
            file.write(b"x")
        except PermissionError:
            return
        finally:
            allow_writing([probe])
            probe.unlink()
    raise NoDisk("its file system lets open files be written although they are immutable")


@contextmanager
def small_disk(kept: Path) -> Iterator[Disk]:
    """What is on it at the end is copied to ``kept``. Raises :class:`NoDisk`."""
    if os.geteuid() != 0:
        raise NoDisk("only root may mount a small disk")
    _leave_mounts_to_others()
    with tempfile.TemporaryDirectory(prefix="broker-disk-") as name:
        image, folder = Path(name) / "image", Path(name) / "disk"
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
        # A PostgreSQL server of its own user must find its way to its folder.
        Path(name).chmod(0o755)
        folder.chmod(0o755)
        disk = Disk(folder)
        try:
            yield disk
        finally:
            disk.relieve()
            shutil.copytree(folder, kept, symlinks=True, ignore=_sockets_and_the_like)
            _run("umount", "--lazy", str(folder))


def _sockets_and_the_like(folder: str, names: list[str]) -> list[str]:
    paths = {name: Path(folder) / name for name in names}
    return [name for name, path in paths.items() if not (path.is_file() or path.is_dir())]


def _leave_mounts_to_others() -> None:
    """From now on what this process mounts is seen by it and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise NoDisk(f"no mounts of our own: {os.strerror(ctypes.get_errno())}")
    _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        raise NoDisk(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise NoDisk(f"{command[0]} refused: {done.stderr.strip()[-200:]}")
