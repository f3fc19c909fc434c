"""Every text of ours is there in Japanese, complete and with its placeholders."""

from __future__ import annotations

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.utils.functional import Promise

FOLDER = Path(__file__).resolve().parent.parent / "locale" / "ja" / "LC_MESSAGES"
LINE = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?)? ?(".*")')
PLACEHOLDER = re.compile(r"%\(\w+\)[.\d]*[sdf]")


def entries() -> list[dict[str, str]]:
    """The blocks of the file as plain dicts; ``flags`` holds the comment with the flags."""
    found: list[dict[str, str]] = []
    for block in (FOLDER / "django.po").read_text(encoding="utf-8").split("\n\n"):
        entry = {"flags": ""}
        field = ""
        for line in block.splitlines():
            if line.startswith("#"):
                entry["flags"] += line if line.startswith("#,") else ""
                continue
            match = LINE.fullmatch(line)
            assert match, line
            field = match[1] or field
            entry[field] = entry.get(field, "") + ast.literal_eval(match[2])
        if entry.get("msgid"):
            found.append(entry)
    return found


def translation(entry: dict[str, str]) -> str:
    return entry.get("msgstr", "") or entry.get("msgstr[0]", "")


def test_nothing_is_missing_or_a_guess() -> None:
    rows = entries()
    assert len(rows) > 500
    assert [row["msgid"] for row in rows if not translation(row)] == []
    assert [row["msgid"] for row in rows if "fuzzy" in row["flags"]] == []


def test_placeholders_are_the_same() -> None:
    for row in entries():
        wanted, given = set(PLACEHOLDER.findall(row["msgid"])), set(PLACEHOLDER.findall(translation(row)))
        assert wanted == given, row["msgid"]


def test_the_compiled_file_is_up_to_date() -> None:
    with (FOLDER / "django.mo").open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    for row in entries():
        if "msgid_plural" in row:
            assert catalogue.ngettext(row["msgid"], row["msgid_plural"], 2) == translation(row)
        else:
            assert catalogue.gettext(row["msgid"]) == translation(row)


@pytest.mark.django_db
def test_a_page_in_japanese_has_none_of_our_english(client) -> None:
    text = client.get("/nowhere", headers={"accept-language": "ja"}).content.decode()
    assert "ページがありません" in text
    assert "There is no such page" not in text


def test_every_column_and_field_of_our_pages_has_a_name_that_can_be_translated() -> None:
    """A field without a name of ours is shown under its English one, in either language."""
    bare = []
    for model, page in admin.site._registry.items():
        if model._meta.app_label not in {"broker", "tasks", "feeds", "fixtures"}:
            continue
        names = [*page.list_display, *(page.readonly_fields or ()), *(page.fields or ())]
        if page.fieldsets:
            names += flatten_fieldsets(page.fieldsets)
        fields = {field.name: field for field in model._meta.fields if not field.primary_key}
        bare += [
            f"{model._meta.label}.{name}"
            for name in dict.fromkeys(map(str, names))
            if name in fields and not isinstance(fields[name].verbose_name, Promise)
        ]
    assert bare == []
