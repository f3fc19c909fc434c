"""Copy our keys into a file (DUMP), and back (RESTORE)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis
from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.locks import held_lock, new_owner
from broker_project.ops.redis_console.backup_file import (
    BadBackup,
    Heading,
    StoredKey,
    new_backup,
    read_heading,
    read_keys,
)
from broker_project.ops.redis_console.scanning import (
    Walk,
    all_keyspaces,
    explain,
    name_of,
    owner_of,
    printable,
)

T = TypeVar("T")

BATCH_KEYS = 100
LOCK_SECONDS = 60

Progress = Callable[[int, int], None]  # done, total


def no_progress(done: int, total: int) -> None:
    return


def write_backup(
    client: redis.Redis,
    path: Path,
    pattern: str | None = None,
    *,
    name: str = "manual",
    components: Collection[str] | None = None,
    progress: Progress = no_progress,
) -> int:
    """Write every key that matches, or those of some components alone; how many.

    Raises ``LockHeld`` while another backup of the name runs.

    Each key is copied as it is at its moment; keys that change meanwhile may be from before or after each
    other.
    """
    lock = keyspace().key(k.LOCK_BACKUP, name=name)
    with held_lock(redis_client(), lock, new_owner(f"backup:{os.getpid()}"), LOCK_SECONDS):
        total = sum(len(batch) for batch in Walk(client, pattern))
        seen: set[bytes] = set()  # SCAN may bring a key twice
        with new_backup(path) as writer:
            writer.heading(heading(client))
            for batch in Walk(client, pattern):
                fresh = [
                    key for key in batch if key not in seen and is_kept(explain(name_of(key)), components)
                ]
                seen.update(fresh)
                for stored in dump_keys(client, fresh):
                    writer.add(stored)
                progress(writer.keys, max(total, writer.keys))
            progress(writer.keys, writer.keys)
        return writer.keys


def is_kept(spec: k.KeySpec | None, components: Collection[str] | None) -> bool:
    if components is not None:
        return spec is not None and spec.component in components
    return spec is not k.LOCK_BACKUP


def heading(client: redis.Redis) -> Heading:
    info: Any = client.info("server")
    server = f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"
    namespaces = [names.names.namespace for names in all_keyspaces()]
    return Heading(namespaces, timezone.now().isoformat(timespec="seconds"), server)


def now_ms(client: redis.Redis) -> int:
    """The server's clock: the one that its times to live follow."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


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


@dataclass
class RestoreReport:
    restored: int = 0
    expired: int = 0
    left_alone: int = 0  # made by somebody else between the check and the write


def restore_backup(
    client: redis.Redis, path: Path, *, replace: bool = False, progress: Progress = no_progress
) -> RestoreReport:
    """Bring a backup back. Nothing is written unless the whole file is good, every key in it is ours, and
    none of them exists (or ``replace``). Raises :class:`BadBackup`."""
    read_heading(path)
    total = check_backup(client, path, replace)
    report = RestoreReport()
    done = 0
    for portion in batched(read_keys(path), BATCH_KEYS):
        restore_portion(client, portion, replace, report)
        done += len(portion)
        progress(done, total)
    return report


def check_backup(client: redis.Redis, path: Path, replace: bool) -> int:
    total = present = 0
    example = ""
    for portion in batched(read_keys(path), BATCH_KEYS):
        for stored in portion:
            if owner_of(name_of(stored.key)) is None:
                name = printable(name_of(stored.key))
                raise BadBackup(f"{path} holds {name}, which is not a key of this installation.")
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
            raise BadBackup(
                f"{printable(name_of(stored.key))} was refused by the server: {answer}."
            ) from answer
        else:
            report.restored += 1


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch
