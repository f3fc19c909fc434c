from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.admin.differences import MATCHED_LINES, Kind, difference


def marked(old: str, new: str) -> list[str]:
    return [f"{line.kind}:{line.text or line.count}" for line in difference(old, new)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a", "a", []),
        ("a\nb\nc", "a\nx\nc", ["same:a", "removed:b", "added:x", "same:c"]),
        ("a", "a\u200b", ["removed:a", "added:a[U+200B]"]),
        ("a\u200b", "a[U+200B]", ["removed:a[U+200B]", "added:a[U+200B]"]),
        ("a\nb", "a\r\nb", ["removed:a", "removed:b", "added:a", "added:b"]),
        (
            "1\n2\n3\n4\n5\nx",
            "1\n2\n3\n4\n5\ny",
            ["gap:2", "same:3", "same:4", "same:5", "removed:x", "added:y"],
        ),
        ("x\n1\n2\n3\n4", "y\n1\n2\n3\n4", ["removed:x", "added:y", "same:1", "same:2", "same:3", "gap:1"]),
    ],
)
def test_what_changed_is_shown(old: str, new: str, expected: list[str]) -> None:
    assert marked(old, new) == expected


def test_a_long_text_is_shown_whole_rather_than_matched() -> None:
    old, new = "\n".join("ab" * 3000), "\n".join("ba" * 3000)
    lines = difference(old, new)
    assert len(lines) > 2 * MATCHED_LINES
    assert {line.kind for line in lines} <= {Kind.REMOVED, Kind.ADDED, Kind.SAME, Kind.GAP}


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_no_changed_line_is_left_out(old: list[str], new: list[str]) -> None:
    lines = difference("\n".join(old), "\n".join(new))
    if old == new:
        assert lines == []
        return
    left_out = sum(line.count for line in lines if line.kind is Kind.GAP)
    of_old = [line for line in lines if line.kind in (Kind.SAME, Kind.REMOVED)]
    of_new = [line for line in lines if line.kind in (Kind.SAME, Kind.ADDED)]
    assert len(of_old) + left_out == max(1, len(old))
    assert len(of_new) + left_out == max(1, len(new))
    assert any(line.kind in (Kind.ADDED, Kind.REMOVED) for line in lines)
