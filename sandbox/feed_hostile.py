"""Hostile answers that a fetcher must survive. Nothing is stored; they are generated while they are sent."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from sandbox.faults import ABORT
from sandbox.pdf import damaged_pdf, encrypted_pdf

CHUNK = b"0123456789abcdef" * 4096  # 64 KiB
ENDLESS_BYTES = 64 * 2**30
BOMB_BYTES = 200 * 2**20
MAX_BIG_MB = 4096
MAX_SLOW_SECONDS = 600
MAX_HOPS = 1000


def hostile_routes(base: str) -> list[BaseRoute]:
    """Routes below /hostile; `base` is the feed's own address."""

    async def endless(request: Request) -> Response:
        return StreamingResponse(stream_bytes(ENDLESS_BYTES), media_type=_media_type(request))

    async def big(request: Request) -> Response:
        size = min(max(_number(request, "mb", 60), 0), MAX_BIG_MB) * 2**20
        headers = {} if request.query_params.get("length") == "off" else {"content-length": str(size)}
        if request.method == "HEAD":
            return Response(headers=headers, media_type=_media_type(request))
        return StreamingResponse(stream_bytes(size), headers=headers, media_type=_media_type(request))

    async def gzip_bomb(request: Request) -> Response:
        body = await asyncio.to_thread(_gzip_bomb)
        return Response(body, headers={"content-encoding": "gzip"}, media_type="text/html")

    async def lying_length(request: Request) -> Response:
        """HEAD announces a kilobyte; GET announces a megabyte and breaks off, or with ?mode=more sends 60 MB."""
        if request.method == "HEAD":
            return Response(headers={"content-length": "1000"}, media_type=_media_type(request))
        if request.query_params.get("mode") == "more":
            return StreamingResponse(stream_bytes(60 * 2**20), media_type=_media_type(request))
        headers = {"content-length": "1000000"}
        return StreamingResponse(_break_off(request), headers=headers, media_type=_media_type(request))

    async def redirect(request: Request) -> Response:
        return RedirectResponse(request.query_params.get("to", f"{base}/"), status_code=302)

    async def redirect_loop(request: Request) -> Response:
        hop = (_number(request, "hop", 0) + 1) % MAX_HOPS
        return RedirectResponse(f"{base}/hostile/redirect-loop?hop={hop}", status_code=302)

    async def slow(request: Request) -> Response:
        seconds = min(_number(request, "seconds", 30), MAX_SLOW_SECONDS)
        return StreamingResponse(_drip(seconds), media_type=_media_type(request))

    async def xml_bomb(request: Request) -> Response:
        levels = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10)]
        document = _feed_with("".join(['<!ENTITY e0 "bombbomb">', *levels]), "&e9;")
        return Response(document, media_type="application/xml")

    async def xxe(request: Request) -> Response:
        entities = '<!ENTITY file SYSTEM "file:///etc/passwd">'
        entities += f'<!ENTITY far SYSTEM "{base}/hostile/big?mb=1">'
        return Response(_feed_with(entities, "&file;&far;"), media_type="application/xml")

    async def encrypted(request: Request) -> Response:
        return Response(encrypted_pdf(), media_type="application/pdf")

    async def damaged(request: Request) -> Response:
        return Response(damaged_pdf(), media_type="application/pdf")

    endpoints = {
        "endless": endless,
        "big": big,
        "gzip-bomb": gzip_bomb,
        "lying-length": lying_length,
        "redirect": redirect,
        "redirect-loop": redirect_loop,
        "slow": slow,
        "xml-bomb.rdf": xml_bomb,
        "xxe.rdf": xxe,
        "encrypted.pdf": encrypted,
        "damaged.pdf": damaged,
    }
    return [
        Route(f"/hostile/{path}", endpoint, methods=["GET", "HEAD"]) for path, endpoint in endpoints.items()
    ]


async def stream_bytes(size: int, head: bytes = b"") -> AsyncIterator[bytes]:
    """So many bytes, in pieces, with other requests served in between."""
    if head:
        yield head[:size]
    sent = min(len(head), size)
    while sent < size:
        piece = CHUNK[: size - sent]
        yield piece
        sent += len(piece)
        await asyncio.sleep(0)


async def _break_off(request: Request) -> AsyncIterator[bytes]:
    yield CHUNK[:1000]
    request.scope[ABORT](True)


async def _drip(seconds: int) -> AsyncIterator[bytes]:
    for _ in range(seconds):
        yield b"."
        await asyncio.sleep(1)
    yield b"end"


@lru_cache(maxsize=1)
def _gzip_bomb() -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    zeros = bytes(2**20)
    return b"".join(compressor.compress(zeros) for _ in range(BOMB_BYTES // 2**20)) + compressor.flush()


def _feed_with(entities: str, title: str) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE rdf:RDF [{entities}]>'
        '<rdf:RDF xmlns="http://purl.org/rss/1.0/" xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<channel rdf:about="urn:hostile"><title>hostile</title></channel>'
        f'<item rdf:about="urn:hostile:1"><title>{title}</title><link>http://127.0.0.1/hostile</link></item>'
        "</rdf:RDF>"
    ).encode()


def _media_type(request: Request) -> str:
    return request.query_params.get("type", "text/html")


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isdigit() else default
