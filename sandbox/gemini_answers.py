"""Answers that fit a response schema, with content taken from the material by simple, predictable rules."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from sandbox.gemini_material import Document, Material, extract, keywords, preview, sentences, teams

MAX_DEPTH = 12
FINAL_LENGTH, SUMMARY_LENGTH, LONG_LENGTH, NOTE_LENGTH = 200, 280, 420, 90
USUAL_ITEMS = 3

_NOT_READY = re.compile(r"準備中|作成中|後日掲載|coming soon|under construction", re.IGNORECASE)
_NOT_WORTH = re.compile(r"人事異動|職員採用|採用情報|採用案内|採用試験")
_NOTICE = re.compile(r"開催案内|開催について|傍聴")
_NOTICE_LENGTH = 500
_SCORE = re.compile(r"\d+\s*[-－–対]\s*\d+(?!\d)|得点を挙げ|勝利し|敗れ|引き分けに終わ")
_DATE = re.compile(r"(20\d\d)年\s*(\d{1,2})月\s*(\d{1,2})日")


@dataclass(frozen=True)
class Verdict:
    word: str
    reason: str


def screen(material: Material) -> Verdict:
    """Worth a summary (YES), not (NO), or not finished yet (WAIT)."""
    page = f"{material.title}\n{material.text}"
    if _NOT_READY.search(page):
        return Verdict("WAIT", "資料が準備中と記載されており、内容がまだ公開されていないため。")
    if _NOT_WORTH.search(page):
        return Verdict("NO", "人事や採用に関する事務的な告知であり、要約して知らせる内容がないため。")
    if _NOTICE.search(page) and len(page) < _NOTICE_LENGTH and not material.documents:
        return Verdict("NO", "会議の開催を知らせるだけで、議論の内容が含まれていないため。")
    topic = keywords(material.whole, 1)[0]
    return Verdict("YES", f"「{topic}」に関する具体的な内容が公表されており、要約する価値があるため。")


def _spoiler_verdict(material: Material) -> Verdict:
    if _SCORE.search(material.whole):
        return Verdict("NO", "得点や勝敗を示す記述があるため。")
    return Verdict("YES", "試合の経過や結末に触れる記述がないため。")


def plain_answer(material: Material) -> str:
    """The answer to a request without a schema."""
    sides = teams(material.whole)
    return preview(*sides) if sides else extract(material.whole, SUMMARY_LENGTH)


def answer(schema: dict[str, Any], material: Material) -> str:
    """JSON that fits the schema (OpenAPI subset or JSON Schema)."""
    sides = teams(material.whole)
    source = preview(*sides) if sides else "\n".join([material.text, *(d.text for d in material.documents)])
    verdict = _spoiler_verdict(material) if sides else screen(material)
    writer = _Writer(material, verdict, source, schema.get("$defs") or schema.get("definitions") or {})
    return json.dumps(writer.value(schema, "", 0), ensure_ascii=False)


@dataclass(frozen=True)
class _Writer:
    material: Material
    verdict: Verdict
    source: str
    definitions: dict[str, Any]
    document: Document | None = None

    def value(self, schema: dict[str, Any], key: str, depth: int) -> Any:
        schema = self._resolved(schema)
        if depth > MAX_DEPTH:
            return None
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._choice(schema["enum"], key)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        match str(kind).lower():
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, key, depth)
            case "integer":
                return int(_within(schema, self._number(key)))
            case "number":
                return float(_within(schema, 0.8))
            case "boolean":
                return self._truth(key)
            case "null":
                return None
            case _:
                return self._text(schema, key)

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        for _ in range(MAX_DEPTH):
            if "$ref" in schema:
                name = str(schema["$ref"]).rsplit("/", 1)[-1]
                schema = {
                    **self.definitions.get(name, {}),
                    **{k: v for k, v in schema.items() if k != "$ref"},
                }
                continue
            options = (
                schema.get("anyOf") or schema.get("any_of") or schema.get("oneOf") or schema.get("allOf")
            )
            if not options:
                break
            chosen = next((one for one in options if str(one.get("type", "")).lower() != "null"), options[0])
            schema = {
                **{k: v for k, v in schema.items() if k not in ("anyOf", "any_of", "oneOf", "allOf")},
                **chosen,
            }
        return schema

    def _choice(self, options: list[Any], key: str) -> Any:
        by_name = {str(option).upper(): option for option in options}
        if self.verdict.word in by_name:
            return by_name[self.verdict.word]
        if "JA" in by_name:
            return by_name["JA"]
        return options[0]

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        return {
            key: self.value(inner, key, depth + 1) for key, inner in (schema.get("properties") or {}).items()
        }

    def _array(self, schema: dict[str, Any], key: str, depth: int) -> list[Any]:
        items = self._resolved(schema.get("items") or {"type": "string"})
        least = int(schema.get("minItems") or schema.get("min_items") or 0)
        most = int(schema.get("maxItems") or schema.get("max_items") or 1000)
        documents = self.material.documents
        if "properties" in items and documents and "document" in key.lower():
            writers = [replace(self, document=one, source=one.text) for one in documents]
        elif "properties" in items:
            writers = [self]
        else:
            texts = self._list_texts(key)[: max(least, min(most, USUAL_ITEMS))]
            writers = [replace(self, source=text) for text in texts]
        while writers and len(writers) < least:
            writers.append(writers[-1])
        return [
            writer.value(items, "point" if writer is not self else key, depth + 1)
            for writer in writers[:most]
        ]

    def _list_texts(self, key: str) -> list[str]:
        if re.search(r"keyword|tag|topic", key, re.IGNORECASE):
            return keywords(self.source, 5)
        return sentences(self.source) or [self.source]

    def _number(self, key: str) -> float:
        if "page" in key.lower():
            return self.document.page_count if self.document else 1
        return 1

    def _truth(self, key: str) -> bool:
        name = key.lower()
        if re.search(r"spoil|reveal|result|leak", name):
            spoiled = _SCORE.search(self.material.whole) is not None
            return not spoiled if re.search(r"free|without|^no", name) else spoiled
        if re.search(r"safe|ok|clean|valid|pass", name) and teams(self.material.whole):
            return _SCORE.search(self.material.whole) is None
        return self.verdict.word == "YES"

    def _text(self, schema: dict[str, Any], key: str) -> str:
        text = self._words(str(schema.get("format") or ""), key.lower())
        most = schema.get("maxLength") or schema.get("max_length")
        least = int(schema.get("minLength") or schema.get("min_length") or 0)
        if most and len(text) > int(most):
            text = text[: int(most) - 1] + "…" if int(most) > 1 else text[: int(most)]
        while 0 < len(text) < least:
            text = (text + text)[: max(least, len(text))]
        return text

    def _words(self, style: str, key: str) -> str:
        whole = self.material.whole
        if style or re.search(r"date|issued|published", key):
            found = _DATE.search(self.source) or _DATE.search(whole)
            day = f"{found[1]}-{int(found[2]):02d}-{int(found[3]):02d}" if found else ""
            return f"{day or '2026-01-01'}T00:00:00Z" if style == "date-time" else day
        if re.search(r"reason|why|rationale|criteri", key):
            return self.verdict.reason
        if re.search(r"title|headline|name$|heading", key):
            first = (self.document.text.strip().splitlines() or [""])[0] if self.document else ""
            return first or self.material.title
        if re.search(r"author|issuer|publisher|department|organi[sz]ation|office", key):
            found = re.search(r"総務省|[一-龥]{2,8}(?:省|庁|審議会|委員会)", whole)
            return found[0] if found else "総務省"
        if "lang" in key:
            return "ja"
        if re.search(r"omit|left_out|leave|redundan|unneed|unnecess|drop", key):
            return "会議の日程や問合せ先など、内容の理解に要しない記述は省くことができる。"
        if re.search(r"missed|missing|lack|overlooked|gap", key):
            return "最初の要約で触れていない点：" + extract(self.source, NOTE_LENGTH)
        if re.search(r"final|post|toot", key):
            return extract(self.source, FINAL_LENGTH)
        if re.search(r"first|initial|draft|detail|preview|guide", key):
            return extract(self.source, LONG_LENGTH)
        if re.search(r"summary|abstract|overview|text|body|content", key):
            return extract(self.source, SUMMARY_LENGTH)
        return extract(self.source, NOTE_LENGTH)


def _within(schema: dict[str, Any], value: float) -> float:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        value = max(value, low)
    if high is not None:
        value = min(value, high)
    return value
