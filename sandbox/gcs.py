"""Google Cloud Storage's JSON API: buckets, objects with generations, conditional writes, three uploads.

A bucket is created at its first use, except one whose name begins with `missing`.
"""

import base64
import json
import re
import secrets
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sandbox.core import System
from sandbox.gcs_objects import (
    Refused,
    StoredObject,
    UploadSession,
    check_read,
    check_write,
    etag_of,
    folder_of,
    split_multipart,
)
from sandbox.partial_state import refuse_unknown

MAX_PAGE = 1000
MAX_SESSIONS = 200
WRITABLE = (
    "contentType",
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "metadata",
)


class Gcs(System):
    name = "gcs"

    def reset(self) -> None:
        self.buckets: dict[str, str] = {}
        self.objects: dict[tuple[str, str], StoredObject] = {}
        self._last_generation = 0
        self._sessions: dict[str, UploadSession] = {}

    def dump(self) -> dict[str, Any]:
        return {
            "buckets": dict(self.buckets),
            "last_generation": self._last_generation,
            "objects": [
                {
                    "bucket": stored.bucket,
                    "name": stored.name,
                    "data": base64.b64encode(stored.data).decode(),
                    "generation": stored.generation,
                    "metageneration": stored.metageneration,
                    "created_at": stored.created_at,
                    "updated_at": stored.updated_at,
                    "fields": stored.fields,
                }
                for stored in self.objects.values()
            ],
        }

    def load(self, data: dict[str, Any]) -> None:
        """Keys that are missing keep their present value."""
        refuse_unknown(data, self.dump())
        objects = {} if "objects" in data else self.objects
        for entry in data.get("objects", []):
            stored = StoredObject(**{**entry, "data": base64.b64decode(entry["data"])})
            objects[stored.bucket, stored.name] = stored
        self._last_generation = int(data.get("last_generation", self._last_generation))
        self.buckets = dict(data.get("buckets", self.buckets))
        self.objects = objects

    def overview(self) -> dict[str, Any]:
        rows = [
            [
                {
                    "text": f"{stored.bucket}/{stored.name}",
                    "href": stored.resource(self._endpoint)["mediaLink"],
                },
                len(stored.data),
                str(stored.generation),
                stored.updated_at,
            ]
            for stored in sorted(self.objects.values(), key=lambda stored: stored.generation, reverse=True)
        ]
        return {
            "sections": [
                {"title": "Objects", "columns": ["name", "bytes", "generation", "written"], "rows": rows}
            ]
        }

    def routes(self) -> list[BaseRoute]:
        object_path = "/storage/v1/b/{bucket}/o/{object:path}"
        return [
            Route("/storage/v1/b", self.list_buckets, methods=["GET"]),
            Route("/storage/v1/b", self.insert_bucket, methods=["POST"]),
            Route("/storage/v1/b/{bucket}", self.get_bucket, methods=["GET"]),
            Route("/storage/v1/b/{bucket}", self.delete_bucket, methods=["DELETE"]),
            Route("/storage/v1/b/{bucket}/o", self.list_objects, methods=["GET"]),
            Route("/upload/storage/v1/b/{bucket}/o", self.upload, methods=["POST"]),
            Route("/upload/storage/v1/b/{bucket}/o", self.continue_upload, methods=["PUT"]),
            Route("/download" + object_path, self.download, methods=["GET"]),
            Route(object_path, self.get_object, methods=["GET"]),
            Route(object_path, self.patch_object, methods=["PATCH", "PUT"]),
            Route(object_path, self.delete_object, methods=["DELETE"]),
        ]

    # Buckets

    async def list_buckets(self, request: Request) -> Response:
        items = [self._bucket_resource(name) for name in sorted(self.buckets)]
        return JSONResponse({"kind": "storage#buckets", "items": items})

    async def insert_bucket(self, request: Request) -> Response:
        name = str((await request.json())["name"])
        if name in self.buckets:
            message = "Your previous request to create the named bucket succeeded and you already own it."
            return Refused(409, "conflict", message).response()
        self.buckets[name] = self._now()
        self.world.touch()
        return JSONResponse(self._bucket_resource(name))

    async def get_bucket(self, request: Request) -> Response:
        try:
            return JSONResponse(self._bucket_resource(self._use_bucket(request)))
        except Refused as refused:
            return refused.response()

    async def delete_bucket(self, request: Request) -> Response:
        name = request.path_params["bucket"]
        if name not in self.buckets:
            return Refused(404, "notFound", "The specified bucket does not exist.").response()
        if any(bucket == name for bucket, _ in self.objects):
            return Refused(409, "conflict", "The bucket you tried to delete is not empty.").response()
        del self.buckets[name]
        self.world.touch()
        return Response(status_code=204)

    # Objects

    async def list_objects(self, request: Request) -> Response:
        try:
            bucket = self._use_bucket(request)
        except Refused as refused:
            return refused.response()
        query = request.query_params
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = min(int(query.get("maxResults") or MAX_PAGE), MAX_PAGE)
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        names = sorted(name for owner, name in self.objects if owner == bucket and name.startswith(prefix))
        folders = {name: folder_of(name, prefix, delimiter) for name in names}
        entries = sorted({folders[name] or name for name in names})
        page = [entry for entry in entries if entry > after][:limit]
        answer: dict[str, Any] = {"kind": "storage#objects"}
        found = [self.objects[bucket, entry] for entry in page if entry not in folders.values()]
        if found:
            answer["items"] = [stored.resource(self._endpoint) for stored in found]
        prefixes = [entry for entry in page if entry in folders.values()]
        if prefixes:
            answer["prefixes"] = prefixes
        if page and page[-1] != entries[-1]:
            answer["nextPageToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
        return JSONResponse(answer)

    async def get_object(self, request: Request) -> Response:
        if request.query_params.get("alt") == "media":
            return await self.download(request)
        try:
            stored = self._find(request)
            check_read(stored, request.query_params)
        except Refused as refused:
            return refused.response()
        return JSONResponse(stored.resource(self._endpoint))

    async def download(self, request: Request) -> Response:
        try:
            stored = self._find(request)
            check_read(stored, request.query_params)
        except Refused as refused:
            return refused.response(as_text=True)
        headers = {
            "x-goog-generation": str(stored.generation),
            "x-goog-metageneration": str(stored.metageneration),
            "x-goog-hash": f"crc32c={stored.crc32c},md5={stored.md5}",
            "x-goog-stored-content-encoding": stored.fields.get("contentEncoding", "identity"),
            "x-goog-stored-content-length": str(len(stored.data)),
            "etag": etag_of(stored),
            "accept-ranges": "bytes",
        }
        media_type = stored.fields.get("contentType", "application/octet-stream")
        # Set by hand: Starlette would add a charset to a text type that was stored without one.
        headers["content-type"] = media_type
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if wanted is None or wanted.groups() == ("", ""):
            return Response(stored.data, headers=headers)
        size = len(stored.data)
        first, last = wanted.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last), size - 1) if first and last else size - 1
        if start >= size or start > end:
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{end}/{size}"
        return Response(stored.data[start : end + 1], status_code=206, headers=headers)

    async def patch_object(self, request: Request) -> Response:
        changes = await request.json()
        try:
            stored = self._find(request)
            check_write(stored, request.query_params)
        except Refused as refused:
            return refused.response()
        for key in WRITABLE:
            if key not in changes:
                continue
            if changes[key] is None:
                stored.fields.pop(key, None)
            elif key == "metadata" and request.method == "PATCH":
                merged = {**stored.fields.get("metadata", {}), **changes[key]}
                stored.fields["metadata"] = {
                    name: value for name, value in merged.items() if value is not None
                }
            else:
                stored.fields[key] = changes[key]
        stored.metageneration += 1
        stored.updated_at = self._now()
        self.world.touch()
        return JSONResponse(stored.resource(self._endpoint))

    async def delete_object(self, request: Request) -> Response:
        try:
            stored = self._find(request)
            check_write(stored, request.query_params)
        except Refused as refused:
            return refused.response()
        del self.objects[stored.bucket, stored.name]
        self.world.touch()
        return Response(status_code=204)

    # Uploads

    async def upload(self, request: Request) -> Response:
        body = await request.body()
        query = dict(request.query_params)
        try:
            bucket = self._use_bucket(request)
            if query.get("uploadType") == "resumable":
                return self._open_session(bucket, query, body, request.headers)
            if query.get("uploadType") == "multipart":
                resource, data = split_multipart(body, request.headers.get("content-type", ""))
            else:
                resource = {"name": query.get("name"), "contentType": request.headers.get("content-type")}
                data = body
            return JSONResponse(self._store(bucket, query, resource, data))
        except Refused as refused:
            return refused.response()

    def _open_session(self, bucket: str, query: dict[str, str], body: bytes, headers: Headers) -> Response:
        resource: dict[str, Any] = json.loads(body) if body.strip() else {}
        resource.setdefault("name", query.get("name"))
        if "x-upload-content-type" in headers:
            resource.setdefault("contentType", headers["x-upload-content-type"])
        check_write(self.objects.get((bucket, resource["name"] or "")), QueryParams(query))
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        upload_id = secrets.token_urlsafe(24)
        self._sessions[upload_id] = UploadSession(bucket, query, resource)
        location = (
            f"{self._endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
        )
        return Response(status_code=200, headers={"location": location, "x-guploader-uploadid": upload_id})

    async def continue_upload(self, request: Request) -> Response:
        chunk = await request.body()
        session = self._sessions.get(request.query_params.get("upload_id", ""))
        if session is None:
            return Refused(404, "notFound", "No such upload session.").response(as_text=True)
        if session.finished is not None:
            return JSONResponse(session.finished)
        sent = re.fullmatch(
            r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers.get("content-range", "bytes */*")
        )
        if sent is None:
            return Refused(400, "invalid", "Failed to parse Content-Range header.").response()
        first, _, total = sent.groups()
        if chunk:
            start = int(first or 0)
            if start > len(session.received):
                return Refused(503, "backendError", "Bytes are missing before this chunk.").response()
            session.received[start:] = chunk
        if total == "*" or len(session.received) < int(total):
            headers = {"range": f"bytes=0-{len(session.received) - 1}"} if session.received else {}
            return Response(status_code=308, headers=headers)
        try:
            for label, value in re.findall(r"(crc32c|md5)=([^,\s]+)", request.headers.get("x-goog-hash", "")):
                session.resource["crc32c" if label == "crc32c" else "md5Hash"] = value
            session.finished = self._store(
                session.bucket, session.query, session.resource, bytes(session.received)
            )
        except Refused as refused:
            return refused.response()
        session.received = bytearray()
        return JSONResponse(session.finished)

    def _store(
        self, bucket: str, query: dict[str, str], resource: dict[str, Any], data: bytes
    ) -> dict[str, Any]:
        name = resource.get("name") or query.get("name")
        if not name:
            raise Refused(400, "required", "Required parameter: name")
        check_write(self.objects.get((bucket, name)), QueryParams(query))
        now = self._now()
        # Microseconds, as Google has them, but always newer than the last one: the clock can be set back.
        generation = max(int(self.world.clock.now().timestamp() * 1_000_000), self._last_generation + 1)
        fields = {key: resource[key] for key in WRITABLE if resource.get(key) is not None}
        stored = StoredObject(bucket, name, data, generation, now, now, fields)
        for key, actual in (("crc32c", stored.crc32c), ("md5Hash", stored.md5)):
            if resource.get(key) not in (None, actual):
                raise Refused(400, "invalid", f"Provided {key} does not match the calculated one {actual}.")
        self._last_generation = generation
        self.objects[bucket, name] = stored
        self.world.touch()
        return stored.resource(self._endpoint)

    # Small parts

    @property
    def _endpoint(self) -> str:
        return f"{self.world.base_url}/{self.name}"

    def _now(self) -> str:
        return self.world.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _use_bucket(self, request: Request) -> str:
        name = str(request.path_params["bucket"])
        if name not in self.buckets:
            if name.startswith("missing"):
                raise Refused(404, "notFound", "The specified bucket does not exist.")
            self.buckets[name] = self._now()
            self.world.touch()
        return name

    def _find(self, request: Request) -> StoredObject:
        bucket, name = self._use_bucket(request), request.path_params["object"]
        stored = self.objects.get((bucket, name))
        wanted = request.query_params.get("generation")
        if stored is None or (wanted is not None and wanted != str(stored.generation)):
            raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
        return stored

    def _bucket_resource(self, name: str) -> dict[str, Any]:
        return {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "selfLink": f"{self._endpoint}/storage/v1/b/{name}",
            "location": "ASIA-NORTHEAST1",
            "storageClass": "STANDARD",
            "timeCreated": self.buckets[name],
            "updated": self.buckets[name],
            "metageneration": "1",
            "etag": "CAE=",
        }
