"""Read a PDF in its own process: ``python -m feeds.reading.pdf_reader PATH CHARACTERS`` prints one JSON object.

A PDF of a few kilobytes can need gigabytes or hours to read. The process has limits for both. Callers use
:func:`read_pdf`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TIME_LIMIT_SECONDS = 40
CPU_LIMIT_SECONDS = 30
MEMORY_LIMIT_BYTES = 1536 * 2**20


class UnreadablePdf(Exception):
    """The text says why: encrypted, damaged, without pages, or too costly to read."""


@dataclass(frozen=True)
class PdfText:
    pages: int
    text: str


def read_pdf(path: Path, *, max_characters: int) -> PdfText:
    """The number of pages, and the text up to so many characters. Raises :class:`UnreadablePdf`."""
    command = [sys.executable, "-m", "feeds.reading.pdf_reader", str(path), str(max_characters)]
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            timeout=TIME_LIMIT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreadablePdf("takes too long to read") from None
    if done.returncode != 0:
        raise UnreadablePdf("cannot be read within the limits of time and memory")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise UnreadablePdf(str(answer["error"]))
    return PdfText(int(answer["pages"]), str(answer["text"]))


def _limit_resources() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_SECONDS, CPU_LIMIT_SECONDS))


def _answer(path: str, max_characters: int) -> dict[str, object]:
    import logging

    from pypdf import PasswordType, PdfReader
    from pypdf.errors import PyPdfError

    logging.disable(logging.CRITICAL)
    # An open file: given a path, pypdf would read all of it into memory.
    with open(path, "rb") as file:
        try:
            reader = PdfReader(file)
            # Many public documents are encrypted with an empty password to forbid changes.
            if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
                return {"error": "is encrypted"}
            pages = len(reader.pages)
            if not pages:
                return {"error": "has no pages"}
            parts: list[str] = []
            size = 0
            for page in reader.pages:
                if size >= max_characters:
                    break
                parts.append(page.extract_text())
                size += len(parts[-1])
        except (PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError, OSError) as error:
            return {"error": f"is damaged ({type(error).__name__})"}
        except (NotImplementedError, ImportError):
            return {"error": "is encrypted in a way that is not supported"}
        except (RecursionError, ZeroDivisionError, OverflowError):
            return {"error": "is damaged"}
    text = "\n".join(parts)[:max_characters].encode("utf-8", "replace").decode()
    return {"pages": pages, "text": text}


if __name__ == "__main__":
    _limit_resources()
    sys.stdout.write(json.dumps(_answer(sys.argv[1], int(sys.argv[2]))))
