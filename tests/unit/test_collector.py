"""The collector: every version reaches the ledger and is told to Dagster once, whenever it is killed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from lineage_assets.errors import LineageError, TransientError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake, commits
from lineage_assets.lineage.content import by_slice, summary
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.ledger.commit_records import parse_spans
from lineage_assets.lineage.record import TableInput
from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting import store
from lineage_assets.reporting.collector import NO_FOREIGN_COMMITS, Collected, Managed, collect
from lineage_assets.reporting.instance import newest_checks
from tests.unit.written import ELEVEN, T0, TEN, Written, at_ms, check, record

RAW, SILVER = Managed("raw/clicks", Grain.hour), Managed("silver/clicks", Grain.hour)
MINUTE = 60_000
NOW = at_ms(30 * 60)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as found:
        yield found


def tick(
    instance: dg.DagsterInstance,
    lake: Lake,
    cursor: dict[str, Any] | None = None,
    now: int = NOW,
    tables: tuple[Managed, ...] = (RAW,),
    **more: Any,
) -> Collected:
    done = collect(instance, lake, tables, json.loads(json.dumps(cursor or {})), now_ms=now, **more)
    if done.problems:
        raise done.problems[0]
    return done


def told(instance: dg.DagsterInstance, asset: str, partition: str | None = None) -> list[dict[str, Any]]:
    """Metadata of an asset's materializations, oldest first."""
    found = instance.fetch_materializations(dg.AssetKey(asset.split("/")), limit=10_000, ascending=True).records
    return [
        {name: value.value for name, value in one.asset_materialization.metadata.items()} | {"at": one.timestamp}
        for one in found
        if one.asset_materialization is not None and (partition is None or one.partition_key == partition)
    ]


def times_told(instance: dg.DagsterInstance, asset: str) -> Counter[int]:
    """How often each version is covered."""
    spans = [span for one in told(instance, asset) for span in parse_spans(one["delta/versions"])]
    return Counter(version for start, end in spans for version in range(start, end))


def verdict(instance: dg.DagsterInstance, asset: str, name: str, partition: str | None = TEN) -> Any:
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), name)
    return newest_checks(instance, [key], partition).get(key)


def verdicts(instance: dg.DagsterInstance, asset: str, name: str) -> int:
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), name)
    return len(instance.event_log_storage.get_asset_check_execution_history(key, limit=1000))


def test_a_stream_s_commits_become_one_materialization_of_the_whole_slice(instance, lake) -> None:
    raw = Written(lake)
    for number in range(3):
        raw.append(number * 10, number * 10 + 10, seconds=number + 1)
    tick(instance, lake)

    (one,) = told(instance, "raw/clicks", TEN)
    assert one["delta/versions"] == "[1, 4)" and one["delta/version"] == 3 and one["delta/table_id"] == raw.id
    assert one["kafka/ranges"] == {"0": ["0", "30"]} and one["dagster/partition_row_count"] == 30
    assert one["at"] == pytest.approx(at_ms(3) / 1000), "the commit's own time"
    whole = summary(by_slice(commits(lake, "raw/clicks"))[TEN])
    assert records.from_json(one["lineage/commit"]) == whole
    (dead,) = told(instance, "dead_letters/clicks", TEN)
    assert dead["delta/versions"] == "[1, 4)" and dead["dagster/partition_row_count"] == 0
    assert ledger.spans(lake, "raw/clicks") == {raw.id: [(0, 4)]}


def test_further_commits_are_told_at_most_once_a_minute_and_are_summed_up(instance, lake) -> None:
    raw = Written(lake)
    raw.append(0, 10, seconds=1)
    done = tick(instance, lake)
    raw.append(10, 20, seconds=2)
    done = tick(instance, lake, done.cursor, NOW + 10_000)
    assert len(told(instance, "raw/clicks")) == 1
    raw.append(20, 25, seconds=3)
    done = tick(instance, lake, done.cursor, NOW + MINUTE)
    done = tick(instance, lake, done.cursor, NOW + 3 * MINUTE)

    first, second = told(instance, "raw/clicks")
    assert (first["delta/versions"], second["delta/versions"]) == ("[1, 2)", "[2, 4)")
    assert second["kafka/ranges"] == {"0": ["0", "25"]} and second["dagster/partition_row_count"] == 25


def test_slices_are_told_apart_and_a_quiet_one_at_once(instance, lake) -> None:
    raw = Written(lake)
    raw.append(0, 10, seconds=1)
    done = tick(instance, lake)
    raw.append(10, 20, seconds=2)
    raw.append(20, 30, seconds=3600, slice=ELEVEN)
    raw.append(30, 40, seconds=3601, slice=ELEVEN)
    raw.append(40, 50, seconds=3602)
    done = tick(instance, lake, done.cursor, NOW + 20_000)
    assert [one["delta/versions"] for one in told(instance, "raw/clicks", ELEVEN)] == ["[3, 5)"]
    tick(instance, lake, done.cursor, NOW + 2 * MINUTE)
    assert [one["delta/versions"] for one in told(instance, "raw/clicks", TEN)] == ["[1, 2)", "[2, 3), [5, 6)"]
    assert set(times_told(instance, "raw/clicks").values()) == {1}


def test_nothing_is_told_twice_when_the_cursor_is_lost(instance, lake) -> None:
    raw = Written(lake)
    for number in range(8):
        raw.append(number, number + 1, seconds=number, slice=TEN if number % 2 else ELEVEN)
    tick(instance, lake)
    tick(instance, lake, {}, NOW + 2 * MINUTE)
    tick(instance, lake, {"raw/clicks": {"table_id": "another", "next": 3, "kept": 2}}, NOW + 4 * MINUTE)
    assert times_told(instance, "raw/clicks") == Counter(range(1, 9))
    raw.append(8, 9, seconds=9)
    tick(instance, lake, {}, NOW + 6 * MINUTE)
    assert times_told(instance, "raw/clicks") == Counter(range(1, 10))


class Killed(BaseException):
    """A process that is gone: nothing handles it."""


@pytest.mark.parametrize("at", ["before the ledger", "after the ledger", "in the transaction", "after it"])
def test_killed_anywhere_it_goes_on_without_telling_twice(instance, lake, monkeypatch, at) -> None:
    """C32: versions 0-7, killed in the first tick; the second makes it good, the third has nothing new."""
    raw = Written(lake)
    for number in range(7):
        raw.append(number, number + 1, seconds=number, checks=[check()])

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if at == "before the ledger":
            patch.setattr(ledger, "add_entries", killed)
        elif at == "after the ledger":
            patch.setattr(store, "store", killed)
        elif at == "in the transaction":
            patch.setattr(store, "_newest_below", killed)
        else:
            whole = store.store
            patch.setattr(store, "store", lambda *args: (whole(*args), killed()))
        with pytest.raises(Killed):
            tick(instance, lake)
    second = tick(instance, lake, {}, NOW + 5_000)
    third = tick(instance, lake, second.cursor, NOW + 2 * MINUTE)

    assert times_told(instance, "raw/clicks") == Counter(range(1, 8))
    assert times_told(instance, "dead_letters/clicks") == Counter(range(1, 8))
    assert third.events == 0
    assert [one.version for one in ledger.entries(lake, "raw/clicks")] == list(range(8))


def test_a_backlog_of_5000_versions_is_told_in_bounded_pieces(instance, lake) -> None:
    raw = Written(lake)
    for number in range(5000):
        raw.append(number, number + 1, seconds=number / 2)
    cursor: dict[str, Any] = {}
    kept = []
    DeltaTable(lake.path("raw/clicks")).create_checkpoint()
    for _ in range(6):
        # No time at all: every tick makes one step.
        cursor = tick(instance, lake, cursor, NOW + 60 * MINUTE, at_once=1000, budget_s=0).cursor
        kept.append(cursor["raw/clicks"]["kept"])
    assert kept == [1000, 2000, 3000, 4000, 5000, 5001]
    assert tick(instance, lake, cursor, NOW + 62 * MINUTE).events == 0
    assert times_told(instance, "raw/clicks") == Counter(range(1, 5001))
    assert told(instance, "raw/clicks")[-1]["dagster/partition_row_count"] == 5000


def test_a_log_that_was_shortened_too_early_is_a_named_gap_and_no_loss(instance, lake) -> None:
    """C23: the cursor is at 5, the log holds 10-14."""
    raw = Written(lake)
    for number in range(1, 15):
        raw.append(number, number + 1, seconds=number)
    for version in range(6, 15):
        raw.log.joinpath(f"{version:020}.json").rename(raw.log / f"{version}.away")
    done = tick(instance, lake)
    assert done.cursor["raw/clicks"]["next"] == 6
    for version in range(6, 15):
        raw.log.joinpath(f"{version}.away").rename(raw.log / f"{version:020}.json")
    raw.clean(below=10)

    done = tick(instance, lake, done.cursor, NOW + 2 * MINUTE)

    assert [one["delta/versions"] for one in told(instance, "raw/clicks")] == ["[1, 6)", "[10, 15)"]
    assert len(done.gaps) == 1 and "lineage gap" in done.gaps[0] and "[6, 10)" in done.gaps[0]
    (seen,) = instance.fetch_observations(dg.AssetKey(["raw", "clicks"]), limit=10).records
    assert seen.asset_observation is not None
    assert seen.asset_observation.metadata["lineage/gap"].value == "[6, 10)"
    assert seen.asset_observation.metadata["kafka/ranges"].value == {"0": ["6", "10"]}
    assert done.cursor["raw/clicks"]["next"] == 15
    assert ledger.spans(lake, "raw/clicks") == {raw.id: [(0, 6), (10, 15)]}
    assert "lineage/gap" in told(instance, "raw/clicks")[-1], "counts that begin in the middle must say so"
    again = tick(instance, lake, done.cursor, NOW + 4 * MINUTE)
    lost = tick(instance, lake, {}, NOW + 6 * MINUTE)
    assert (again.events, lost.events, again.gaps, lost.gaps) == (0, 0, [], [])


def test_a_table_that_was_made_again_is_told_from_its_beginning(instance, lake) -> None:
    raw = Written(lake)
    for number in range(5):
        raw.append(number, number + 1, seconds=number)
    done = tick(instance, lake)
    shutil.rmtree(lake.path("raw/clicks"))
    again = Written(lake)
    again.append(0, 3, seconds=100)
    done = tick(instance, lake, done.cursor, NOW + 2 * MINUTE)
    assert told(instance, "raw/clicks")[-1]["delta/table_id"] == again.id
    assert [one["delta/versions"] for one in told(instance, "raw/clicks")] == ["[1, 6)", "[1, 2)"]
    assert tick(instance, lake, done.cursor, NOW + 4 * MINUTE).events == 0
    assert tick(instance, lake, {}, NOW + 4 * MINUTE).events == 0


def run_of(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> str:
    @dg.job
    def nothing() -> None: ...

    return instance.create_run_for_job(nothing, status=status).run_id


def reported(instance: dg.DagsterInstance, run: str, asset: str, version: int, partition: str | None = TEN) -> None:
    """What a run reports of its own commit."""
    made = dg.AssetMaterialization(
        asset.split("/"),
        partition=partition,
        metadata={
            "delta/version": version,
            "delta/versions": f"[{version}, {version + 1})",
            "lineage/commit": records.to_json(record(kind="replace", run=run, ranges={0: (0, 9)})),
        },
    )
    instance.report_dagster_event(
        dg.DagsterEvent("ASSET_MATERIALIZATION", "nothing", event_specific_data=store.StepMaterializationData(made)),
        run_id=run,
    )


def test_a_run_in_progress_reports_itself(instance, lake) -> None:
    run = run_of(instance, dg.DagsterRunStatus.STARTED)
    raw = Written(lake)
    raw.commit(record(kind="replace", run=run, ranges={0: (0, 9)}), seconds=1)
    done = tick(instance, lake)
    assert told(instance, "raw/clicks") == []
    reported(instance, run, "raw/clicks", 1)
    instance.report_run_failed(instance.get_run_by_id(run))
    tick(instance, lake, done.cursor, NOW + 10_000)
    assert len(told(instance, "raw/clicks")) == 1
    (dead,) = told(instance, "dead_letters/clicks")
    assert dead["delta/versions"] == "[1, 2)", "the run was gone before it told of the view"


def test_a_run_that_died_before_it_reported_is_filled_in(instance, lake) -> None:
    run = run_of(instance, dg.DagsterRunStatus.FAILURE)
    silver = Written(lake, "silver/clicks")
    silver.commit(record("silver/clicks", "replace", run=run, ranges={0: (0, 9)}, checks=[check(failed=1)]), seconds=1)
    tick(instance, lake, tables=(SILVER,))
    (one,) = told(instance, "silver/clicks")
    assert one["delta/versions"] == "[1, 2)"
    assert verdict(instance, "silver/clicks", "amount").passed is False


def test_commits_of_a_stream_below_a_run_s_are_told_after_it(instance, lake) -> None:
    """The run's event is about version 4 alone; what the stream wrote before must not be taken for told."""
    run = run_of(instance, dg.DagsterRunStatus.SUCCESS)
    raw = Written(lake)
    for number in range(3):
        raw.append(number, number + 1, seconds=number)
    raw.commit(record(kind="replace", run=run, ranges={0: (0, 9)}), seconds=5)
    reported(instance, run, "raw/clicks", 4)
    reported(instance, run, "dead_letters/clicks", 4)
    for _ in range(2):
        tick(instance, lake, {}, NOW)
        assert times_told(instance, "raw/clicks") == Counter(range(1, 5))
    newest = told(instance, "raw/clicks")[-1]
    assert newest["delta/versions"] == "[1, 4)"
    assert newest["delta/version"] == 4 and newest["kafka/ranges"] == {"0": ["0", "9"]}, "the newest tells what is"


def test_a_run_s_commit_above_what_was_told_does_not_tell_it_again(instance, lake) -> None:
    run = run_of(instance, dg.DagsterRunStatus.SUCCESS)
    raw = Written(lake)
    raw.append(0, 9, seconds=1)
    tick(instance, lake)
    raw.commit(record(kind="replace", run=run, ranges={0: (0, 9)}), seconds=5)
    reported(instance, run, "raw/clicks", 2)
    reported(instance, run, "dead_letters/clicks", 2)
    assert tick(instance, lake, {}, NOW + 2 * MINUTE).events == 0
    assert times_told(instance, "raw/clicks") == Counter([1, 2])


def test_a_run_s_event_of_an_earlier_table_covers_nothing_of_this_one(instance, lake) -> None:
    old, new = (run_of(instance, dg.DagsterRunStatus.FAILURE) for _ in range(2))
    reported(instance, old, "raw/clicks", 1)
    Written(lake).commit(record(kind="replace", run=new, ranges={0: (0, 3)}), seconds=1)
    tick(instance, lake)
    assert [one["delta/versions"] for one in told(instance, "raw/clicks")] == ["[1, 2)", "[1, 2)"]
    assert told(instance, "raw/clicks")[-1]["kafka/ranges"] == {"0": ["0", "3"]}


def test_appends_after_a_replacement_build_on_it_alone(instance, lake) -> None:
    raw = Written(lake)
    raw.append(0, 50, seconds=1)
    done = tick(instance, lake)
    raw.commit(record(kind="replace", ranges={0: (0, 40)}), seconds=2)
    raw.append(40, 45, seconds=3)
    tick(instance, lake, done.cursor, NOW + 2 * MINUTE)
    assert told(instance, "raw/clicks")[-1]["kafka/ranges"] == {"0": ["0", "45"]}


def test_a_restore_is_told_of_the_slices_that_it_changed(instance, lake) -> None:
    raw = Written(lake)
    raw.append(0, 10, seconds=1)
    raw.append(10, 20, seconds=2, slice=ELEVEN)
    raw.append(20, 30, seconds=3)
    done = tick(instance, lake)
    raw.restore(to=2, seconds=10)
    done = tick(instance, lake, done.cursor, NOW + 2 * MINUTE)
    ten, eleven = told(instance, "raw/clicks", TEN), told(instance, "raw/clicks", ELEVEN)
    assert [one["delta/versions"] for one in ten] == ["[1, 2), [3, 4)", "[4, 5)"]
    assert ten[-1]["kafka/ranges"] == {"0": ["0", "10"]} and ten[-1]["dagster/partition_row_count"] == 10
    assert len(eleven) == 1
    raw.restore(to=0, seconds=20)
    tick(instance, lake, done.cursor, NOW + 4 * MINUTE)
    assert "lineage/commit" not in told(instance, "raw/clicks", ELEVEN)[-1], "nothing of it stands"


def test_a_foreign_commit_fails_a_check_until_it_is_undone(instance, lake) -> None:
    raw = Written(lake)
    raw.append(0, 10, seconds=1)
    done = tick(instance, lake)
    assert verdict(instance, "raw/clicks", NO_FOREIGN_COMMITS, None).passed is True
    raw.commit(None, seconds=5, operation="DELETE")
    raw.commit(None, seconds=6, operation="VACUUM END")
    done = tick(instance, lake, done.cursor, NOW + 5_000)
    found = verdict(instance, "raw/clicks", NO_FOREIGN_COMMITS, None)
    assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
    assert found.metadata["delta/versions"].value == "[2, 3)" and found.metadata["delta/operations"].value == "DELETE"
    (seen,) = instance.fetch_observations(dg.AssetKey(["raw", "clicks"]), limit=10).records
    assert seen.asset_observation is not None and seen.asset_observation.metadata["delta/versions"].value == "[2, 3)"
    for cursor in (done.cursor, {}):
        assert tick(instance, lake, cursor, NOW + 2 * MINUTE).events == 0
    raw.commit(record(kind="restore", slice=None), operation="RESTORE", operationParameters={"version": "1"})
    tick(instance, lake, done.cursor, NOW + 4 * MINUTE)
    assert verdict(instance, "raw/clicks", NO_FOREIGN_COMMITS, None).passed is True


def test_checks_are_told_on_a_change_of_verdict_and_when_the_slice_closes(instance, lake) -> None:
    silver, tables = Written(lake, "silver/clicks"), (SILVER,)
    now = NOW

    def grow(start: int, failed: int) -> None:
        nonlocal now, done
        silver.append(start, start + 10, seconds=start, checks=[check(failed=failed, max_share=0.2)])
        now += 2 * MINUTE
        done = tick(instance, lake, done.cursor, now, tables)

    done = Collected({})
    for start, failed, results, passed, severity in [
        (0, 0, 1, True, "ERROR"),
        (10, 0, 1, True, "ERROR"),
        (20, 4, 2, False, "WARN"),
        (30, 1, 2, False, "WARN"),
        (40, 9, 3, False, "ERROR"),
    ]:
        grow(start, failed)
        found = verdict(instance, "silver/clicks", "amount")
        assert (verdicts(instance, "silver/clicks", "amount"), found.passed) == (results, passed), start
        assert passed or found.severity.value == severity
    grow(50, 3)
    assert verdict(instance, "silver/clicks", "amount").metadata["failing"].value == 14, "no change of verdict, no news"
    quiet = check("quiet", total=0)
    for seconds in (60, 70):
        silver.append(seconds, seconds + 10, seconds=seconds, checks=[check(total=0), quiet])
        now += 2 * MINUTE
        done = tick(instance, lake, done.cursor, now, tables)

    hour_over = int(T0.timestamp() * 1000) + 3600_000
    done = tick(instance, lake, done.cursor, hour_over + 30_000, tables)
    assert verdicts(instance, "silver/clicks", "amount") == 3
    done = tick(instance, lake, done.cursor, hour_over + 70_000, tables)
    final = verdict(instance, "silver/clicks", "amount")
    assert [final.metadata[name].value for name in ("failing", "of")] == [17, 60]
    newest = instance.fetch_materializations(dg.AssetKey(["silver", "clicks"]), limit=1).records[0]
    for name in ("amount", "quiet"):
        about = verdict(instance, "silver/clicks", name).target_materialization_data
        assert about.storage_id == newest.storage_id, f"{name} is about older data, with whatever numbers"
    assert tick(instance, lake, done.cursor, hour_over + 10 * MINUTE, tables).events == 0
    assert tick(instance, lake, {}, hour_over + 20 * MINUTE, tables).events == 0


def test_a_mart_is_told_whole(instance, lake) -> None:
    mart = Managed("marts/user_value")
    table = Written(lake, mart.asset)
    inputs = [TableInput("silver/clicks", "s1", read_at=12, held=(TEN,))]
    made = record(
        mart.asset, "replace", None, run="gone", counts={"rows": 7}, tables=inputs, checks=[check("unique", failed=2)]
    )
    table.commit(made, seconds=5)
    done = tick(instance, lake, tables=(mart,))
    (one,) = told(instance, mart.asset)
    assert one["dagster/row_count"] == 7 and one["delta/versions"] == "[1, 2)"
    assert one["lineage/inputs"] == {"silver/clicks": "12"} and one["lineage/held"] == {"silver/clicks": [TEN]}
    assert verdict(instance, mart.asset, "unique", None).passed is False
    table.commit(made, seconds=6)
    for cursor in (done.cursor, {}):
        tick(instance, lake, cursor, NOW + 2 * MINUTE, tables=(mart,))
    assert times_told(instance, mart.asset) == Counter([1, 2])


def test_one_table_s_fault_keeps_no_other_waiting(instance, lake) -> None:
    raw, silver = Written(lake), Written(lake, "silver/clicks")
    silver.append(0, 5, seconds=1)
    raw.commit(None, userMetadata=json.dumps({**json.loads(records.to_json(record())), "v": 99}))
    done = collect(instance, lake, (RAW, SILVER), {}, now_ms=NOW)
    assert [type(error) for error in done.problems] == [records.UnknownRecordVersion]
    assert all(isinstance(error, LineageError) for error in done.problems)
    assert len(told(instance, "silver/clicks")) == 1


def test_what_another_process_told_meanwhile_is_not_told_again(instance, lake, monkeypatch) -> None:
    """Two collectors that read the same state: one of them is refused, whole."""
    raw = Written(lake)
    raw.append(0, 10, seconds=1)
    whole = store.store

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(store, "store", whole)
        tick(instance, lake, {}, NOW)
        whole(*args)

    monkeypatch.setattr(store, "store", overtaken)
    with pytest.raises(TransientError, match="another process"):
        tick(instance, lake, {}, NOW)
    assert times_told(instance, "raw/clicks") == Counter([1])


def test_no_table_is_no_news(instance, lake) -> None:
    assert tick(instance, lake).events == 0
