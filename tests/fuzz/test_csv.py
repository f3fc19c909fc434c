"""CSV bytes → rows: refused as a whole or read as a whole, and what was written is read again."""

from __future__ import annotations

import csv
import datetime as dt
import io

from hypothesis import example, given
from hypothesis import strategies as st

from broker_project.console.export import cell
from fixtures.csv.parsing import TableRefused, parse_table
from fixtures.csv.table import TableRow, defuse, format_table, merge_row, restore
from fixtures.lifecycle import Status

MOMENTS = st.datetimes(min_value=dt.datetime(2000, 1, 1), max_value=dt.datetime(2099, 1, 1)).map(
    lambda moment: moment.replace(microsecond=0).isoformat() + "+09:00"
)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", fullmatch=True)
# No NUL, no half of a surrogate pair. Spaces at the ends do not survive a spreadsheet, CR becomes LF.
ERRORS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=60).map(
    str.strip
)
ROWS = st.builds(
    TableRow,
    fixture_id=IDS,
    kickoff_jst=MOMENTS,
    status=st.sampled_from(list(Status)),
    first_attempt_at=st.one_of(st.none(), MOMENTS),
    last_attempt_at=st.one_of(st.none(), MOMENTS),
    attempts=st.integers(0, 9999),
    error_message=ERRORS,
)
TABLES = st.lists(ROWS, max_size=8, unique_by=lambda row: row.fixture_id)


@given(TABLES)
def test_what_was_written_is_read(rows: list[TableRow]) -> None:
    data = format_table(rows)
    read = parse_table(data)
    assert sorted(read, key=lambda row: row.fixture_id) == sorted(rows, key=lambda row: row.fixture_id)
    assert format_table(read) == data


@given(
    st.one_of(
        st.binary(max_size=300),
        st.tuples(TABLES, st.binary(max_size=20)).map(lambda t: format_table(t[0]) + t[1]),
    )
)
@example(b"fixture_id,kickoff_jst,status\r\n1,2026-01-01T00:00\x85,pending")
def test_any_bytes_are_a_table_or_refused_as_a_whole(data: bytes) -> None:
    try:
        rows = parse_table(data)
    except TableRefused:
        return
    assert len({row.fixture_id for row in rows}) == len(rows)
    parse_table(format_table(rows))


@given(ROWS, ROWS)
def test_merging_keeps_the_fixture_and_our_kickoff(ours: TableRow, theirs: TableRow) -> None:
    merged = merge_row(ours, theirs)
    assert merged.kickoff_jst == ours.kickoff_jst
    assert merge_row(merged, theirs) == merged


@given(TABLES, TABLES)
def test_foreign_rows_survive(ours: list[TableRow], theirs: list[TableRow]) -> None:
    """As a merge does it: theirs are read from bytes, ours laid over, all written, all read again."""
    found = {row.fixture_id: row for row in parse_table(format_table(theirs))}
    found |= {row.fixture_id: merge_row(row, found.get(row.fixture_id, row)) for row in ours}
    read = {row.fixture_id for row in parse_table(format_table(found.values()))}
    assert read == {row.fixture_id for row in [*ours, *theirs]}


@given(st.text(max_size=40))
@example("＝1+1")  # a formula in full-width signs, which Japanese spreadsheets run
@example("'=1+1")
def test_no_cell_is_a_formula(text: str) -> None:
    assert restore(defuse(text)) == text
    for written in (defuse(text), cell(text)):
        assert not str(written).startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"))


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=5))
def test_an_exported_line_stays_one_line_of_so_many_cells(values: list[str]) -> None:
    text = io.StringIO()
    csv.writer(text).writerow([cell(value) for value in values])
    rows = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
    assert len(rows) == 1
    assert len(rows[0]) == len(values)


def test_a_quoted_line_end_of_another_kind_costs_no_row() -> None:
    """Found by the round trip: written as it was, the cell's second line was read as a row without a kickoff."""
    row = TableRow("1", "2026-01-01T00:00:00+09:00", Status.FAILED, error_message="one\rtwo\r\nthree")
    (read,) = parse_table(format_table([row]))
    assert read.error_message == "one\ntwo\nthree"
