"""What Google Cloud Storage keeps and how it refuses: objects with generations, conditions, error answers."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import google_crc32c
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, PlainTextResponse, Response

MUST_NOT_EXIST = 0


class Refused(Exception):
    """A request that ends in Google's error JSON."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def response(self, *, as_text: bool = False) -> Response:
        if self.status == 304:
            return Response(status_code=304)
        if as_text:
            return PlainTextResponse(self.message, status_code=self.status)
        detail = {"message": self.message, "domain": "global", "reason": self.reason}
        if self.status == 412:
            detail |= {"locationType": "header", "location": "If-Match"}
        error = {"code": self.status, "message": self.message, "errors": [detail]}
        return JSONResponse({"error": error}, status_code=self.status)


@dataclass
class StoredObject:
    bucket: str
    name: str
    data: bytes
    generation: int
    created_at: str
    updated_at: str
    fields: dict[str, Any] = field(default_factory=dict)
    metageneration: int = 1

    @property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.data, usedforsecurity=False).digest()).decode()

    @property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    def resource(self, endpoint: str) -> dict[str, Any]:
        path = f"b/{self.bucket}/o/{quote(self.name, safe='')}"
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"{endpoint}/storage/v1/{path}",
            "mediaLink": f"{endpoint}/download/storage/v1/{path}?generation={self.generation}&alt=media",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": "application/octet-stream",
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": etag_of(self),
            "timeCreated": self.created_at,
            "updated": self.updated_at,
            **self.fields,
        }


@dataclass
class UploadSession:
    bucket: str
    query: dict[str, str]
    resource: dict[str, Any]
    received: bytearray = field(default_factory=bytearray)
    finished: dict[str, Any] | None = None


def etag_of(stored: StoredObject) -> str:
    return base64.b64encode(f"{stored.generation}/{stored.metageneration}".encode()).decode()


def _conditions(query: QueryParams) -> dict[str, int]:
    conditions = {}
    for key, value in query.items():
        # The client library spells one of them ifMetaGenerationNotMatch.
        lowered = key.lower()
        if lowered.startswith("if") and lowered.endswith("match"):
            if not value.isdigit():
                raise Refused(400, "invalid", f"Invalid value for {key}: {value}")
            conditions[lowered] = int(value)
    return conditions


def _holds(stored: StoredObject | None, query: QueryParams) -> tuple[bool, bool]:
    """Whether the positive and the negative conditions hold."""
    generation = stored.generation if stored else MUST_NOT_EXIST
    metageneration = stored.metageneration if stored else MUST_NOT_EXIST
    conditions = _conditions(query)
    positive = conditions.get("ifgenerationmatch", generation) == generation and (
        conditions.get("ifmetagenerationmatch", metageneration) == metageneration
    )
    negative = conditions.get("ifgenerationnotmatch") != generation and (
        conditions.get("ifmetagenerationnotmatch") != metageneration
    )
    return positive, negative


def check_write(stored: StoredObject | None, query: QueryParams) -> None:
    if not all(_holds(stored, query)):
        raise Refused(
            412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."
        )


def check_read(stored: StoredObject, query: QueryParams) -> None:
    positive, negative = _holds(stored, query)
    if not positive:
        raise Refused(
            412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."
        )
    if not negative:
        raise Refused(304, "notModified", "Not Modified")


def folder_of(name: str, prefix: str, delimiter: str) -> str | None:
    """The pseudo-folder a listing with a delimiter shows for this object; None if it shows the object."""
    if not delimiter or delimiter not in name[len(prefix) :]:
        return None
    return name[: name.index(delimiter, len(prefix)) + len(delimiter)]


def split_multipart(body: bytes, content_type: str) -> tuple[dict[str, Any], bytes]:
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if boundary is None:
        raise Refused(400, "invalid", "Failed to parse the boundary of a multipart upload.")
    mark = b"--" + boundary[1].encode()
    parts = body.split(b"\r\n" + mark)
    head = parts[0].removeprefix(mark)
    if len(parts) < 3:
        raise Refused(400, "invalid", "A multipart upload has two parts: metadata and media.")
    resource = json.loads(head.partition(b"\r\n\r\n")[2])
    # Media that contain the boundary do not occur: clients choose it at random.
    part_head, _, data = parts[1].partition(b"\r\n\r\n")
    declared = re.search(rb"content-type:\s*([^\r\n]+)", part_head, re.IGNORECASE)
    if declared:
        resource.setdefault("contentType", declared[1].decode("latin-1").strip())
    return resource, data
