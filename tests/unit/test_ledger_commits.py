"""The ledger's commit records: each version of each table once, read back whole or by what is asked for."""

from __future__ import annotations

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake, commits
from lineage_assets.lineage.ledger import commit_records as ledger
from tests.unit.written import ELEVEN, TEN, Written, record

RAW = "raw/clicks"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


@pytest.fixture
def table(lake: Lake) -> Written:
    return Written(lake)


def keep(lake: Lake, first: int = 0, asset: str = RAW) -> int:
    log = ledger.read_log(lake, asset, first)
    assert log is not None
    return ledger.add_entries(lake, {asset: log.entries})


def test_no_table_has_no_log_and_an_empty_ledger_no_entries(lake: Lake) -> None:
    assert ledger.read_log(lake, RAW) is None
    assert ledger.spans(lake, RAW) == {}
    assert ledger.entries(lake, RAW) == []
    assert ledger.assets(lake) == []


def test_what_a_log_says_comes_back_from_the_ledger_word_for_word(lake: Lake, table: Written) -> None:
    table.append(0, 10, seconds=1)
    table.commit(None, seconds=2)
    text = records.to_json(record(ranges={0: (10, 12)}))[:-1] + ',"new_field":1}'
    table.commit(None, seconds=3, userMetadata=text)
    assert keep(lake) == 4

    found = ledger.entries(lake, RAW, table.id)

    assert [one.commit() for one in found] == commits(lake, RAW)[::-1]
    assert found[3].text == text, "a field that this version does not know is lost"
    assert [(one.kind, one.slice, one.foreign) for one in found[1:]] == [
        ("append", TEN, False),
        (None, None, True),
        ("append", TEN, False),
    ]


def test_adding_again_adds_nothing_and_makes_no_commit(lake: Lake, table: Written) -> None:
    table.append(0, 10)
    assert keep(lake) == 2
    version = commits(lake, ledger.COMMITS)[0].version
    assert keep(lake) == 0
    assert commits(lake, ledger.COMMITS)[0].version == version
    table.append(10, 20)
    assert keep(lake) == 1
    assert ledger.spans(lake, RAW) == {table.id: [(0, 3)]}


def test_only_the_holes_are_filled(lake: Lake, table: Written) -> None:
    for number in range(6):
        table.append(number, number + 1)
    log = ledger.read_log(lake, RAW)
    assert log is not None
    ledger.add_entries(lake, {RAW: [log.entries[version] for version in (1, 4, 5)]})
    assert ledger.spans(lake, RAW) == {table.id: [(1, 2), (4, 6)]}
    assert ledger.holes([(1, 2), (4, 6)]) == [(0, 1), (2, 4)]
    assert keep(lake) == 4
    assert ledger.spans(lake, RAW) == {table.id: [(0, 7)]}
    assert [one.version for one in ledger.entries(lake, RAW)] == list(range(7))


def test_writers_at_the_same_time_add_each_version_once(lake: Lake, table: Written) -> None:
    for number in range(5):
        table.append(number, number + 1)
    with ThreadPoolExecutor(6) as pool:
        added = list(pool.map(lambda _: keep(lake), range(6)))
    assert sum(added) == 6
    assert [one.version for one in ledger.entries(lake, RAW)] == list(range(6))


def test_a_table_that_was_made_again_is_another_one(lake: Lake, table: Written) -> None:
    table.append(0, 10)
    keep(lake)
    shutil.rmtree(lake.path(RAW))
    again = Written(lake)
    keep(lake)
    assert ledger.spans(lake, RAW) == {table.id: [(0, 2)], again.id: [(0, 1)]}
    assert [one.version for one in ledger.entries(lake, RAW, table.id)] == [0, 1]
    assert ledger.table_id_of(lake, RAW) == again.id


def test_two_tables_of_one_name_in_one_batch_are_told_apart(lake: Lake, table: Written) -> None:
    table.append(0, 10, seconds=1)
    old = ledger.read_log(lake, RAW)
    shutil.rmtree(lake.path(RAW))
    again = Written(lake)
    again.append(0, 5, seconds=2)
    new = ledger.read_log(lake, RAW)
    assert old is not None and new is not None
    ledger.add_entries(lake, {RAW: [*old.entries, *new.entries]})
    assert ledger.spans(lake, RAW) == {table.id: [(0, 2)], again.id: [(0, 2)]}
    assert ledger.newest_table(lake, RAW) == again.id


def test_reading_by_version_and_by_slice(lake: Lake, table: Written) -> None:
    table.append(0, 10)
    table.append(10, 20, slice=ELEVEN)
    table.append(20, 30)
    table.restore(to=2)
    keep(lake)
    other = Written(lake, "silver/clicks")
    other.append(0, 3)
    keep(lake, asset="silver/clicks")

    def read(**wanted: object) -> list[int]:
        return [one.version for one in ledger.entries(lake, RAW, table.id, **wanted)]  # type: ignore[arg-type]

    assert read(first=3) == [3, 4]
    assert read(first=2, last=2) == [2]
    assert read(of_slice=TEN) == [1, 3, 4], "a RESTORE belongs to every slice"
    assert [one.text for one in ledger.entries(lake, RAW, texts=False)] == [None] * 5
    assert read(foreign_only=True) == [4]
    assert ledger.assets(lake) == [RAW, "silver/clicks"]


def test_a_day_is_a_partition_and_the_utc_day_of_the_commit(lake: Lake, table: Written) -> None:
    table.append(0, 1, seconds=13 * 3600 + 3599)
    table.append(1, 2, seconds=14 * 3600)
    keep(lake, first=1)
    days = {path.parent.name for path in Path(lake.path(ledger.COMMITS)).glob("date=*/*")}
    assert days == {"date=2026-03-01", "date=2026-03-02"}


def test_a_long_backlog_is_read_in_pieces(lake: Lake, table: Written) -> None:
    for number in range(7):
        table.append(number, number + 1, seconds=number)
    whole = ledger.read_log(lake, RAW)
    assert whole is not None
    pieces, first = [], 0
    while (log := ledger.read_log(lake, RAW, first, at_most=3)) is not None and log.entries:
        assert len(log.entries) <= 3 and log.newest == 7
        pieces += log.entries
        first = log.entries[-1].version + 1
    assert pieces == list(whole.entries)


def test_a_log_that_was_shortened_begins_where_it_begins(lake: Lake, table: Written) -> None:
    for number in range(8):
        table.append(number, number + 1)
    table.clean(below=5)
    for at_most in (100, 2):
        log = ledger.read_log(lake, RAW, 2, at_most)
        assert log is not None
        assert [one.version for one in log.entries] == [5, 6, 7, 8][:at_most]


def test_a_record_of_a_later_version_is_refused_by_name(lake: Lake, table: Written) -> None:
    document = json.loads(records.to_json(record()))
    table.commit(None, userMetadata=json.dumps({**document, "v": 99}))
    with pytest.raises(records.UnknownRecordVersion, match="version 99"):
        ledger.read_log(lake, RAW)


@given(st.sets(st.integers(0, 40)))
def test_spans_hold_what_they_were_made_of(versions: set[int]) -> None:
    held = ledger.of_versions(versions)
    assert {version for start, end in held for version in range(start, end)} == versions
    assert all(a[1] < b[0] for a, b in itertools.pairwise(held))
    assert ledger.parse_spans(ledger.spans_text(held)) == held
    missing = {version for start, end in ledger.holes(held) for version in range(start, end)}
    assert missing == set(range(max(versions, default=-1) + 1)) - versions
