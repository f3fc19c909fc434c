"""Files that appear whole or not at all, readable by their owner alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A stream that becomes the file ``path`` when the body is done. An error in the body leaves nothing behind.

    Without ``replace`` a file that exists by then stays: two processes that write at once both read the winner's.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            os.replace(draft, path)
        else:
            with suppress(FileExistsError):
                os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str, *, replace: bool = True) -> None:
    with whole_file(path, replace=replace) as stream:
        stream.write(text.encode())
