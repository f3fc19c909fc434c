"""The backup file: lines of JSON. A heading, a line a key, and a last line with their number and a checksum.

Values are the server's own serialisation (DUMP), times are moments, not durations: what has expired by
the time of the restore stays away.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

FORMAT = "broker-keys"
VERSION = 1


class BadBackup(Exception):
    """A file that is no backup, or a damaged one. The text is a sentence."""


@dataclass(frozen=True)
class StoredKey:
    key: bytes
    dump: bytes
    expires_at_ms: int | None


@dataclass(frozen=True)
class Heading:
    namespaces: list[str]
    made_at: str
    server: str


class BackupWriter:
    """Writes beside the file and takes its place only when everything is there: no half backup ever has
    the name.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.digest = hashlib.sha256()
        self.keys = 0

    def heading(self, heading: Heading) -> None:
        self._line({"format": FORMAT, "version": VERSION, **vars(heading)})

    def add(self, stored: StoredKey) -> None:
        line = {"key": encode(stored.key), "expires_at_ms": stored.expires_at_ms, "dump": encode(stored.dump)}
        self._line(line)
        self.keys += 1

    def finish(self) -> None:
        self._line({"keys": self.keys, "sha256": self.digest.hexdigest()})

    def _line(self, document: dict[str, Any]) -> None:
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        self.digest.update(line)
        self.stream.write(line)


def encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def check_target(path: Path) -> None:
    """Refuse to replace what is not an earlier backup (or empty)."""
    if not path.exists():
        return
    if not path.is_file():
        raise BadBackup(f"{path} is not a file.")
    if path.stat().st_size == 0:
        return
    try:
        read_heading(path)
    except BadBackup:
        raise BadBackup(f"{path} exists and is not a backup; choose another name.") from None


@contextmanager
def new_backup(path: Path) -> Iterator[BackupWriter]:
    """A writer for ``path``, readable by its owner alone. An error in the body leaves an earlier file as
    it was.
    """
    check_target(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BadBackup(f"{path} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            writer = BackupWriter(stream)
            yield writer
            writer.finish()
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise BadBackup(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        draft.unlink(missing_ok=True)


def read_heading(path: Path) -> Heading:
    """Raises :class:`BadBackup` unless the file begins like one of ours, in a version that we know."""
    try:
        with path.open("rb") as stream:
            first = stream.readline(100_000)
    except OSError as error:
        raise BadBackup(f"{path} cannot be read: {error.strerror}.") from None
    document = parse_line(path, 1, first)
    if document.get("format") != FORMAT:
        raise BadBackup(f"{path} is not a backup made by keys backup.")
    if document.get("version") != VERSION:
        raise BadBackup(f"{path} has version {document.get('version')!r}; this program reads {VERSION}.")
    try:
        return Heading(list(document["namespaces"]), str(document["made_at"]), str(document["server"]))
    except (KeyError, TypeError):
        raise BadBackup(f"{path} has an incomplete heading.") from None


def read_keys(path: Path) -> Iterator[StoredKey]:
    """Every key of a file, one at a time; raises :class:`BadBackup` where it is damaged, at the end at
    the latest.

    Nothing may be trusted before the end: go through it once to check, then again to use it.
    """
    digest = hashlib.sha256()
    count = 0
    with path.open("rb") as stream:
        digest.update(stream.readline())
        for number, line in enumerate(stream, start=2):
            document = parse_line(path, number, line)
            if "sha256" in document:
                if document != {"keys": count, "sha256": digest.hexdigest()} or stream.read(1):
                    raise BadBackup(f"{path} is damaged: its checksum does not fit.")
                return
            digest.update(line)
            yield stored_key(path, number, document)
            count += 1
    raise BadBackup(f"{path} is cut off: its last line is missing.")


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadBackup(f"{path} is not a backup, or damaged in line {number}.")
    return document


def stored_key(path: Path, number: int, document: dict[str, Any]) -> StoredKey:
    try:
        expires_at_ms = document["expires_at_ms"]
        if expires_at_ms is not None and (type(expires_at_ms) is not int or expires_at_ms <= 0):
            raise ValueError(expires_at_ms)
        key = base64.b64decode(document["key"], validate=True)
        return StoredKey(key, base64.b64decode(document["dump"], validate=True), expires_at_ms)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise BadBackup(f"{path} is damaged in line {number}.") from None
