"""PDFs for tests: as large as wanted, and still readable."""

from __future__ import annotations

from io import BytesIO

from pypdf import PdfReader, PdfWriter

from sandbox.pdf import make_pdf


def large_pdf(title: str, paragraphs: list[str], extra_bytes: int) -> bytes:
    """A readable PDF with an attachment of so many bytes."""
    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf(title, paragraphs))))
    writer.add_attachment("padding.bin", b"\xa5" * extra_bytes)
    out = BytesIO()
    writer.write(out)
    return out.getvalue()
