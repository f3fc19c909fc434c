"""Secrets that can be recognised anywhere, in every form in which one is usually written."""

from __future__ import annotations

import base64
import html
import json
import secrets
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

PIECE = 14  # characters at either end that are enough to recognise a secret that was cut


@dataclass(frozen=True)
class Planted:
    name: str
    value: str

    def forms(self) -> dict[str, str]:
        """What to look for, by the kind of form."""
        text = self.value
        found = {
            "as it is": text,
            "its beginning": text[:PIECE],
            "its end": text[-PIECE:],
            "in an address": quote(text, safe=""),
            "in a path": quote(text),
            "in a form": quote_plus(text),
            "in JSON": json.dumps(text)[1:-1],
            "in JSON in JSON": json.dumps(json.dumps(text)[1:-1])[1:-1],
            "as Python writes it": repr(text)[1:-1],
            "in HTML": html.escape(text),
            "in hexadecimal": text.encode().hex(),
        }
        for offset in range(3):
            core = in_base64(text.encode(), offset)
            found[f"in Base64, {offset} behind"] = core
            found[f"in Base64 for addresses, {offset} behind"] = core.replace("+", "-").replace("/", "_")
        if "PRIVATE KEY" in text:
            lines = [line for line in text.splitlines() if line and not line.startswith("-")]
            # The ends of a key are the same dashes for everybody; its lines are not.
            for end in ("its beginning", "its end"):
                del found[end]
            for number, line in enumerate(lines):
                if len(line) >= PIECE:
                    found[f"line {number}"] = line[-PIECE:]
        return {kind: form for kind, form in found.items() if len(form) >= PIECE}


def in_base64(value: bytes, offset: int) -> str:
    """The part of the Base64 text that is the same whatever stands in front (``offset`` bytes) and behind."""
    text = base64.b64encode(b"\0" * offset + value).decode()
    return text[(0, 2, 3)[offset] : (offset + len(value)) * 8 // 6]


def plant(name: str, signs: str = "") -> Planted:
    """``signs`` are characters that encodings change; they stand in the middle."""
    return Planted(name, f"{secrets.token_hex(10)}{signs}{secrets.token_hex(10)}")


def plant_private_key(name: str) -> Planted:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return Planted(name, pem.decode())


def leaks(where: str, written: str | bytes, planted: list[Planted]) -> list[str]:
    """Each secret that is in there, with its form and what stands around it."""
    text = written.decode("utf-8", "replace") if isinstance(written, bytes) else written
    found = []
    for secret in planted:
        for kind, form in secret.forms().items():
            at = text.find(form)
            if at >= 0:
                around = text[max(0, at - 150) : at + len(form) + 40].replace(form, "<<<HERE>>>")
                found.append(f"{secret.name} {kind} in {where}: …{around!r}…")
                break
    return found
