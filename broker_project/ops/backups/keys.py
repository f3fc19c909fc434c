"""Keys of Redis, written to a backup and restored from it: a line of JSON for each, with its value as from DUMP.

Expiry times are absolute: keys that have expired by the time of the restore stay away. Earlier versions wrote a
heading before the keys and a checksum after them, and ``keys backup`` wrote that as a file without a container. Such
files are read, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import redis
from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.locks import held_lock, new_owner
from broker_project.ops.backups.archive import (
    DATABASE,
    KEYS,
    BadBackup,
    Heading,
    check_target,
    unpack,
    work_folder,
    write_archive,
)
from broker_project.ops.redis_console.scanning import Walk, explain, name_of, owner_of, printable

T = TypeVar("T")

BATCH_KEYS = 100
LOCK_SECONDS = 60
FORMAT_BEFORE, VERSION_BEFORE = "broker-keys", 1

Progress = Callable[[int, int], None]  # done, total


def no_progress(done: int, total: int) -> None:
    return


@dataclass(frozen=True)
class StoredKey:
    key: bytes
    dump: bytes
    expires_at_ms: int | None

    def line(self) -> bytes:
        document = {"key": encode(self.key), "expires_at_ms": self.expires_at_ms, "dump": encode(self.dump)}
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


# Writing


def backup_keys(
    client: redis.Redis,
    path: Path,
    pattern: str | None = None,
    *,
    name: str = "manual",
    progress: Progress = no_progress,
) -> int:
    """Write every key that matches into a backup of its own; how many. Raises ``LockHeld`` and :class:`BadBackup`."""
    if not (path.is_file() and is_without_container(path)):
        check_target(path, with_database=False)
    with work_folder() as folder:
        count = write_keys(client, folder / KEYS, pattern, name=name, progress=progress)
        write_archive(path, Heading(timezone.now().isoformat(timespec="seconds")), {KEYS: folder / KEYS})
    return count


def write_keys(
    client: redis.Redis,
    path: Path,
    pattern: str | None = None,
    *,
    name: str,
    components: Collection[str] | None = None,
    progress: Progress = no_progress,
) -> int:
    """The part of a backup: keys that match, or those of some components alone. Raises ``LockHeld`` while another
    backup of the name runs.

    Keys are copied one by one, not as one snapshot.
    """
    lock = keyspace().key(k.LOCK_BACKUP, name=name)
    written = 0
    with (
        held_lock(redis_client(), lock, new_owner(f"backup:{os.getpid()}"), LOCK_SECONDS),
        path.open("wb") as stream,
    ):
        total = sum(len(batch) for batch in Walk(client, pattern))
        seen: set[bytes] = set()  # SCAN may bring a key twice
        for batch in Walk(client, pattern):
            fresh = [key for key in batch if key not in seen and is_wanted(explain(name_of(key)), components)]
            seen.update(fresh)
            for stored in dump_keys(client, fresh):
                stream.write(stored.line())
                written += 1
            progress(written, max(total, written))
        progress(written, written)
    return written


def is_wanted(spec: k.KeySpec | None, components: Collection[str] | None) -> bool:
    if components is not None:
        return spec is not None and spec.component in components
    return spec is not k.LOCK_BACKUP


def dump_keys(client: redis.Redis, keys: list[bytes]) -> Iterator[StoredKey]:
    for portion in batched(keys, BATCH_KEYS):
        moment = now_ms(client)
        pipeline = client.pipeline(transaction=False)
        for key in portion:
            pipeline.pttl(key)
            pipeline.dump(key)
        answers: list[Any] = pipeline.execute()
        for position, key in enumerate(portion):
            ttl, dump = answers[2 * position : 2 * position + 2]
            if dump is not None:
                yield StoredKey(key, dump, moment + ttl if ttl >= 0 else None)


def now_ms(client: redis.Redis) -> int:
    """The server's clock, which decides when keys expire."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


# Reading


def is_without_container(path: Path) -> bool:
    """Whether ``keys backup`` wrote the file before all backups had the same container."""
    try:
        with path.open("rb") as stream:
            return FORMAT_BEFORE.encode() in stream.readline(1000)
    except OSError as error:
        raise BadBackup(f"{path} cannot be read: {error.strerror}.") from None


def read_keys(part: Path, shown: Path | None = None) -> Iterator[StoredKey]:
    """Every key of a part, one at a time. Raises :class:`BadBackup` where it is damaged, at the end at the latest: go
    through it once to check, then again to use it. ``shown`` is what a message calls the file.
    """
    path = shown or part
    digest, count, has_heading = hashlib.sha256(), 0, False
    with part.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            document = parse_line(path, number, line)
            if number == 1 and document.get("format") == FORMAT_BEFORE:
                check_version(path, document)
                has_heading = True
            elif has_heading and "sha256" in document:
                if document != {"keys": count, "sha256": digest.hexdigest()} or stream.read(1):
                    raise BadBackup(f"{path} is damaged: its checksum does not fit.")
                return
            else:
                yield stored_key(path, number, document)
                count += 1
            digest.update(line)
    if has_heading:
        raise BadBackup(f"{path} is cut off: its last line is missing.")


def parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadBackup(f"{path} is not a backup, or damaged in line {number}.")
    return document


def check_version(path: Path, document: dict[str, Any]) -> None:
    if document.get("version") != VERSION_BEFORE:
        raise BadBackup(
            f"{path} has version {document.get('version')!r}; this program reads {VERSION_BEFORE}."
        )


def stored_key(path: Path, number: int, document: dict[str, Any]) -> StoredKey:
    try:
        expires_at_ms = document["expires_at_ms"]
        if expires_at_ms is not None and (type(expires_at_ms) is not int or expires_at_ms <= 0):
            raise ValueError(expires_at_ms)
        key = base64.b64decode(document["key"], validate=True)
        return StoredKey(key, base64.b64decode(document["dump"], validate=True), expires_at_ms)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise BadBackup(f"{path} is damaged in line {number}.") from None


# Restoring


@dataclass
class RestoreReport:
    restored: int = 0
    expired: int = 0
    left_alone: int = 0  # made by somebody else between the check and the write


def restore_keys(
    client: redis.Redis, path: Path, *, replace: bool = False, progress: Progress = no_progress
) -> RestoreReport:
    """Bring back what :func:`backup_keys` wrote. Nothing is written unless the whole file is good, every key in it is
    ours, and none of them exists (or ``replace``). Raises :class:`BadBackup`."""
    if is_without_container(path):
        return put_keys(client, path, path, replace=replace, progress=progress)
    with work_folder() as folder:
        _, files = unpack(path, folder)
        if DATABASE in files:
            raise BadBackup(f"{path} is a backup of everything, for `manage.py restore`.")
        if KEYS not in files:
            raise BadBackup(f"{path} holds no keys.")
        return put_keys(client, files[KEYS], path, replace=replace, progress=progress)


def put_keys(
    client: redis.Redis,
    part: Path,
    shown: Path,
    *,
    replace: bool = False,
    progress: Progress = no_progress,
) -> RestoreReport:
    total = check_keys(client, part, shown, replace)
    report = RestoreReport()
    done = 0
    for portion in batched(read_keys(part, shown), BATCH_KEYS):
        restore_portion(client, portion, replace, report)
        done += len(portion)
        progress(done, total)
    return report


def check_keys(client: redis.Redis, part: Path, shown: Path, replace: bool) -> int:
    total = present = 0
    example = ""
    for portion in batched(read_keys(part, shown), BATCH_KEYS):
        for stored in portion:
            if owner_of(name_of(stored.key)) is None:
                name = printable(name_of(stored.key))
                raise BadBackup(f"{shown} holds {name}, which is not a key of this installation.")
        if not replace:
            pipeline = client.pipeline(transaction=False)
            for stored in portion:
                pipeline.exists(stored.key)
            answers: list[Any] = pipeline.execute()
            for stored, answer in zip(portion, answers, strict=True):
                present += answer
                example = example or (printable(name_of(stored.key)) if answer else "")
        total += len(portion)
    if present:
        raise BadBackup(
            f"{present} of {total} keys exist, for instance {example}; --replace overwrites them."
        )
    return total


def restore_portion(
    client: redis.Redis, portion: list[StoredKey], replace: bool, report: RestoreReport
) -> None:
    moment = now_ms(client)
    pipeline = client.pipeline(transaction=False)
    living = [stored for stored in portion if stored.expires_at_ms is None or stored.expires_at_ms > moment]
    report.expired += len(portion) - len(living)
    for stored in living:
        ttl = 0 if stored.expires_at_ms is None else stored.expires_at_ms - moment
        pipeline.restore(stored.key, ttl, stored.dump, replace=replace)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for stored, answer in zip(living, answers, strict=True):
        if isinstance(answer, redis.exceptions.ResponseError) and "BUSYKEY" in str(answer):
            report.left_alone += 1
        elif isinstance(answer, Exception):
            name = printable(name_of(stored.key))
            raise BadBackup(f"{name} was refused by the server: {answer}.") from answer
        else:
            report.restored += 1


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    found = iter(items)
    while batch := list(islice(found, size)):
        yield batch
