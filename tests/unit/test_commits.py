"""What follows from a Delta log alone: which commits make a slice's content, what it holds, whether it is held."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit, Lake, commits
from lineage_assets.lineage.content import blocking_failures, by_slice, held_ranges, held_slices, newest_by_slice
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TopicInput

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def record(
    kind: str = "replace",
    slice: str | None = "10",
    ranges: dict[int, OffsetRange] | None = None,
    topic_id: str = "t1",
    checks: Sequence[CheckOutcome] = (),
) -> CommitRecord:
    topic = TopicInput("clicks", "local", topic_id, ranges or {})
    return CommitRecord(
        asset="raw/clicks", env="dev", kind=kind, slice=slice, inputs=(topic,), counts={}, reasons={}, schema="",
        contract="", code="", run="r", written_at=AT, checks=tuple(checks),
    )  # fmt: skip


def log(*told: CommitRecord | None) -> list[Commit]:
    """Commits in the order they were made, as a log gives them: newest first."""
    return [Commit(version, 0, "WRITE", one) for version, one in enumerate(told)][::-1]


def versions(entries: Sequence[tuple[Commit, CommitRecord]]) -> list[int]:
    return [commit.version for commit, _ in entries]


def test_a_replacement_ends_what_was_before_and_appends_add_to_it() -> None:
    history = log(record(), record("append"), record(), record("append"), record("append"))
    assert versions(by_slice(history)["10"]) == [4, 3, 2]


def test_slices_have_lists_of_their_own() -> None:
    history = log(record(slice="10"), record(slice="11"), record(slice="10"), record(slice=None))
    found = by_slice(history)
    assert {key: versions(entries) for key, entries in found.items()} == {"10": [2], "11": [1], None: [3]}
    assert {key: commit.version for key, (commit, _) in newest_by_slice(history).items()} == {"10": 2, "11": 1, None: 3}


@pytest.mark.parametrize("kind", ["create", "schema", "compact"])
def test_commits_that_leave_rows_alone_are_no_content(kind: str) -> None:
    assert versions(by_slice(log(record(), record(kind)))["10"]) == [0]
    assert by_slice(log(record(kind, slice=None))) == {}


@pytest.mark.parametrize("kind", ["delete", "erase"])
def test_removals_are_part_of_the_content_that_they_left(kind: str) -> None:
    assert versions(by_slice(log(record(), record(kind)))["10"]) == [1, 0]


def test_a_foreign_commit_is_no_content() -> None:
    assert versions(by_slice(log(record(), None))["10"]) == [0]


def test_what_a_slice_holds_is_the_union_of_its_content_for_one_topic_id() -> None:
    history = log(
        record(ranges={0: OffsetRange(0, 90)}),
        record(ranges={0: OffsetRange(0, 10), 1: OffsetRange(3, 3)}),
        record("append", ranges={0: OffsetRange(10, 12), 2: OffsetRange(0, 5)}),
    )
    held = held_ranges(by_slice(history)["10"], "t1")
    assert {p: r for p, r in held.items() if r.span} == {0: OffsetRange(0, 12), 2: OffsetRange(0, 5)}
    assert held_ranges(by_slice(history)["10"], "t2") == {}


def outcome(name: str, *, passed: bool = False, severity: str = "ERROR", blocking: bool = True) -> CheckOutcome:
    return CheckOutcome(name, passed, severity, 0 if passed else 1, 10, (), blocking)  # type: ignore[arg-type]


def test_only_a_failed_blocking_error_holds_a_slice() -> None:
    harmless = [
        outcome("passed", passed=True),
        outcome("warned", severity="WARN"),
        outcome("told", blocking=False),
    ]
    assert blocking_failures(record(checks=harmless)) == []
    assert blocking_failures(record(checks=[*harmless, outcome("a"), outcome("b")])) == ["a", "b"]


def test_the_newest_record_says_whether_a_slice_is_held() -> None:
    bad, good = record(checks=[outcome("a"), outcome("b")]), record()
    assert held_slices(newest_by_slice(log(bad))) == {"10": "a, b"}
    assert held_slices(newest_by_slice(log(bad, good))) == {}
    assert held_slices(newest_by_slice(log(good, bad, record(slice="11")))) == {"10": "a, b"}
    assert held_slices(newest_by_slice(log(record(slice=None, checks=[outcome("a")])))) == {}


def test_a_log_is_read_newest_first_with_foreign_commits_without_a_record(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import CommitProperties, write_deltalake

    lake = Lake(str(tmp_path))
    assert commits(lake, "raw/clicks") == []
    rows, path = pa.table({"a": [1]}), lake.path("raw/clicks")
    ours = record(ranges={0: OffsetRange(0, 1)})
    properties = CommitProperties(custom_metadata={"userMetadata": records.to_json(ours)})
    write_deltalake(path, rows, commit_properties=properties)
    write_deltalake(path, rows, mode="append")
    write_deltalake(
        path, rows, mode="append", commit_properties=CommitProperties(custom_metadata={"userMetadata": "by hand"})
    )

    found = commits(lake, "raw/clicks")

    assert [(commit.version, commit.record) for commit in found] == [(2, None), (1, None), (0, ours)]
    assert [commit.version for commit in commits(lake, "raw/clicks", 1)] == [2]
