"""Which offsets were added to a slice since a version, and when that is not all that happened to it."""

from __future__ import annotations

from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.spark.windows import appended_since
from tests.unit.written import ELEVEN, TEN, record


def log(*told: CommitRecord | None, first: int = 0) -> list[Commit]:
    return [Commit(first + number, 0, "WRITE", one) for number, one in enumerate(told)][::-1]


def append(start: int, end: int, slice: str | None = TEN, partition: int = 0) -> CommitRecord:
    return record("silver/clicks", slice=slice, ranges={partition: (start, end)})


def test_the_offsets_of_the_slices_appends_from_a_version_on_joined() -> None:
    history = log(append(0, 5), append(5, 7), append(7, 9), append(90, 99, ELEVEN), append(3, 4, partition=1))
    assert appended_since(history, TEN, 1) == {0: [OffsetRange(5, 9)], 1: [OffsetRange(3, 4)]}
    assert appended_since(history, TEN, 4) == {1: [OffsetRange(3, 4)]}
    assert appended_since(history, TEN, 5) == {}
    assert appended_since(history, ELEVEN, 0) == {0: [OffsetRange(90, 99)]}


def test_offsets_that_do_not_meet_stay_apart() -> None:
    assert appended_since(log(append(0, 5), append(8, 9), append(9, 9)), TEN, 0) == {
        0: [OffsetRange(0, 5), OffsetRange(8, 9)]
    }


def test_compaction_and_new_columns_change_no_row() -> None:
    compact = record("silver/clicks", "compact", stated={"through": 0})
    column = record("silver/clicks", "schema", None)
    assert appended_since(log(append(0, 5), compact, column, append(5, 6)), TEN, 1) == {0: [OffsetRange(5, 6)]}


def test_anything_else_that_happened_to_the_slice_makes_it_none() -> None:
    for kind in ("replace", "delete", "erase", "restore"):
        assert appended_since(log(append(0, 5), record("silver/clicks", kind), append(5, 6)), TEN, 1) is None
    assert appended_since(log(append(0, 5), record("silver/clicks", "delete", None)), TEN, 1) is None, "of all slices"
    assert appended_since(log(append(0, 5), None, append(5, 6)), TEN, 1) is None, "foreign, or a RESTORE"


def test_what_happened_to_other_slices_or_before_does_not_matter() -> None:
    other = record("silver/clicks", "replace", ELEVEN)
    assert appended_since(log(None, append(0, 5), other, append(5, 6)), TEN, 1) == {0: [OffsetRange(0, 6)]}


def test_a_log_that_lacks_commits_since_then_says_nothing() -> None:
    assert appended_since(log(append(5, 6), first=3), TEN, 2) is None
    assert appended_since(log(append(5, 6), first=3), TEN, 3) == {0: [OffsetRange(5, 6)]}
    assert appended_since([], TEN, 0) is None
