"""What a request gives the model to read, and the sentences that an answer is made of.

Instructions and material are told apart by the request's own marks: what stands between `<tag>` and `</tag>`, or
between lines of three backquotes, is material, and so is every file. Without such marks it is what follows a
line of hyphens or equals signs, else every part but the first, else the whole text.
"""

import base64
import re
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from pypdf import PdfReader
from pypdf.errors import PyPdfError

MAX_PAGES = 60
MAX_PDF_BYTES = 32 * 2**20
FULL_LINE, SHORTEST_SENTENCE = 36, 12  # characters

_TAGGED = re.compile(r"<([A-Za-z_][\w-]*)[^<>]*>(.*?)</\1>", re.DOTALL)
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_RULE = re.compile(r"^\s*[-=]{3,}.*$", re.MULTILINE)
_HEADING = re.compile(r"(?:第?\d+章?)[　 ].{0,24}。")
_TITLE = re.compile(r"(?:タイトル|表題|件名|title)\s*[:：]\s*(.+)", re.IGNORECASE)
_TEAMS = (
    re.compile(
        r'"home"\s*:\s*(?:\{[^{}]*?"name"\s*:\s*)?"([^"]+)".*?"away"\s*:\s*(?:\{[^{}]*?"name"\s*:\s*)?"([^"]+)"',
        re.S,
    ),
    re.compile(
        r"(?:ホーム|home)\s*[:：]\s*([^\n,、]+).*?(?:アウェイ|アウェー|away)\s*[:：]\s*([^\n,、]+)",
        re.I | re.S,
    ),
    re.compile(r"([A-Z][\w .&'-]{2,30}?)\s+(?:vs\.?|対)\s+([A-Z][\w .&'-]{2,30})"),
)


@dataclass
class Document:
    """A file that came with the request."""

    name: str
    text: str
    page_count: int


@dataclass
class Material:
    """Everything that the model was given to read."""

    title: str
    text: str
    documents: list[Document] = field(default_factory=list)

    @property
    def whole(self) -> str:
        return "\n".join([self.title, self.text, *(document.text for document in self.documents)])


def read_file(data: bytes, mime_type: str, name: str) -> Document:
    """The text of a file. A PDF that cannot be read raises ValueError, as the model service refuses it."""
    if mime_type != "application/pdf":
        return Document(name, data.decode("utf-8", "replace"), 1)
    if len(data) > MAX_PDF_BYTES:
        return Document(name, "", 1)
    try:
        reader = PdfReader(BytesIO(data))
        pages = reader.pages[:MAX_PAGES]
        text = "\n".join(page.extract_text() for page in pages)
    except (PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("The document has no pages.") from error
    if not pages:
        raise ValueError("The document has no pages.")
    return Document(name, text, len(reader.pages))


def gather(contents: list[dict[str, Any]], files: dict[str, Document]) -> Material:
    """The material of a request; `files` are the uploaded ones by URI. Raises ValueError, KeyError."""
    texts: list[str] = []
    documents: list[Document] = []
    parts = [
        part for content in contents if content.get("role") != "model" for part in content.get("parts", [])
    ]
    for part in parts:
        document = _document_of(part, files, f"document {len(documents) + 1}")
        if document is not None:
            documents.append(document)
        elif part.get("text"):
            texts.append(part["text"])
    prompt = "\n".join(texts)
    tagged = [(tag.lower(), inner.strip()) for tag, inner in _TAGGED.findall(prompt)]
    fenced = [inner.strip() for inner in _FENCED.findall(prompt)]
    text = "\n".join([inner for tag, inner in tagged if tag != "title"] + fenced)
    if not tagged and not fenced:
        text = _unmarked(texts, has_documents=bool(documents))
    named = next((inner for tag, inner in tagged if tag == "title"), None)
    found = _TITLE.search(prompt)
    title = named or (found[1].strip() if found else "") or (sentences(text) or [""])[0][:60]
    return Material(title, re.sub(r"<[^<>]{1,40}>", " ", text).strip(), documents)


def _document_of(part: dict[str, Any], files: dict[str, Document], name: str) -> Document | None:
    """The document that a part carries or links to."""
    if inline := part.get("inlineData") or part.get("inline_data"):
        mime_type = inline.get("mimeType") or inline.get("mime_type") or ""
        # Google's client sends the URL-safe alphabet, others the plain one.
        data = base64.b64decode(inline["data"].replace("-", "+").replace("_", "/"))
        return read_file(data, mime_type, name)
    if linked := part.get("fileData") or part.get("file_data"):
        document = files[linked.get("fileUri") or linked.get("file_uri")]
        if not document.page_count:
            raise ValueError("The document has no pages.")
        return document
    return None


def _unmarked(texts: list[str], *, has_documents: bool) -> str:
    """The material of a request without marks: what follows a ruled line, else all parts but the first."""
    ruled = _RULE.split("\n".join(texts), maxsplit=1)
    if len(ruled) == 2:
        return ruled[1]
    if has_documents or len(texts) > 1:
        return "\n".join(texts[1:])
    return "\n".join(texts)


def sentences(text: str) -> list[str]:
    """Whole sentences: lines that a PDF broke are joined, headings and fragments are left out."""
    lines: list[str] = []
    is_broken_off = False
    for line in map(str.strip, text.splitlines()):
        if is_broken_off and line:
            lines[-1] += line
        else:
            lines.append(line)
        is_broken_off = len(line) >= FULL_LINE and line[-1] not in "。！？.!?"
    pieces = [piece for line in lines for piece in re.split(r"(?<=[。！？])|(?<=[.!?])\s+", line)]
    found = [piece.strip() for piece in pieces if not _HEADING.fullmatch(piece.strip())]
    found = [piece for piece in found if len(piece) >= SHORTEST_SENTENCE]
    return [piece for piece in found if piece[-1] in "。！？.!?"] or found


def extract(text: str, length: int) -> str:
    """The most important sentences in their order, at most `length` characters in all, and at least one."""
    found = list(dict.fromkeys(sentences(text))) or [text.strip() or "本文に要約できる記述はありません。"]
    weights = Counter(word for sentence in found for word in _words(sentence))

    def weight(position: int) -> float:
        words = _words(found[position])
        return sum(weights[word] for word in words) / (len(words) + 4) + (2 if position == 0 else 0)

    chosen: set[int] = set()
    used = 0
    for position in sorted(range(len(found)), key=weight, reverse=True):
        if used + len(found[position]) <= length:
            chosen.add(position)
            used += len(found[position])
    if not chosen:
        return found[0][: max(1, length - 1)] + "…"
    return "".join(found[position] for position in sorted(chosen))


def keywords(text: str, count: int) -> list[str]:
    common = Counter(_words(text)).most_common(count)
    return [word for word, _ in common] or ["情報通信"]


def teams(text: str) -> tuple[str, str] | None:
    """The two sides, if the material is about a football match."""
    if not re.search(
        r"kick-?off|キックオフ|fixture|フォーメーション|formation|venue|試合", text, re.IGNORECASE
    ):
        return None
    for pattern in _TEAMS:
        found = pattern.search(text)
        if found:
            return found[1].strip(), found[2].strip()
    return None


def preview(home: str, away: str) -> str:
    """A guide to a match that does not tell how it went."""
    return (
        f"{home}が本拠地に{away}を迎える一戦。"
        f"{home}は布陣を保ちながら、左右の幅を使って相手の守備を動かしたいところだ。"
        f"一方の{away}は中盤での競り合いと、奪ってからの速い攻めが鍵になる。"
        "先発の顔ぶれと欠場者を踏まえると、序盤の主導権争いとセットプレーの守り方が見どころとなる。"
        "ベンチに控える選手の使い方にも注目したい。"
    )


def _words(sentence: str) -> list[str]:
    return re.findall(r"[一-龥々]{2,6}|[ァ-ヶー]{3,}|[A-Za-z][A-Za-z0-9-]{2,}", sentence)
