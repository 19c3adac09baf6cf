"""A log that was shortened and the ledger say together of every slice what the whole log said."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_assets.lineage.commits import Commit, Lake, commits
from lineage_assets.lineage.content import THROUGH, by_slice, standing
from lineage_assets.lineage.history import completed
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.spark.windows import appended_since
from tests.unit.written import ELEVEN, TEN, Written, record

RAW = "raw/clicks"
KEYS = (TEN, ELEVEN, None)


def told(history: Sequence[Commit]) -> dict[str | None, list[tuple[int, CommitRecord]]]:
    return {key: [(c.version, r) for c, r in entries] for key, entries in by_slice(history).items()}


def write(table: Written, steps: Sequence[tuple[str, int, int]]) -> None:
    """Each step is a kind of commit, a slice, and how far back a RESTORE goes."""
    at = 0
    for kind, key, back in steps:
        slice = KEYS[key]
        if kind == "foreign":
            table.commit(None)
        elif kind == "restore":
            table.restore(max(0, table.version - back))
        elif kind in ("compact", "late compact"):
            whole = by_slice(commits(table.lake, RAW)).get(slice)
            if kind == "late compact":
                table.restore(max(0, table.version - back))
            if whole:
                table.commit(record(RAW, "compact", slice, {0: (0, at)}, stated={THROUGH: whole[0][0].version}))
        else:
            table.commit(record(RAW, kind, slice, {0: (at, at + 10)}))
            at += 10


STEPS = st.tuples(
    st.sampled_from(
        ["append", "append", "append", "replace", "compact", "late compact", "restore", "foreign", "erase"]
    ),
    st.integers(0, 2),
    st.integers(1, 6),
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, min_size=2, max_size=14), kept=st.integers(1, 8))
def test_content_is_the_same_however_much_of_the_log_is_gone(steps: list[tuple[str, int, int]], kept: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        table = Written(lake)
        write(table, steps)
        whole = commits(lake, RAW)
        log = ledger.read_log(lake, RAW)
        assert log is not None
        ledger.add_entries(lake, {RAW: log.entries})

        found = completed(lake, RAW, table.id, whole[:kept])

        assert told(found) == told(whole)
        assert [one.version for one in found] == sorted({one.version for one in found}, reverse=True)
        assert [one.version for one in standing(found) if one.record is None] == [
            one.version for one in standing(whole) if one.record is None
        ]


def test_what_a_compact_record_stands_for_is_not_read_again(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    table = Written(lake)
    for step in range(20):
        table.append(step * 10, step * 10 + 10)
    table.commit(record(RAW, "compact", TEN, {0: (0, 200)}, stated={THROUGH: 20}))
    table.append(200, 210)
    table.append(0, 5, slice=ELEVEN)
    log = ledger.read_log(lake, RAW)
    assert log is not None
    ledger.add_entries(lake, {RAW: log.entries})
    whole = commits(lake, RAW)

    assert [one.version for one in completed(lake, RAW, table.id, whole[:1])] == [23, 22, 21]
    assert completed(lake, RAW, table.id, whole) == whole, "a log that reaches its beginning needs no ledger"
    assert completed(lake, RAW, "another table", whole[:1]) == whole[:1]


def test_windows_are_told_apart_only_where_every_commit_is_known(tmp_path: Path) -> None:
    """The ledger leaves out what a compact record stands for: rows that were appended there are not seen one by one."""
    lake = Lake(str(tmp_path))
    table = Written(lake)
    table.append(0, 5, slice=ELEVEN)
    for step in range(1, 10):
        table.append(step * 10, step * 10 + 10)
    table.commit(record(RAW, "compact", TEN, {0: (10, 100)}, stated={THROUGH: 10}))
    table.append(100, 110)
    log = ledger.read_log(lake, RAW)
    assert log is not None
    ledger.add_entries(lake, {RAW: log.entries})
    whole = commits(lake, RAW)
    found = completed(lake, RAW, table.id, whole[:2])
    assert [one.version for one in found] == [12, 11, 1]

    assert appended_since(whole, TEN, 8) == {0: [OffsetRange(70, 110)]}
    assert appended_since(found, TEN, 8) is None
    assert appended_since(found, TEN, 12) == {0: [OffsetRange(100, 110)]}
    assert appended_since(found, TEN, 13) == {}


def test_a_compaction_that_did_not_know_of_a_restore_stands_for_nothing(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    table = Written(lake)
    table.append(0, 10)
    table.append(10, 20)
    planned = record(RAW, "compact", TEN, {0: (0, 20)}, stated={THROUGH: 2})
    table.restore(1)
    expected = by_slice(commits(table.lake, RAW))
    table.commit(planned)
    assert by_slice(commits(table.lake, RAW)) == expected
    assert [commit.version for commit, _ in expected[TEN]] == [1]
    log = ledger.read_log(lake, RAW)
    assert log is not None
    ledger.add_entries(lake, {RAW: log.entries})
    assert by_slice(completed(lake, RAW, table.id, commits(lake, RAW)[:1])) == expected
    table.commit(record(RAW, "compact", TEN, {0: (0, 10)}, stated={THROUGH: 1}))
    assert [(one.kind, commit.version) for commit, one in by_slice(commits(table.lake, RAW))[TEN]] == [("compact", 1)]
