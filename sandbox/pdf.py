"""A small PDF writer for the sandbox's documents: real files whose Japanese text can be extracted again.

The font is one of Adobe's standard Japanese faces by name (not embedded), addressed in UTF-16; a ToUnicode
map says what each code means, so that an extractor needs no font at all.
"""

from io import BytesIO

from pypdf import PdfReader, PdfWriter

_PAGE_WIDTH, _PAGE_HEIGHT = 595, 842
_MARGIN = 62
_TEXT_SIZE, _TITLE_SIZE, _LEADING = 11, 15, 18
_COLUMNS, _TITLE_COLUMNS, _LINES_PER_PAGE = 42, 30, 38
_CODES_PER_BLOCK = 100  # the most that one bfchar section of a CMap may hold


def make_pdf(title: str, paragraphs: list[str]) -> bytes:
    """A PDF of as many A4 pages as the text needs."""
    lines: list[tuple[int, str]] = [(_TITLE_SIZE, part) for part in _wrap(title, _TITLE_COLUMNS)]
    for paragraph in paragraphs:
        lines.append((_TEXT_SIZE, ""))
        lines.extend((_TEXT_SIZE, part) for part in _wrap(paragraph, _COLUMNS))
    pages = [lines[start : start + _LINES_PER_PAGE] for start in range(0, len(lines), _LINES_PER_PAGE)]
    used = sorted({character for _, line in lines for character in line if ord(character) < 0x10000})

    kids = " ".join(f"{6 + 2 * index} 0 R" for index in range(len(pages)))
    page_numbers = [6 + 2 * index for index in range(len(pages))]
    objects: dict[int, bytes] = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        3: b"<< /Type /Font /Subtype /Type0 /BaseFont /HeiseiKakuGo-W5-UniJIS-UTF16-H"
        b" /Encoding /UniJIS-UTF16-H /DescendantFonts [4 0 R] /ToUnicode 5 0 R >>",
        4: b"<< /Type /Font /Subtype /CIDFontType0 /BaseFont /HeiseiKakuGo-W5 /DW 1000"
        b" /CIDSystemInfo << /Registry (Adobe) /Ordering (Japan1) /Supplement 5 >>"
        b" /FontDescriptor << /Type /FontDescriptor /FontName /HeiseiKakuGo-W5 /Flags 4 /ItalicAngle 0"
        b" /FontBBox [-92 -250 1010 922] /Ascent 752 /Descent -221 /CapHeight 737 /StemV 114 >> >>",
        5: _stream(_to_unicode(used)),
    }
    for number, page in zip(page_numbers, pages, strict=True):
        objects[number] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {_PAGE_WIDTH} {_PAGE_HEIGHT}]"
            f" /Resources << /Font << /F1 3 0 R >> >> /Contents {number + 1} 0 R >>"
        ).encode()
        objects[number + 1] = _stream(_page_content(page))
    return _assemble(objects)


def encrypted_pdf() -> bytes:
    """A PDF that opens with a password only."""
    writer = PdfWriter(
        clone_from=PdfReader(BytesIO(make_pdf("閲覧制限資料", ["この資料は閲覧に許可が必要です。"])))
    )
    writer.encrypt("himitsu", algorithm="RC4-128")
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


def damaged_pdf() -> bytes:
    """A file that begins like a PDF and breaks off: no page can be read from it."""
    return make_pdf("破損した資料", ["途中で切れています。"])[:120] + b"\x00\xff\xfe damaged " * 20


def _wrap(text: str, columns: int) -> list[str]:
    return [text[start : start + columns] for start in range(0, len(text), columns)] or [""]


def _page_content(lines: list[tuple[int, str]]) -> bytes:
    parts = ["BT", f"{_MARGIN} {_PAGE_HEIGHT - _MARGIN} Td", f"{_LEADING} TL"]
    for size, line in lines:
        codes = "".join(character for character in line if ord(character) < 0x10000).encode("utf-16-be").hex()
        parts.append(f"/F1 {size} Tf <{codes}> Tj T*")
    parts.append("ET")
    return "\n".join(parts).encode()


def _to_unicode(characters: list[str]) -> bytes:
    parts = [
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap",
        "/CMapName /SandboxText def /CMapType 2 def",
        "1 begincodespacerange <0000> <FFFF> endcodespacerange",
    ]
    for start in range(0, len(characters), _CODES_PER_BLOCK):
        block = characters[start : start + _CODES_PER_BLOCK]
        parts.append(f"{len(block)} beginbfchar")
        parts.extend(f"<{ord(character):04X}> <{ord(character):04X}>" for character in block)
        parts.append("endbfchar")
    parts.append("endcmap end end")
    return "\n".join(parts).encode()


def _stream(content: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)


def _assemble(objects: dict[int, bytes]) -> bytes:
    out = BytesIO()
    out.write(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
    offsets: dict[int, int] = {}
    for number in sorted(objects):
        offsets[number] = out.tell()
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, objects[number]))
    table_at = out.tell()
    size = max(objects) + 1
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % size)
    for number in range(1, size):
        out.write(b"%010d 00000 n \n" % offsets[number])
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, table_at))
    return out.getvalue()
