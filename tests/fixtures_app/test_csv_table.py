from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.csv.parsing import TableRefused, parse_table
from fixtures.csv.table import HEADER, TableRow, defuse, format_table, merge_row, restore
from fixtures.lifecycle import Status

HEAD = ",".join(HEADER)
ROW = TableRow(
    "1001",
    "2026-01-04T21:00:00+09:00",
    Status.FAILED,
    "2026-01-04T20:00:00+09:00",
    "2026-01-04T20:05:00+09:00",
    2,
    "API timeout",
)
AT = "2026-01-04T21:00:00+09:00"
TIMES = "2026-01-04T20:00:00+09:00,2026-01-04T20:05:00+09:00"
LINE = f"1001,2026-01-04,{AT},failed,{TIMES},2,API timeout"
PENDING = f"2026-01-04,{AT},pending,,,0,"


def with_kickoff(text: str) -> bytes:
    return f"{HEAD}\n{LINE.replace(AT, text)}".encode()


def test_the_file_as_agreed() -> None:
    later = TableRow("1002", "2026-01-05T04:00:00+09:00", Status.PENDING)
    assert format_table([ROW, later]).decode() == (
        f"{HEAD}\n1002,2026-01-05,2026-01-05T04:00:00+09:00,pending,,,0,\n{LINE}\n"
    )


def test_what_was_written_is_read() -> None:
    rows = [ROW, TableRow("7", "2026-01-05T04:00:00+09:00", Status.PENDING)]
    assert sorted(parse_table(format_table(rows)), key=lambda row: row.fixture_id) == rows


ACCEPTED = {
    "byte order mark": f"\ufeff{HEAD}\n{LINE}".encode(),
    "CRLF": f"{HEAD}\r\n{LINE}\r\n".encode(),
    "blank lines": f"{HEAD}\n\n{LINE}\n,,,,,,,\n".encode(),
    "spaces and capitals": f"{HEAD.upper()}\n{LINE.replace(',failed,', ', Failed ,')}".encode(),
    "semicolons": f"{HEAD}\n{LINE}".replace(",", ";").encode(),
    "UTC": with_kickoff("2026-01-04T12:00:00Z"),
    "no zone is Japanese time": with_kickoff("2026-01-04T21:00:00"),
    "a spreadsheet's time": with_kickoff("2026/01/04 21:00"),
    "a spreadsheet's number": f"{HEAD}\n{LINE.replace(',2,', ',2.0,')}".encode(),
    "another order, no date": (
        "status,attempts,fixture_id,kickoff_jst,error_message,first_attempt_at,last_attempt_at\n"
        f"failed,2,1001,{AT},API timeout,{TIMES}"
    ).encode(),
    "a column of somebody's own": f"{HEAD},memo\n{LINE},seen\n".encode(),
    "the same row twice": f"{HEAD}\n{LINE}\n{LINE}\n".encode(),
    "an older row of the same match": f"{HEAD}\n{LINE}\n1001,{PENDING}\n".encode(),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_hand_made_files_whose_meaning_is_clear(data: bytes) -> None:
    assert parse_table(data) == [ROW]


def test_shift_jis_from_a_spreadsheet() -> None:
    data = f"{HEAD}\n{LINE.replace('API timeout', '時間切れ')}".encode("cp932")
    assert parse_table(data)[0].error_message == "時間切れ"


def test_only_the_three_columns_that_carry_the_meaning_are_needed() -> None:
    data = b"fixture_id,kickoff_jst,status\n1,2026-01-04T21:00:00+09:00,pending"
    assert parse_table(data) == [TableRow("1", "2026-01-04T21:00:00+09:00", Status.PENDING)]


@pytest.mark.parametrize("word", ["", "None", "NaN", "nat", "NULL"])
def test_words_for_nothing_are_nothing(word: str) -> None:
    data = f"{HEAD}\n1001,2026-01-04,{AT},pending,{word},{word},{word},".encode()
    assert parse_table(data) == [TableRow("1001", AT, Status.PENDING)]


def test_columns_of_others_may_have_no_name_or_the_same() -> None:
    assert parse_table(f"{HEAD},,,note,note\n{LINE},,,a,b".encode()) == [ROW]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_table(data: bytes) -> None:
    assert parse_table(data) == []


REFUSED = {
    "no status column": (f"fixture_id,kickoff_jst\n1,{AT}".encode(), 1, "no column status"),
    "a column twice": (b"fixture_id,status,kickoff_jst,status\n", 1, "there twice"),
    "not a header at all": (b"hello\nworld", 1, "no column fixture_id"),
    "unknown status": (f"{HEAD}\n{LINE.replace(',failed,', ',done,')}".encode(), 2, "no status"),
    "impossible date": (with_kickoff("2026-01-32T21:00:00+09:00"), 2, "no date"),
    "the third line": (f"{HEAD}\n{LINE}\n1002,{PENDING.replace(AT, 'soon')}".encode(), 3, "no date"),
    "a date without a time": (with_kickoff("2026-01-04"), 2, "no date and time"),
    "no kickoff": (with_kickoff(""), 2, "kickoff_jst is empty"),
    "no id": (f"{HEAD}\n,{PENDING}".encode(), 2, "no fixture_id"),
    "a path as id": (f"{HEAD}\n../x,{PENDING}".encode(), 2, "no fixture_id"),
    "a formula as id": (f"{HEAD}\n=1+1,{PENDING}".encode(), 2, "no fixture_id"),
    "attempts in words": (f"{HEAD}\n{LINE.replace(',2,', ',two,')}".encode(), 2, "attempts"),
    "negative attempts": (f"{HEAD}\n{LINE.replace(',2,', ',-2,')}".encode(), 2, "attempts"),
    "the same match twice, neither newer": (
        f"{HEAD}\n{LINE}\n{LINE.replace('failed', 'complete')}".encode(),
        3,
        "neither is newer",
    ),
    "an open quotation mark": (f'{HEAD}\n1001,"2026'.encode(), 2, "not CSV"),
    "bytes of no text": (b"\xff\xfe\x00f\x00i", 1, ""),
}


@pytest.mark.parametrize(("data", "line", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_clear_is_refused_with_line_and_reason(data: bytes, line: int, reason: str) -> None:
    with pytest.raises(TableRefused) as refused:
        parse_table(data)
    assert refused.value.line == line
    assert reason in refused.value.reason


@pytest.mark.parametrize("text", ["=1+1", "+81", "-1", "@SUM(A1)", "\tx", "＝1+1", "'=1", "''@x"])
def test_formulas_are_defused_and_come_back(text: str) -> None:
    assert defuse(text) == f"'{text}"
    assert restore(defuse(text)) == text


def test_ordinary_text_is_left_alone() -> None:
    for text in ("API timeout", "'quoted'", "a=b", ""):
        assert defuse(text) == text == restore(text)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))))
def test_any_message_survives_a_round_trip_and_none_is_a_formula(text: str) -> None:
    message = " ".join(text.split())
    row = TableRow("1", "2026-01-04T21:00:00+09:00", Status.FAILED, None, None, 1, message)
    data = format_table([row])
    assert parse_table(data) == [row]
    cell = list(csv.reader(io.StringIO(data.decode())))[1][7]
    assert not cell.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))


def test_the_newer_attempt_wins_and_ours_if_neither_is() -> None:
    older = TableRow("1001", "2026-01-04T22:00:00+09:00", Status.PENDING)
    newer = TableRow("1001", "2026-01-04T22:00:00+09:00", Status.COMPLETE, None, "2026-01-04T20:06:00+09:00")
    same = TableRow("1001", ROW.kickoff_jst, Status.COMPLETE, None, ROW.last_attempt_at)
    assert merge_row(ROW, older) == ROW
    assert merge_row(ROW, same) == ROW
    assert merge_row(ROW, newer).status is Status.COMPLETE
    assert merge_row(ROW, newer).kickoff_jst == ROW.kickoff_jst
    assert merge_row(ROW, newer).first_attempt_at == ROW.first_attempt_at
