"""The container of every backup: a compressed tar whose first member lists the others with sizes and checksums.

Nothing in it is trusted: names are of a short list, members are plain files, and all of them are read and checked
before the caller sees any.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from django.conf import settings

from broker_project.lib.files import whole_file

FORMAT = "broker-backup"
VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
DATABASE, SECRET_KEY, ADMIN_PASSWORD, KEYS, STORED = "database", "secret_key", "admin_password", "keys", "gcs"
# No part of a name begins with a dot: no parent folders, no hidden files.
STORED_NAME = re.compile(rf"{STORED}(?:/[^/\\\x00-\x1f.][^/\\\x00-\x1f]{{0,254}})+")
UNREADABLE = (tarfile.TarError, EOFError, zlib.error)


class BadBackup(Exception):
    """A file that is not a backup, or a damaged one, or one that does not belong here. The text is a sentence."""


@dataclass(frozen=True)
class Heading:
    """What a backup says about itself. ``key`` recognises the secret key and does not reveal it.

    A backup of keys alone has no database; the other fields are empty then.
    """

    made_at: str
    database: str = ""
    migrations: tuple[str, ...] = ()
    key: str = ""


@contextmanager
def work_folder() -> Iterator[Path]:
    """A private folder on the same disk as the data, so that there is room for a copy."""
    folder = Path(tempfile.mkdtemp(prefix=".backup-", dir=settings.BROKER.var))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_name(name: str) -> bool:
    return name in (DATABASE, SECRET_KEY, ADMIN_PASSWORD, KEYS) or STORED_NAME.fullmatch(name) is not None


def write_archive(path: Path, heading: Heading, files: Mapping[str, Path]) -> None:
    """Write a backup. An earlier one of the same name stays until the new one is complete."""
    listed = {name: {"size": file.stat().st_size, "sha256": digest(file)} for name, file in files.items()}
    manifest = {"format": FORMAT, "version": VERSION, **asdict(heading), "files": listed}
    text = json.dumps(manifest, indent=1, ensure_ascii=False).encode()
    try:
        with (
            whole_file(path) as stream,
            tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive,
        ):
            add(archive, MANIFEST, io.BytesIO(text), len(text))
            for name, file in files.items():
                with file.open("rb") as content:
                    add(archive, name, content, file.stat().st_size)
    except OSError as error:
        raise BadBackup(f"{path} cannot be written: {error.strerror}.") from None


def check_target(path: Path, *, with_database: bool) -> None:
    """Only an earlier backup of the same kind, or nothing, may be replaced."""
    if path.is_dir() and with_database:
        raise BadBackup(f"{path} is a folder; name a file.")
    if path.exists() and not path.is_file():
        raise BadBackup(f"{path} is not a file.")
    if path.exists() and path.stat().st_size > 0:
        try:
            is_same_kind = bool(read_heading(path).database) == with_database
        except BadBackup:
            is_same_kind = False
        if not is_same_kind:
            raise BadBackup(f"{path} exists and is not a backup; choose another name.")


def add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    archive.addfile(member, content)


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_heading(path: Path) -> Heading:
    """Raises :class:`BadBackup` unless the file begins like one of ours, in a version that we know."""
    with opened(path) as archive:
        return parse_manifest(path, archive)[0]


def unpack(path: Path, folder: Path) -> tuple[Heading, dict[str, Path]]:
    """Every member as a file in ``folder``, under a name we choose. Raises unless the whole archive is valid."""
    found: dict[str, Path] = {}
    with opened(path) as archive:
        heading, listed = parse_manifest(path, archive)
        try:
            while (member := archive.next()) is not None:
                if member.name not in listed or member.name in found:
                    raise BadBackup(f"{path} holds {member.name[:200]!r}, which is not in its own list.")
                found[member.name] = folder / f"member-{len(found)}"
                copy_member(path, archive, member, listed[member.name], found[member.name])
            # To the very end: gzip's checksum over everything, the list included, comes last.
            while archive.fileobj is not None and archive.fileobj.read(PIECE_BYTES):
                pass
        except (*UNREADABLE, OSError) as error:
            raise damaged(path, error) from None
    if lacking := sorted(listed.keys() - found.keys()):
        raise BadBackup(f"{path} is cut off: {lacking[0]} is missing.")
    return heading, found


def copy_member(
    path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, listed: Mapping[str, Any], target: Path
) -> None:
    source = archive.extractfile(member) if member.isreg() else None
    if source is None or member.size != listed["size"]:
        raise BadBackup(f"{path}: {member.name} is not the file that its list describes.")
    checksum = hashlib.sha256()
    with source, whole_file(target) as stream:
        while piece := source.read(PIECE_BYTES):
            checksum.update(piece)
            stream.write(piece)
    if checksum.hexdigest() != listed["sha256"]:
        raise BadBackup(f"{path} is damaged: the checksum of {member.name} does not fit.")


def opened(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, mode="r:gz")
    except FileNotFoundError:
        raise BadBackup(f"There is no file {path}.") from None
    except (*UNREADABLE, OSError) as error:
        if reason := getattr(error, "strerror", None):
            raise BadBackup(f"{path} cannot be read: {reason}.") from None
        raise not_ours(path) from None


def parse_manifest(path: Path, archive: tarfile.TarFile) -> tuple[Heading, dict[str, dict[str, Any]]]:
    document = read_manifest(path, archive)
    if document.get("format") != FORMAT:
        raise not_ours(path)
    if document.get("version") != VERSION:
        raise BadBackup(f"{path} has version {document.get('version')!r}; this program reads {VERSION}.")
    try:
        heading = Heading(
            str(document["made_at"]),
            str(document["database"]),
            tuple(str(name) for name in document["migrations"]),
            str(document["key"]),
        )
        files = {str(name): dict(entry) for name, entry in document["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadBackup(f"{path} has an incomplete list of contents.") from None
    for name, entry in files.items():
        if not is_name(name) or not {"size", "sha256"} <= entry.keys():
            raise BadBackup(f"{path} lists {name[:200]!r}, which no backup holds.")
    return heading, files


def read_manifest(path: Path, archive: tarfile.TarFile) -> dict[str, Any]:
    try:
        member = archive.next()
        if member is None or member.name != MANIFEST or member.size > MAX_MANIFEST_BYTES:
            raise not_ours(path)
        content = archive.extractfile(member) if member.isreg() else None
        document = json.loads(content.read()) if content is not None else None
    except (*UNREADABLE, OSError) as error:
        raise damaged(path, error) from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise not_ours(path)
    return document


def not_ours(path: Path) -> BadBackup:
    return BadBackup(f"{path} is not a backup made by this program.")


def damaged(path: Path, error: Exception) -> BadBackup:
    return BadBackup(f"{path} is damaged or cut off ({type(error).__name__}).")
