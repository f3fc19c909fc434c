"""The Gemini API: generateContent with the response schema honoured, token counts, file upload, models.

The key `bad-key` is refused. `state["next"]` holds the next answers, one entry per call: a raw text, or an
object with `text`, `finish_reason`, `block_reason` or `status` (an HTTP error in Google's shape).
"""

import asyncio
import hashlib
import json
import re
import secrets
from base64 import b64encode
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sandbox.core import System, from_iso, iso
from sandbox.gemini_answers import answer, plain_answer
from sandbox.gemini_material import Document, gather, read_file
from sandbox.gemini_shapes import (
    INPUT_TOKEN_LIMIT,
    error_response,
    generation,
    halves,
    model_resource,
    token_count,
)
from sandbox.partial_state import refuse_unknown

BAD_KEY = "bad-key"
FILE_LIFETIME = timedelta(hours=48)
MAX_UPLOAD_BYTES = 2 * 2**30
MAX_SESSIONS = 50
KEPT_REQUESTS = 50
KEPT_CHARACTERS = 5000  # of each prompt
TOKENS_PER_PDF_PAGE = 258
MODELS = (
    "gemini-2.5-flash",
    "gemini-2.5-flash-lite",
    "gemini-2.5-pro",
    "gemini-flash-latest",
    "gemini-flash-lite-latest",
    "gemini-pro-latest",
)
_MODEL_NAME = re.compile(
    r"gemini-(?:\d+(?:\.\d+)?-)?(?:pro|flash|flash-lite)(?:-(?:latest|\d{3}|preview[\w-]*))?"
)


@dataclass
class StoredFile:
    """An uploaded file: its text is kept, its bytes are not."""

    id: str
    mime_type: str
    display_name: str
    size: int
    sha256: str
    created_at: str
    expires_at: str
    text: str
    page_count: int


@dataclass
class Upload:
    file_id: str
    mime_type: str
    display_name: str
    received: bytearray


class Gemini(System):
    name = "gemini"

    def reset(self) -> None:
        self.next: list[str | dict[str, Any]] = []
        self.requests_left: int | None = None
        self.files: dict[str, StoredFile] = {}
        self.asked: list[dict[str, Any]] = []
        self._uploads: dict[str, Upload] = {}

    def dump(self) -> dict[str, Any]:
        return {
            "next": self.next,
            "requests_left": self.requests_left,
            "files": [asdict(file) for file in self.files.values()],
            "asked": self.asked,
        }

    def load(self, data: dict[str, Any]) -> None:
        """Keys that are missing keep their present value."""
        refuse_unknown(data, self.dump())
        files = (
            [StoredFile(**entry) for entry in data["files"]] if "files" in data else list(self.files.values())
        )
        left = data.get("requests_left", self.requests_left)
        self.requests_left = None if left is None else int(left)
        self.next = list(data.get("next", self.next))
        self.files = {file.id: file for file in files}
        self.asked = list(data.get("asked", self.asked))

    def overview(self) -> dict[str, Any]:
        calls = [[call["at"], call["model"], call["tokens"], call["answer"]] for call in reversed(self.asked)]
        files = [[file.id, file.display_name, file.mime_type, file.size] for file in self.files.values()]
        return {
            "sections": [
                {"title": "Answers", "columns": ["time", "model", "tokens", "answer"], "rows": calls},
                {"title": "Files", "columns": ["id", "name", "type", "bytes"], "rows": files},
            ]
        }

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/upload/{version}/files", self.upload, methods=["POST", "PUT"]),
            Route("/{version}/models", self.list_models, methods=["GET"]),
            Route("/{version}/models/{model}:generateContent", self.generate, methods=["POST"]),
            Route("/{version}/models/{model}:streamGenerateContent", self.stream, methods=["POST"]),
            Route("/{version}/models/{model}:countTokens", self.count_tokens, methods=["POST"]),
            Route("/{version}/models/{model}", self.get_model, methods=["GET"]),
            Route("/{version}/files", self.list_files, methods=["GET"]),
            Route("/{version}/files/{file}", self.get_file, methods=["GET"]),
            Route("/{version}/files/{file}", self.delete_file, methods=["DELETE"]),
        ]

    # Models

    async def list_models(self, request: Request) -> Response:
        return self._refuse(request) or JSONResponse({"models": [model_resource(name) for name in MODELS]})

    async def get_model(self, request: Request) -> Response:
        return self._refuse(request) or JSONResponse(model_resource(request.path_params["model"]))

    async def generate(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        return await self._generate(request)

    async def stream(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        whole = await self._generate(request)
        if whole.status_code != 200:
            return whole
        events = halves(json.loads(bytes(whole.body)))
        if request.query_params.get("alt") != "sse":
            return JSONResponse(events)
        body = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in events)
        return Response(body, media_type="text/event-stream")

    async def count_tokens(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        try:
            body = await request.json()
            count = await self._prompt_tokens(body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return error_response(400, f"Request contains an invalid argument: {error}")
        return JSONResponse({"totalTokens": count})

    async def _generate(self, request: Request) -> Response:
        try:
            body = await request.json()
            contents = body["contents"]
            config = body.get("generationConfig") or {}
            material = await asyncio.to_thread(gather, contents, self._documents())
            prompt_tokens = await self._prompt_tokens(body)
        except KeyError as error:
            return error_response(
                403, f"You do not have permission to access the File {error} or it may not exist."
            )
        except (ValueError, TypeError, AttributeError) as error:
            return error_response(400, str(error))
        if prompt_tokens > INPUT_TOKEN_LIMIT:
            return error_response(
                400, f"The input token count exceeds the maximum number of tokens {INPUT_TOKEN_LIMIT}."
            )
        ordered = self.next.pop(0) if self.next else None
        order: dict[str, Any] = {"text": ordered} if isinstance(ordered, str) else ordered or {}
        if "status" in order:
            return error_response(
                int(order["status"]), str(order.get("message", "Ordered by the sandbox's state."))
            )
        schema = next(
            (
                config[key]
                for key in (
                    "responseSchema",
                    "responseJsonSchema",
                    "response_json_schema",
                    "_responseJsonSchema",
                )
                if config.get(key)
            ),
            None,
        )
        text = order.get("text")
        if text is None:
            text = answer(schema, material) if schema else plain_answer(material)
        finish_reason = order.get("finish_reason", "STOP")
        limit = config.get("maxOutputTokens")
        if limit and token_count(text) > int(limit):
            text, finish_reason = text[: int(limit)], "MAX_TOKENS"
        model = request.path_params["model"]
        data = generation(model, text, finish_reason, prompt_tokens, order.get("block_reason"))
        data["createTime"] = iso(self.world.clock.now())
        tokens = data["usageMetadata"]["totalTokenCount"]
        asked = {"at": data["createTime"], "model": model, "tokens": tokens, "answer": text[:300]}
        self.asked.append({**asked, **words_of(body)})
        del self.asked[:-KEPT_REQUESTS]
        self.world.touch()
        return JSONResponse(data)

    async def _prompt_tokens(self, body: dict[str, Any]) -> int:
        if "generateContentRequest" in body:
            body = body["generateContentRequest"]
        material = await asyncio.to_thread(gather, body["contents"], self._documents())
        system = json.dumps(body.get("systemInstruction") or "", ensure_ascii=False)
        texts = [part.get("text") or "" for content in body["contents"] for part in content.get("parts", [])]
        pages = sum(document.page_count for document in material.documents)
        return token_count(system) + sum(map(token_count, texts)) + pages * TOKENS_PER_PDF_PAGE

    # Files

    async def upload(self, request: Request) -> Response:
        command = request.headers.get("x-goog-upload-command", "")
        if command == "start":
            return self._refuse(request) or await self._start_upload(request)
        upload_id = request.query_params.get("upload_id", "")
        session = self._uploads.get(upload_id)
        if session is None:
            return error_response(404, "Upload session not found.", {"x-goog-upload-status": "final"})
        chunk = await request.body()
        offset = int(request.headers.get("x-goog-upload-offset") or 0)
        if "query" in command:
            received = str(len(session.received))
            headers = {"x-goog-upload-status": "active", "x-goog-upload-size-received": received}
            return JSONResponse({}, headers=headers)
        if offset > len(session.received) or offset + len(chunk) > MAX_UPLOAD_BYTES:
            return error_response(400, "The upload's offset does not fit.", {"x-goog-upload-status": "final"})
        session.received[offset:] = chunk
        if "finalize" not in command:
            return JSONResponse({}, headers={"x-goog-upload-status": "active"})
        del self._uploads[upload_id]
        return await self._finish_upload(session)

    async def _start_upload(self, request: Request) -> Response:
        body = await request.body()
        file = (json.loads(body) if body.strip() else {}).get("file") or {}
        name = str(file.get("name") or "").removeprefix("files/") or secrets.token_hex(6)
        if name in self.files:
            return error_response(409, f"File files/{name} already exists.")
        if len(self._uploads) >= MAX_SESSIONS:
            del self._uploads[next(iter(self._uploads))]
        mime_type = request.headers.get("x-goog-upload-header-content-type") or ""
        # The client library sends this one body with names in snake case.
        shown = (
            file.get("display_name")
            or file.get("displayName")
            or request.headers.get("x-goog-upload-file-name")
            or ""
        )
        upload_id = secrets.token_urlsafe(24)
        self._uploads[upload_id] = Upload(name, mime_type, shown, bytearray())
        version = request.path_params["version"]
        url = f"{self._base}/upload/{version}/files?upload_id={upload_id}&upload_protocol=resumable"
        headers = {"x-goog-upload-url": url, "x-goog-upload-status": "active"}
        return JSONResponse({}, headers=headers)

    async def _finish_upload(self, session: Upload) -> Response:
        data = bytes(session.received)
        now = self.world.clock.now()
        try:
            document = await asyncio.to_thread(read_file, data, session.mime_type, session.display_name)
        except ValueError:
            # As with the real service the upload itself succeeds; only the use of the file is refused.
            document = Document(session.display_name, "", 0)
        file = StoredFile(
            id=session.file_id,
            mime_type=session.mime_type,
            display_name=session.display_name,
            size=len(data),
            sha256=b64encode(hashlib.sha256(data).hexdigest().encode()).decode(),
            created_at=iso(now),
            expires_at=iso(now + FILE_LIFETIME),
            text=document.text,
            page_count=document.page_count,
        )
        self.files[file.id] = file
        self.world.touch()
        return JSONResponse({"file": self._file(file)}, headers={"x-goog-upload-status": "final"})

    async def list_files(self, request: Request) -> Response:
        self._forget_expired()
        return self._refuse(request) or JSONResponse(
            {"files": [self._file(file) for file in self.files.values()]}
        )

    async def get_file(self, request: Request) -> Response:
        self._forget_expired()
        refused = self._refuse(request)
        if refused:
            return refused
        file = self.files.get(request.path_params["file"])
        return JSONResponse(self._file(file)) if file else _no_file(request)

    async def delete_file(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        if self.files.pop(request.path_params["file"], None) is None:
            return _no_file(request)
        self.world.touch()
        return JSONResponse({})

    # Small parts

    @property
    def _base(self) -> str:
        return f"{self.world.base_url}/{self.name}"

    def _forget_expired(self) -> None:
        now = self.world.clock.now()
        self.files = {key: file for key, file in self.files.items() if from_iso(file.expires_at) > now}

    def _documents(self) -> dict[str, Document]:
        """The uploaded files by URI. One without pages fails where it is used."""
        self._forget_expired()
        documents = {}
        for file in self.files.values():
            documents[self._file(file)["uri"]] = Document(file.display_name, file.text, file.page_count)
        return documents

    def _file(self, file: StoredFile) -> dict[str, Any]:
        return {
            "name": f"files/{file.id}",
            "displayName": file.display_name,
            "mimeType": file.mime_type,
            "sizeBytes": str(file.size),
            "createTime": file.created_at,
            "updateTime": file.created_at,
            "expirationTime": file.expires_at,
            "sha256Hash": file.sha256,
            "uri": f"{self._base}/v1beta/files/{file.id}",
            "state": "ACTIVE",
            "source": "UPLOADED",
        }

    def _refuse(self, request: Request) -> Response | None:
        """The answer to a request that the service would not serve; counts it against the quota otherwise."""
        key = request.headers.get("x-goog-api-key") or request.query_params.get("key")
        if not key:
            return error_response(403, "Method doesn't allow unregistered callers.")
        if key == BAD_KEY:
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
            details = [{**info, "domain": "googleapis.com", "metadata": {"service": "generativelanguage"}}]
            return error_response(400, "API key not valid. Please pass a valid API key.", details=details)
        model = request.path_params.get("model")
        if model is not None and not _MODEL_NAME.fullmatch(model):
            message = (
                f"models/{model} is not found for API version v1beta, or is not supported for this method."
            )
            return error_response(404, message)
        if model is None or request.method == "GET" or self.requests_left is None:
            return None
        if self.requests_left <= 0:
            retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17s"}
            return error_response(429, "You exceeded your current quota.", details=[retry])
        self.requests_left -= 1
        return None


def words_of(body: dict[str, Any]) -> dict[str, str]:
    """The prompt and the system's instruction as text, for people and tests to read."""

    def joined(contents: Any) -> str:
        parts = [part for content in contents for part in content.get("parts", [])]
        return "\n".join(str(part["text"]) for part in parts if "text" in part)[:KEPT_CHARACTERS]

    system = body.get("systemInstruction") or {}
    return {"prompt": joined(body["contents"]), "system": joined([system])}


def _no_file(request: Request) -> Response:
    name = request.path_params["file"]
    return error_response(403, f"You do not have permission to access the File {name} or it may not exist.")
