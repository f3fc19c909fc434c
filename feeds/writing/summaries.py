"""Screening and summarising behind one interface: Gemini, or the offline extractor.

Pages and documents are text of others: the model gets it as fenced data, and its answer is checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, get_args

from pydantic import BaseModel, field_validator, model_validator

from broker_project.lib.errors import BadAnswer, Missing, Rejected, TooLarge
from broker_project.lib.gemini import SYSTEM as GEMINI
from broker_project.lib.gemini import Gemini, Generated
from broker_project.lib.hidden_text import without_hidden
from broker_project.lib.logs import get_logger
from broker_project.lib.prompt_fences import fence
from broker_project.lib.redaction import redact
from feeds.models import FeedSettings, ItemDetail
from feeds.prompt_texts import SYSTEM_PROMPT, filled
from feeds.reading.documents import Material, ReadDocument
from feeds.reading.pages import Page
from feeds.writing.extractive import extract, is_japanese
from feeds.writing.posting import LINK, MENTION, shortened, tidy, without_foreign_links, without_mentions

log = get_logger(__name__)

MILLION = Decimal(1_000_000)
SHORTEST_SUMMARY = 5
TOO_LONG_FACTOR = 10  # a summary up to this factor is shortened; a longer one is not what was asked for
LEAST_JAPANESE = 0.1  # of the letters; names and units are often Latin
SCREENED_CHARACTERS = 8000
NOTES_CHARACTERS = 2000
FILES_BYTES = 50 * 2**20  # of all files of a request
FILE_PAGES = 1000

WORD_ENDS = " \t\r\n.。!*`\"'「」"

MATERIAL = "material"  # the fence's name; the system prompt names the whole mark

Verdict = Literal["YES", "NO", "WAIT"]


@dataclass(frozen=True)
class Usage:
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)


@dataclass(frozen=True)
class Screened:
    verdict: Verdict
    reason: str
    usage: Usage


@dataclass(frozen=True)
class Summarised:
    summary: str
    source: ItemDetail.SummarySource
    usage: Usage
    notes: dict[str, Any] = field(default_factory=dict)


class Summariser(Protocol):
    def screen(self, title: str, page: Page) -> Screened:
        """Is it worth a summary? Raises :class:`OutsideError`."""

    def summarise(self, material: Material) -> Summarised:
        """About so many characters as the settings say. Raises :class:`OutsideError`."""


# What Gemini is asked to answer. The schema that is sent asks for every field, but a verdict or a summary is not
# discarded because a remark is missing: it is empty then.


class LenientAnswer(BaseModel):
    """Fields with a default in ``EMPTY`` may be missing or null."""

    EMPTY: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def fill_remarks(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return cls.EMPTY | {name: value for name, value in given.items() if value is not None}


class ScreeningAnswer(LenientAnswer):
    verdict: Verdict
    reason: str
    EMPTY = {"reason": ""}

    # Accept a verdict in any supported JSON shape: the word alone, under another name, in small letters.
    @model_validator(mode="before")
    @classmethod
    def find_verdict(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"verdict": given.strip(WORD_ENDS)}
        if isinstance(given, dict) and "verdict" not in given:
            words = [value for value in given.values() if str(value).strip().upper() in get_args(Verdict)]
            given = {**given, "verdict": words[0]} if len(words) == 1 else given
        return given

    @field_validator("verdict", mode="before")
    @classmethod
    def ignore_case(cls, given: Any) -> Any:
        return given.strip().upper() if isinstance(given, str) else given


class DocumentAnswer(LenientAnswer):
    title: str
    issuer: str
    date: str
    key_points: list[str]
    summary: str
    EMPTY = {"title": "", "issuer": "", "date": "", "key_points": [], "summary": ""}


class SummaryAnswer(LenientAnswer):
    documents: list[DocumentAnswer]
    first_summary: str
    can_be_left_out: str
    missed_points: str
    final_summary: str
    EMPTY = {"documents": [], "first_summary": "", "can_be_left_out": "", "missed_points": ""}


class GeminiSummariser:
    def __init__(self, gemini: Gemini, options: FeedSettings) -> None:
        self.gemini = gemini
        self.options = options

    def screen(self, title: str, page: Page) -> Screened:
        options = self.options
        listed = "\n".join(f"添付文書: {document.title}" for document in page.documents[:50])
        fenced = fence(MATERIAL, f"タイトル: {title}\n{page.text[:SCREENED_CHARACTERS]}\n{listed}")
        generated = self.gemini.generate(
            model=options.screening_model or self.gemini.config.screening_model,
            prompt=filled(options.screening_prompt, {"criteria": options.criteria, "material": fenced.text}),
            schema=ScreeningAnswer,
            system=SYSTEM_PROMPT.format(tag=fenced.tag),
        )
        usage = usage_of(generated, options.screening_input_price, options.screening_output_price)
        return Screened(generated.value.verdict, tidy(without_hidden(generated.value.reason))[:500], usage)

    def summarise(self, material: Material) -> Summarised:
        options = self.options
        as_files, as_text = divided(material.documents) if options.sends_files else ([], material.documents)
        try:
            generated = self._generate_summary(material, as_files, as_text)
        except (Missing, Rejected, TooLarge) as error:
            # Not every service accepts files, or files of this size; their text may still be accepted.
            # An error without an HTTP status means that the material itself was refused.
            if not as_files or error.status is None:
                raise
            log.warning("files refused, sending their text", error=redact(str(error), 200))
            generated = self._generate_summary(material, [], material.documents)
        answer = generated.value
        return Summarised(
            checked_summary(answer.final_summary, material.source_text, options.summary_characters),
            ItemDetail.SummarySource.GEMINI,
            usage_of(generated, options.summary_input_price, options.summary_output_price),
            notes_of(answer),
        )

    def _generate_summary(
        self, material: Material, as_files: Sequence[ReadDocument], as_text: Sequence[ReadDocument]
    ) -> Generated[SummaryAnswer]:
        options = self.options
        text = f"タイトル: {material.title}\n{material.page.text}"
        text += "".join(f"\n\n添付文書: {document.title}\n{document.text}" for document in as_text)
        fenced = fence(MATERIAL, text)
        characters = str(options.summary_characters)
        return self.gemini.generate(
            model=options.summary_model or self.gemini.config.summary_model,
            prompt=filled(options.summary_prompt, {"characters": characters, "material": fenced.text}),
            schema=SummaryAnswer,
            files=[document.path for document in as_files],
            system=SYSTEM_PROMPT.format(tag=fenced.tag),
        )


class OfflineSummariser:
    """Needs no key. Its summaries are marked as extracts wherever they are shown."""

    MODEL = "offline extract"
    NOT_READY = re.compile(r"準備中|作成中|後日掲載|掲載予定|coming soon|under construction", re.IGNORECASE)
    SHORT_PAGE = 300

    def __init__(self, options: FeedSettings) -> None:
        self.options = options

    def screen(self, title: str, page: Page) -> Screened:
        usage = Usage(self.MODEL)
        if not page.documents and len(page.text) < self.SHORT_PAGE and self.NOT_READY.search(page.text):
            return Screened("WAIT", "準備中と記載されているため。", usage)
        return Screened("YES", "規則による判定: 本文または文書があるため。", usage)

    def summarise(self, material: Material) -> Summarised:
        texts = [material.page.text, *(document.text for document in material.documents)]
        body = "\n".join(text for text in texts if text.strip())
        summary = extract(body, self.options.summary_characters, material.title)
        summary = tidy(without_mentions(LINK.sub("", without_hidden(summary))))
        return Summarised(summary or material.title, ItemDetail.SummarySource.OFFLINE, Usage(self.MODEL))


def choose_summariser(gemini: Gemini, options: FeedSettings) -> Summariser:
    return GeminiSummariser(gemini, options) if gemini.is_available else OfflineSummariser(options)


def divided(documents: Sequence[ReadDocument]) -> tuple[list[ReadDocument], list[ReadDocument]]:
    """Documents for Gemini to read as files, and those too long or too large for that, to read as text."""
    as_files: list[ReadDocument] = []
    as_text: list[ReadDocument] = []
    room = FILES_BYTES
    for document in documents:
        if document.pages <= FILE_PAGES and document.size <= room:
            as_files.append(document)
            room -= document.size
        else:
            as_text.append(document)
    return as_files, as_text


def usage_of(generated: Generated[Any], input_price: Decimal, output_price: Decimal) -> Usage:
    read, written = generated.input_tokens, generated.output_tokens
    cost = (read * Decimal(str(input_price)) + written * Decimal(str(output_price))) / MILLION
    return Usage(generated.model[:100], read, written, cost.quantize(Decimal("0.000001")))


def notes_of(answer: SummaryAnswer) -> dict[str, Any]:
    """The steps to the final summary, cut to a size that a page can show."""
    return {
        "documents": [
            {
                "title": document.title[:500],
                "issuer": document.issuer[:300],
                "date": document.date[:100],
                "key_points": [point[:500] for point in document.key_points[:10]],
                "summary": document.summary[:NOTES_CHARACTERS],
            }
            for document in answer.documents[:50]
        ],
        "first_summary": answer.first_summary[:NOTES_CHARACTERS],
        "can_be_left_out": answer.can_be_left_out[:NOTES_CHARACTERS],
        "missed_points": answer.missed_points[:NOTES_CHARACTERS],
    }


def checked_summary(text: str, source: str, characters: int) -> str:
    """The model's final summary, ready to be posted. Raises :class:`BadAnswer` if it is not what was asked for."""
    # First of all: hidden characters inside a link or a name would keep it from being found.
    text = without_hidden(text)
    if MENTION.search(text) or LINK.search(text):
        text = without_mentions(without_foreign_links(text, source))
    text = tidy(text)
    if len(text) < SHORTEST_SUMMARY:
        raise BadAnswer(GEMINI, "the summary is empty or too short")
    if len(text) > characters * TOO_LONG_FACTOR:
        raise BadAnswer(GEMINI, f"the summary has {len(text)} characters, about {characters} were asked for")
    if not is_japanese(text, LEAST_JAPANESE):
        raise BadAnswer(GEMINI, "the summary is not in Japanese")
    return shortened(text, characters * 3 // 2)
