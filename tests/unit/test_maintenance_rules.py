"""Maintenance without services: logs, files, ledger and Dagster's events get smaller, and nobody misses anything."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.events import StepMaterializationData
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException

from lineage_assets.commands.maintain import said as lines
from lineage_assets.components.maintenance import build_maintenance
from lineage_assets.errors import ContractError, TransientError
from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.gaps import Delivered
from lineage_assets.lineage import ledger as cuts
from lineage_assets.lineage.commits import Lake, commits
from lineage_assets.lineage.content import THROUGH, by_slice
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.record import CheckOutcome, TableInput
from lineage_assets.lineage.slices import Cut, Grain
from lineage_assets.maintenance import compaction, events, gaps, logs, size
from lineage_assets.maintenance.closed import Closed
from lineage_assets.maintenance.files import log_files
from lineage_assets.maintenance.ledger import tidy
from lineage_assets.maintenance.policy import Policy, policy
from lineage_assets.maintenance.run import maintain
from lineage_assets.maintenance.vacuum import vacuum
from lineage_assets.reporting.collector import Managed
from lineage_assets.reporting.instance import materializations, newest_checks
from lineage_assets.reporting.store import Timed, store
from lineage_assets.settings import Settings
from tests.unit.written import ELEVEN, T0, TEN, Written, record

RAW, SILVER, GOLD = "raw/clicks", "silver/clicks", "gold/by_user"
EAGER = Policy(commits=10, log_after=timedelta(hours=1))
TOPIC = TopicRef("local", "clicks", "t1")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def keep(lake: Lake, first: int = 0, at_most: int = 10_000) -> None:
    log = ledger.read_log(lake, RAW, first, at_most)
    assert log is not None
    ledger.add_entries(lake, {RAW: log.entries})


def age(table: Written, below: int, hours: float) -> None:
    """Make the log files of versions below one so old."""
    at = datetime.now(UTC).timestamp() - hours * 3600
    for file in table.log.iterdir():
        number = file.name.lstrip(".").partition(".")[0]
        if number.isdecimal() and int(number) < below:
            os.utime(file, (at, at))


# Settings.


def test_times_come_from_the_settings_and_those_that_break_a_reader_are_refused(tmp_path: Path) -> None:
    found = policy(Settings(home=tmp_path, vacuum_after="2d", log_after="6h"))
    assert (found.vacuum_after, found.log_after) == (timedelta(days=2), timedelta(hours=6))
    with pytest.raises(ContractError, match=r"vacuum_after is 23:00:00") as error:
        policy(Settings(home=tmp_path, vacuum_after="23h"))
    assert error.value.remedy == "raise LINEAGE_VACUUM_AFTER"
    with pytest.raises(ContractError, match=r"log_after: 'soon' is no duration"):
        policy(Settings(home=tmp_path, log_after="soon"))


# Logs.


def test_a_log_gets_a_checkpoint_when_the_last_one_is_far_behind(lake: Lake) -> None:
    table = Written(lake)
    for step in range(9):
        table.append(step, step + 1)
    assert logs.checkpoint(lake, RAW, EAGER) is None
    table.append(9, 10)
    assert logs.checkpoint(lake, RAW, EAGER) == logs.Checkpointed(RAW, 10, 11)
    assert log_files(lake, RAW).last_checkpoint == 10
    assert logs.checkpoint(lake, RAW, EAGER) is None
    assert logs.checkpoint(lake, "raw/none", EAGER) is None


def test_a_log_is_cut_at_a_checkpoint_that_is_old_enough(lake: Lake) -> None:
    table = Written(lake)
    for step in range(30):
        table.append(step, step + 1)
        if table.version in (12, 20, 30):
            DeltaTable(lake.path(RAW)).create_checkpoint()
    (table.log / f".{5:020}.json.crc").write_bytes(b"x")
    table.append(30, 31)
    keep(lake)
    before = by_slice(commits(lake, RAW))
    age(table, 25, hours=2)

    done = logs.shorten(lake, RAW, EAGER)

    assert done is not None and (done.begins, done.commits, done.waits) == (20, 20, "")
    log = log_files(lake, RAW)
    assert sorted(log.commits) == list(range(20, 32)) and sorted(log.checkpoints) == [20, 30]
    assert not (table.log / f".{5:020}.json.crc").exists()
    assert DeltaTable(lake.path(RAW)).version() == 31
    assert DeltaTable(lake.path(RAW), version=22).version() == 22, "a young version can still be read"
    assert by_slice(commits(lake, RAW)) == before
    assert logs.shorten(lake, RAW, EAGER) is None


def test_no_version_goes_that_the_ledger_lacks(lake: Lake) -> None:
    table = Written(lake)
    for step in range(30):
        table.append(step, step + 1)
        if table.version in (12, 20, 29):
            DeltaTable(lake.path(RAW)).create_checkpoint()
    age(table, 31, hours=2)

    nothing = logs.shorten(lake, RAW, EAGER)
    assert nothing == logs.Shortened(RAW, 0, 0, 0, "version 0 is not in the ledger")
    keep(lake, at_most=15)
    some = logs.shorten(lake, RAW, EAGER)
    assert some is not None and (some.begins, some.waits) == (12, "version 15 is not in the ledger")
    assert sorted(log_files(lake, RAW).commits) == list(range(12, 31))
    assert DeltaTable(lake.path(RAW), version=13).version() == 13


# Files.


def test_files_go_that_no_version_of_the_policys_time_holds(lake: Lake) -> None:
    path = lake.path("silver/a")
    for number in range(3):
        write_deltalake(path, pa.table({"a": [number], "_slice": ["s"]}), mode="overwrite", partition_by=["_slice"])
    stray, young = Path(path, "_slice=s/part-stray.parquet"), Path(path, "_slice=s/part-young.parquet")
    stray.write_bytes(b"xx")
    young.write_bytes(b"x")
    live = DeltaTable(path).file_uris()
    now = datetime.now(UTC)
    for file in [*Path(path).glob("_slice=s/*.parquet")]:
        os.utime(file, ((now - timedelta(days=9)).timestamp(),) * 2)
    os.utime(young, ((now - timedelta(days=3)).timestamp(),) * 2)

    done = vacuum(lake, "silver/a", Policy())

    # The two older versions were replaced a moment ago: whoever reads them now still can.
    assert done is not None and (done.files, done.bytes) == (1, 2)
    assert not stray.exists() and young.exists()
    assert [DeltaTable(path, version=number).to_pyarrow_table()["a"].to_pylist() for number in range(3)] == [
        [0],
        [1],
        [2],
    ]
    assert DeltaTable(path).version() == 2, "vacuum made a commit"
    assert DeltaTable(path).file_uris() == live
    assert vacuum(lake, "silver/none", Policy()) is None


def test_removed_files_go_when_their_time_is_over(lake: Lake) -> None:
    path = lake.path("silver/a")
    for number in range(3):
        write_deltalake(path, pa.table({"a": [number]}), mode="overwrite")
    old = datetime.now(UTC) - timedelta(days=9)
    for file in Path(path).glob("*.parquet"):
        os.utime(file, (old.timestamp(),) * 2)
    log = Path(path, "_delta_log", f"{1:020}.json")
    stamp = '"deletionTimestamp":'
    before, _, after = log.read_text().partition(stamp)
    digits = "".join(one for one in after[:13] if one.isdigit())
    log.write_text(f"{before}{stamp}{int(old.timestamp() * 1000)}{after.removeprefix(digits)}")

    done = vacuum(lake, "silver/a", Policy())

    assert done is not None and done.files == 1
    assert len(list(Path(path).glob("*.parquet"))) == 2
    assert DeltaTable(path, version=1).to_pyarrow_table()["a"].to_pylist() == [1]


def test_a_longer_time_than_a_table_remembers_is_refused(lake: Lake) -> None:
    write_deltalake(lake.path("silver/a"), pa.table({"a": [1]}))
    with pytest.raises(ContractError, match="remembers removed files for 7 days"):
        vacuum(lake, "silver/a", Policy(vacuum_after=timedelta(days=8)))


# The ledger.


def test_the_ledger_gets_few_files_while_others_add_to_it(lake: Lake) -> None:
    table = Written(lake)
    for step in range(40):
        table.append(step, step + 1, seconds=step)
        keep(lake, table.version)
    keep(lake)
    expected = ledger.entries(lake, RAW)
    stop, faults = threading.Event(), list[BaseException]()
    done_by_writer: list[int] = []

    def writer() -> None:
        try:
            while not stop.is_set() or not done_by_writer:
                version = table.append(0, 0, seconds=100, slice=ELEVEN)
                keep(lake, version)
                done_by_writer.append(version)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=writer)
    thread.start()
    found = [tidy(lake, Policy()) for _ in range(3)]
    stop.set()
    thread.join()

    assert not faults
    assert found[0][-1].asset == ledger.COMMITS and found[0][-1].files_before >= 40
    assert found[0][-1].files_after < 20
    entries = ledger.entries(lake, RAW)
    assert entries[: len(expected)] == expected
    assert [one.version for one in entries] == list(range(table.version + 1))
    assert ledger.spans(lake, RAW) == {table.id: [(0, table.version + 1)]}


# Dagster's events.


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    folder = tmp_path / "dagster"
    folder.mkdir()
    with dg.DagsterInstance.local_temp(str(folder)) as found:
        yield found


def test_old_events_go_and_the_newest_of_every_place_stays(instance: dg.DagsterInstance) -> None:
    asset, other = dg.AssetKey(["raw", "clicks"]), dg.AssetKey(["marts", "users"])
    now = datetime.now(UTC)

    def tell(days: float, *told: dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation) -> None:
        store(instance, [Timed(one, (now - timedelta(days=days)).timestamp()) for one in told])

    def made(key: str, number: int) -> dg.AssetMaterialization:
        return dg.AssetMaterialization(asset, partition=key, metadata={"n": number}, tags={"a": "b"})

    def checked(key: str, passed: bool) -> dg.AssetCheckEvaluation:
        return dg.AssetCheckEvaluation(asset_key=asset, check_name="c", passed=passed, partition=key)

    tell(50, made(TEN, 1), checked(TEN, False), dg.AssetMaterialization(other, metadata={"n": 1}))
    tell(45, made(TEN, 2), checked(TEN, True), made(ELEVEN, 1), checked(ELEVEN, False))
    tell(40, dg.AssetMaterialization(other, metadata={"n": 2}), dg.AssetObservation(other))
    tell(2, made(ELEVEN, 2), made(ELEVEN, 3))
    tell(1, checked(ELEVEN, True))
    instance.report_runless_asset_event(dg.AssetMaterialization(other, metadata={"n": 3}))
    # A run tells of its own versions only: what nobody reported in a run stays beside it.
    run = dg.DagsterRun("job", run_id="0b5c7a9e-3f5e-4a51-8a1e-6a3ff3f5a001")
    instance.add_run(run)
    third = dg.AssetKey(["silver", "clicks"])
    tell(60, dg.AssetMaterialization(third, metadata={"n": 1}), dg.AssetMaterialization(third, metadata={"n": 2}))
    for number, days in ((3, 50), (4, 49)):
        by_run = StepMaterializationData(dg.AssetMaterialization(third, metadata={"n": number}))
        instance.report_dagster_event(
            dg.DagsterEvent("ASSET_MATERIALIZATION", job_name="job", event_specific_data=by_run),
            run.run_id,
            timestamp=(now - timedelta(days=days)).timestamp(),
        )
    keys = [dg.AssetCheckKey(asset, "c")]
    newest = {key: newest_checks(instance, keys, key)[keys[0]] for key in (TEN, ELEVEN)}

    said: list[str] = []
    done = events.thin(instance, Policy(), said.append)

    assert (done.events, done.check_results) == (8, 2)
    assert said == ["Dagster: 8 of 8 old events removed"]
    numbers = {key: [one.metadata["n"] for one in materializations(instance, asset, key)] for key in (TEN, ELEVEN)}
    assert numbers == {TEN: [2], ELEVEN: [3, 2]}
    assert [one.metadata["n"] for one in materializations(instance, other, None)] == [3]
    assert [one.metadata["n"] for one in materializations(instance, third, None)] == [4, 2]
    assert len(instance.fetch_observations(other, limit=5).records) == 1
    assert {key: newest_checks(instance, keys, key)[keys[0]] for key in (TEN, ELEVEN)} == newest
    assert events.thin(instance, Policy(), said.append) == events.Thinned(0, 0, done.left)
    assert events.counts(instance, now - timedelta(days=3)) == (done.left, 4)


# Closed slices.


def streamed(lake: Lake, end: int = 200) -> tuple[Written, Written]:
    """Raw and silver of an hour and of what came after it, in twenty appends."""
    raw, silver = Written(lake, RAW), Written(lake, SILVER)
    for step in range(0, end, 10):
        key = TEN if step < 150 else ELEVEN
        version = raw.append(step, step + 10, slice=key)
        consumed = TableInput(RAW, raw.id, (version, version + 1))
        silver.append(step, step + 10, slice=key, tables=[consumed])
    return raw, silver


def cut(lake: Lake, hour: int, offset: int) -> None:
    cuts.add_cuts(lake, TOPIC, [Cut(T0.replace(hour=hour), {0: offset})], "arrival")


def test_a_slice_is_closed_when_it_is_cut_and_the_table_is_past_the_cut(lake: Lake) -> None:
    streamed(lake, end=140)
    cut(lake, 10, 0)
    assert Closed(lake).slices(RAW, Grain.hour) == []
    cut(lake, 11, 150)
    assert Closed(lake).slices(RAW, Grain.hour) == [], "ten records of it are on their way"


def test_a_closed_slice_is_closed_in_every_table_that_has_consumed_it(lake: Lake) -> None:
    raw, silver = streamed(lake)
    cut(lake, 10, 0)
    cut(lake, 11, 150)
    gold = Written(lake, GOLD)
    gold.commit(record(GOLD, "replace", TEN, tables=[TableInput(SILVER, silver.id, (1, 16), 15)]))
    gold.commit(record(GOLD, "replace", ELEVEN, tables=[TableInput(SILVER, silver.id, (16, 21), 20)]))
    closed = Closed(lake)
    assert {one: closed.slices(one, Grain.hour) for one in (RAW, SILVER, GOLD)} == {
        RAW: [TEN],
        SILVER: [TEN],
        GOLD: [TEN],
    }

    version = raw.commit(record(RAW, "replace", TEN, {0: (0, 150)}))
    closed = Closed(lake)
    assert {one: closed.slices(one, Grain.hour) for one in (RAW, SILVER, GOLD)} == {RAW: [TEN], SILVER: [], GOLD: []}
    silver.commit(
        record(SILVER, "replace", TEN, {0: (0, 150)}, tables=[TableInput(RAW, raw.id, (version, version + 1))])
    )
    closed = Closed(lake)
    assert closed.slices(SILVER, Grain.hour) == [TEN]
    assert closed.slices(GOLD, Grain.hour) == [], "gold has not read it yet"


def test_the_record_of_a_compaction_says_all_that_the_slice_holds(lake: Lake, tmp_path: Path) -> None:
    raw, silver = streamed(lake)
    cut(lake, 10, 0)
    cut(lake, 11, 150)
    settings = Settings(home=tmp_path, lake=str(tmp_path))
    before = {asset: by_slice(commits(lake, asset)) for asset in (RAW, SILVER)}
    told = compaction.record_of(settings, Closed(lake), SILVER, TEN)

    assert (told.kind, told.slice, told.stated[THROUGH]) == ("compact", TEN, 15)
    assert told.topics[0].ranges[0].end == 150 and told.counts["ok"] == 150
    assert told.tables == (TableInput(RAW, raw.id, (1, 16)),)
    silver.commit(told)
    after = by_slice(commits(lake, SILVER))
    assert [(commit.version, one) for commit, one in after[TEN]] == [(15, told)]
    assert after[ELEVEN] == before[SILVER][ELEVEN]
    assert Closed(lake).slices(SILVER, Grain.hour) == [TEN]


def test_only_crowded_slices_that_are_closed_are_compacted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed(lake)
    cut(lake, 10, 0)
    cut(lake, 11, 150)
    files = {RAW: {TEN: 9, ELEVEN: 12}, SILVER: {TEN: 8, ELEVEN: 12}}
    monkeypatch.setattr(compaction, "small_files", lambda _, asset, policy: files[asset])
    tables = [Managed(SILVER, Grain.hour), Managed(RAW, Grain.hour), Managed("marts/users")]
    assert list(compaction.wanted(lake, tables, Policy())) == [compaction.Wanted(RAW, TEN, 9, Grain.hour)]
    files[SILVER][TEN] = 10
    assert [one.asset for one in compaction.wanted(lake, tables, Policy())] == [RAW, SILVER], "silver is told by raw"


def test_small_files_are_counted_by_slice_and_rows_of_unknown_origin_are_left_alone(lake: Lake) -> None:
    for asset, slices in ((RAW, [TEN] * 9 + [ELEVEN] * 12), (SILVER, [TEN] * 3)):
        for key in slices:
            write_deltalake(
                lake.path(asset), pa.table({"a": [1], "_slice": [key]}), mode="append", partition_by=["_slice"]
            )
    tables = (Managed(SILVER, Grain.hour), Managed(RAW, Grain.hour), Managed("marts/users"))
    assert compaction.small_files(lake, RAW, Policy()) == {TEN: 9, ELEVEN: 12}
    assert compaction.small_files(lake, RAW, Policy(small=10)) == {}
    assert list(compaction.wanted(lake, tables, Policy())) == [], "nobody knows what these rows are"


@pytest.mark.parametrize("said", ["[DELTA_CONCURRENT_DELETE_READ] a file was removed", "[INTERNAL_ERROR] no luck"])
def test_a_slice_that_a_writer_has_first_waits_and_any_other_fault_is_named(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    streamed(lake)

    def lose(*_: object) -> None:
        raise PySparkException(said)

    monkeypatch.setattr(compaction.managed_tables, "compact", lose)
    settings = Settings(home=tmp_path, lake=str(tmp_path), env="lake")
    wanted = compaction.Wanted(RAW, TEN, 15, Grain.hour)
    if "CONCURRENT" in said:
        done = compaction._compact(settings, None, Closed(lake), wanted, Policy())  # type: ignore[arg-type]
        assert (done.slice, done.version) == (TEN, None)
    else:
        with pytest.raises(
            TransientError, match=r"raw/clicks 2026-03-01-10 could not be compacted: \[INTERNAL_ERROR\] no"
        ):
            compaction._compact(settings, None, Closed(lake), wanted, Policy())  # type: ignore[arg-type]


# Gaps.


def test_gaps_of_a_closed_slice_get_their_kinds_and_its_conservation_is_evaluated_anew() -> None:
    checks = [CheckOutcome("conservation", False, "ERROR", 7, 40, blocking=True), CheckOutcome("a", True, "WARN", 0, 1)]
    told = record(
        RAW, "replace", TEN, {0: (0, 20), 1: (0, 20)}, checks=checks,
        stated={"gaps": {"0": {"unmeasured": 5}, "1": {"unmeasured": 2}}, "skew": {}},
    )  # fmt: skip
    assert gaps.unmeasured(told) == {0: 5, 1: 2}
    topic = Topic("clicks", "t1", (0, 1), {})
    delivered = {0: Delivered(15, 18), 1: Delivered(18, 18)}

    good = gaps.with_kinds(told, told.topics[0], topic, delivered, {0: 15, 1: 18})
    assert good.stated == {"gaps": {"0": {"aborted": 3, "markers": 2}, "1": {"markers": 2}}, "skew": {}}
    assert (good.checks[0].passed, good.checks[0].failed, good.checks[1]) == (True, 0, checks[1])
    assert gaps.unmeasured(good) == {}

    bad = gaps.with_kinds(told, told.topics[0], topic, delivered, {0: 15, 1: 16})
    assert (bad.checks[0].passed, bad.checks[0].failed, bad.checks[0].severity) == (False, 2, "ERROR")
    assert gaps.as_in(told, good).checks == good.checks and gaps.as_in(told, good).stated == good.stated


# Sizes.


def test_a_table_is_as_large_as_its_files_and_grew_by_what_is_young(lake: Lake) -> None:
    path = lake.path(RAW)
    for number in range(3):
        write_deltalake(path, pa.table({"a": [number, 1], "_slice": ["s"] * 2}), mode="append", partition_by=["_slice"])
    write_deltalake(path, pa.table({"a": [7], "_slice": ["s"]}), mode="overwrite", partition_by=["_slice"])
    live = [Path(one) for one in DeltaTable(path).file_uris()]

    found = size.table_size(lake, RAW)

    assert found is not None
    assert (found.rows, found.files, found.commits, found.log_files) == (1, 1, 4, 4)
    assert found.data_bytes == sum(one.stat().st_size for one in live)
    assert found.unused_bytes == sum(one.stat().st_size for one in Path(path).glob("*/*.parquet")) - found.data_bytes
    assert found.log_bytes == sum(one.stat().st_size for one in Path(path, "_delta_log").glob("*.json"))
    assert found.last_day == size.Grown(1, found.data_bytes, found.log_bytes, 4)
    later = size.table_size(lake, RAW, datetime.now(UTC) + timedelta(days=2))
    assert later is not None and later.last_day == size.Grown()
    assert size.tables(lake, [RAW, "silver/none"]) == [found]


def test_topics_are_as_large_as_the_embedded_brokers_folders(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    for folder, content in (("clicks-0", b"abc"), ("clicks-1", b"de"), ("clicks-late-0", b"x"), ("other-0", b"y")):
        place = settings.stack_dir / "kafka" / "data" / folder
        place.mkdir(parents=True)
        (place / "0.log").write_bytes(content)
    assert size.topics(settings, ["clicks"]) == [size.FolderSize("kafka/local/clicks", 5, 2)]
    assert size.topics(settings.model_copy(update={"kafka_bootstrap": "mine:9092"}), ["clicks"]) == []


# All of it.


def test_the_fault_of_one_table_keeps_no_other_waiting(
    lake: Lake, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    settings = Settings(home=tmp_path, lake=str(tmp_path), env="lake")
    for asset in ("silver/a", "silver/b"):
        write_deltalake(lake.path(asset), pa.table({"a": [1]}))
        stray = Path(lake.path(asset), "part-stray.parquet")
        stray.write_bytes(b"xx")
        os.utime(stray, ((datetime.now(UTC) - timedelta(days=9)).timestamp(),) * 2)
    DeltaTable(lake.path("silver/a")).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 2 days"}
    )
    tables = [Managed("silver/a"), Managed("silver/b"), Managed("silver/none")]
    said: list[str] = []

    done = maintain(settings, instance, tables, Policy(), say=said.append)

    assert said == ["compact", "checkpoint", "vacuum", "shorten", "ledger", "events"]
    assert [one.asset for one in done.vacuum] == ["silver/b"]
    assert len(done.problems) == 1 and done.problems[0].startswith("silver/a remembers removed files for 2 days")
    assert json.loads(json.dumps(done.told()))["events"] == {"events": 0, "check_results": 0, "left": 0}
    assert lines(done)[0] == "vacuumed silver/b: 1 files, 2 bytes"
    with pytest.raises(ContractError, match="no part 'vaccum' of maintenance"):
        maintain(settings, instance, tables, Policy(), ["vaccum"])


def test_the_job_maintains_what_the_settings_say(
    lake: Lake, tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, lake=str(tmp_path), env="lake")
    monkeypatch.setattr("lineage_assets.components.maintenance.settings", lambda: settings)
    table = Written(lake)
    for step in range(101):
        table.append(step, step + 1)
    definitions = build_maintenance([Managed(RAW, Grain.hour)])
    schedule = definitions.resolve_schedule_def("maintain_hourly")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    assert definitions.resolve_job_def("maintain").execute_in_process(instance=instance).success
    assert log_files(lake, RAW).last_checkpoint == 101
