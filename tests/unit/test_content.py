"""What a slice holds when several commits made it: appends, replacements, compactions, restores."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.lineage.commits import Commit, Lake, Tail, commit_infos
from lineage_assets.lineage.content import (
    Content,
    RecordsMissing,
    by_slice,
    held_ranges,
    lost_in,
    newest_by_slice,
    standing,
    summary,
)
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TopicInput

KEY = "2026-03-01-10"


def record(kind: str, start: int, end: int, **more: Any) -> CommitRecord:
    topic = TopicInput("clicks", "local", "t", {0: OffsetRange(start, end)})
    ok = more.pop("ok", end - start)
    return CommitRecord(
        asset="raw/clicks", env="dev", kind=kind, slice=KEY, inputs=(topic,), counts={"ok": ok}, reasons={},  # type: ignore[arg-type]
        schema="", contract="", code="", run="r", written_at=datetime(2026, 3, 1, tzinfo=UTC), **more,
    )  # fmt: skip


def log(*entries: CommitRecord | int) -> list[Commit]:
    """Commits by their records, newest first; a number is a RESTORE to that version."""
    made = [
        Commit(v, v, "RESTORE", None, one) if isinstance(one, int) else Commit(v, v, "WRITE", one)
        for v, one in enumerate(entries)
    ]
    return made[::-1]


def held(history: list[Commit]) -> OffsetRange:
    return held_ranges(by_slice(history)[KEY], "t")[0]


def test_appends_add_up_and_a_replacement_begins_anew() -> None:
    history = log(record("append", 0, 3), record("append", 3, 5), record("replace", 0, 5), record("append", 5, 9))
    assert held(history) == OffsetRange(0, 9)
    assert [commit.version for commit, _ in by_slice(history)[KEY]] == [3, 2]
    assert newest_by_slice(history)[KEY][1].counts == {"ok": 9}


def test_a_restore_undoes_what_lies_between_also_another_restore() -> None:
    history = log(record("append", 0, 3), record("append", 3, 5), 0, record("append", 3, 7), 1)
    assert [one.version for one in standing(history)] == [4, 1, 0]
    assert held(history) == OffsetRange(0, 5)


def test_a_compaction_stands_for_what_it_covers_and_for_nothing_later() -> None:
    whole = record("compact", 0, 5, stated={"through": 1})
    history = log(record("append", 0, 3), record("append", 3, 5), record("append", 5, 8), whole)
    assert held(history) == OffsetRange(0, 8)
    assert [commit.version for commit, _ in by_slice(history)[KEY]] == [2, 1]
    assert newest_by_slice(history)[KEY][1].counts == {"ok": 8}


def test_ranges_that_do_not_join_are_no_whole() -> None:
    with pytest.raises(RecordsMissing, match=r"raw/clicks 2026-03-01-10: .*leave a gap.*lineage verify"):
        newest_by_slice(log(record("append", 0, 3), record("append", 5, 8)))


def outcome(failed: int, total: int, max_share: float | None) -> CheckOutcome:
    severity = "ERROR" if max_share is not None and failed > max_share * total else "WARN"
    return CheckOutcome("a", failed == 0, "ERROR" if not failed else severity, failed, total, max_share=max_share)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(20, 100)), min_size=1, max_size=6), st.floats(0, 0.5))
def test_the_verdict_of_a_slice_is_that_of_all_its_rows(batches: list[tuple[int, int]], max_share: float) -> None:
    entries = [
        (Commit(v, v, "WRITE", None), record("append", v, v + 1, checks=(outcome(failed, total, max_share),)))
        for v, (failed, total) in enumerate(batches)
    ][::-1]
    failed, total = sum(one for one, _ in batches), sum(one for _, one in batches)
    (found,) = summary(entries).checks
    assert (found.failed, found.total, found.passed) == (failed, total, failed == 0)
    assert found.severity == outcome(failed, total, max_share).severity


def test_losses_and_gaps_of_all_commits_are_stated() -> None:
    entries = by_slice(
        log(
            record("append", 0, 5, stated={"lost": {"0": [2, 4]}, "gaps": {"0": {"markers": 1}}}),
            record("append", 5, 9, stated={"lost": {"0": [6, 7]}, "gaps": {"0": {"markers": 1, "aborted": 2}}}),
        )
    )[KEY]
    assert lost_in(entries) == {0: (OffsetRange(2, 4), OffsetRange(6, 7))}
    assert summary(entries).stated == {"lost": {"0": [[2, 4], [6, 7]]}, "gaps": {"0": {"markers": 2, "aborted": 2}}}


class Fixed(Tail):
    """A tail of given commits."""

    def __init__(self) -> None:
        super().__init__(Lake("nowhere"), "raw/clicks")
        self.commits: list[Commit] = []

    def read(self) -> list[Commit]:
        return self.commits


kinds = st.sampled_from(["append", "append", "append", "replace", "restore", "compact"])


@given(st.lists(kinds, min_size=1, max_size=12), st.data())
def test_content_that_is_followed_is_content_that_is_read_at_once(steps: list[str], data: st.DataObject) -> None:
    tail, at = Fixed(), {-1: 0}
    followed = Content(tail)
    end = 0
    for version, step in enumerate(steps):
        standing_now = [one for one in standing(tail.commits) if one.record is not None]
        if step == "restore" and version:
            target = data.draw(st.integers(0, version - 1))
            end = at[target]
            made = Commit(version, version, "RESTORE", None, target)
        elif step == "compact" and standing_now and end:
            made = Commit(version, version, "OPTIMIZE", record("compact", 0, end, stated={"through": version - 1}))
        elif step == "replace" and end:
            made = Commit(version, version, "WRITE", record("replace", 0, end))
        else:
            made = Commit(version, version, "WRITE", record("append", end, end + 2))
            end += 2
        at[version] = end
        tail.commits = [made, *tail.commits]
        if data.draw(st.booleans()):
            followed.read()
    followed.read()
    once = Content(tail)
    once.read()
    assert followed.held(KEY, "t") == once.held(KEY, "t")
    assert {k: replace(r, stated={}) for k, (_, r) in followed.slices.items()} == {
        k: replace(r, stated={}) for k, (_, r) in once.slices.items()
    }
    assert once.ends("t").get(0, 0) == end


class Busy:
    """A table that others commit to while it is read: as deltalake 1.6, it numbers what it lists from where it is open."""

    def __init__(self, commits: int, coming: list[int]) -> None:
        self.log, self.coming, self.at = [f"c{n}" for n in range(commits)], coming, commits - 1

    def version(self) -> int:
        return self.at

    def update_incremental(self) -> None:
        self.at = len(self.log) - 1

    def history(self, limit: int | None) -> list[dict[str, Any]]:
        for _ in range(self.coming.pop(0) if self.coming else 0):
            self.log.append(f"c{len(self.log)}")
        listed = self.log[::-1][:limit]
        return [{"operation": one, "version": self.at - place} for place, one in enumerate(listed)]


@given(st.integers(1, 80), st.lists(st.integers(0, 3), max_size=6), st.integers(1, 90) | st.none())
def test_commits_that_come_while_a_history_is_read_do_not_shift_the_versions(
    count: int, coming: list[int], limit: int | None
) -> None:
    table = Busy(count, coming)
    infos = commit_infos(table, limit)
    assert [one["operation"] for one in infos] == [f"c{one['version']}" for one in infos]
    assert infos[0]["version"] == table.version()
    oldest = 0 if limit is None else max(0, count - limit)
    assert [one["version"] for one in infos] == list(range(table.version(), oldest - 1, -1))


def test_more_commits_than_are_looked_at_make_the_history_be_read_again() -> None:
    table = Busy(5, [0, 70])
    infos = commit_infos(table)
    assert [one["operation"] for one in infos] == [f"c{n}" for n in range(74, -1, -1)]
