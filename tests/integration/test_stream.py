"""The stream against the bounded way, and against what a plain consumer reads."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pandera.pandas as pa
import psutil
import pytest

from lineage_assets.errors import FatalError, TransientError
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage import lease, ledger
from lineage_assets.lineage.content import lost_offsets
from lineage_assets.lineage.offsets import OffsetRange, non_empty
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.settings import Settings
from lineage_assets.spark import bite, kafka_source, micro_batch, resume, stream
from lineage_assets.spark.micro_batch import MicroBatches, Piece, Start
from lineage_assets.spark.session import session
from lineage_assets.stack import process
from tests.integration.engine import (
    EVENT_AVRO,
    NOW,
    Abort,
    Engine,
    Sent,
    StricterEvent,
    avro_bytes,
    contract_of,
    event,
    framed,
    fresh,
    slice_of,
)
from tests.integration.streams import (
    archived,
    assert_nothing_lost,
    catch_up,
    clean,
    consumed,
    ok_places,
    whole,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    with fresh(stack, spark, tmp_path / "lake", partitions=2, unique_by=("id",), event_time=None) as made:
        yield made


def mixed(seed: int, count: int, first_minute: float, last_minute: float, partition: int) -> list[Sent]:
    """Events of one partition in their order: repeated keys, null keys, garbage, tombstones, stamps that go back."""
    dice = random.Random(seed)
    sent = []
    for number in range(count):
        at = first_minute + (last_minute - first_minute) * number / count + dice.choice([0.0, 0.0, 0.0, -7.0, 2.0])
        kind = dice.random()
        if kind < 0.05:
            sent.append(Sent(b"no json", max(at, 0.0), partition=partition))
        elif kind < 0.1:
            sent.append(Sent(None, max(at, 0.0), partition=partition))
        elif kind < 0.2:
            sent.append(event(None, 1, max(at, 0.0), partition))
        else:
            sent.append(event(f"k{dice.randrange(40)}", dice.randrange(-2, 50), max(at, 0.0), partition))
    return sent


def verdicts(record: CommitRecord) -> list[tuple[str, int, int, bool, str]]:
    """The checks of a slice. Keys in two partitions are counted by each batch anew, so that number is not the slice's."""
    return [
        (one.name, one.failed, one.total, one.passed, one.severity)
        for one in record.checks
        if one.name != "one_partition_a_key"
    ]


def test_batches_of_any_size_make_the_tables_that_bounded_runs_make(shop: Engine, tmp_path: Path) -> None:
    """Duplicates across batches and slices, an hour boundary, and partitions that are hours apart."""
    shop.send(*mixed(1, 90, 40, 200, 0), *mixed(2, 60, 150, 215, 1))
    bounded = shop.in_lake(tmp_path / "bounded")
    for key in ("10", "11", "12", "13"):
        bounded.process(key)
    shop.sliced(NOW)
    catch_up(shop, bite=40)
    assert len(shop.log("raw")) > 5
    assert shop.raw() == bounded.raw()
    assert shop.silver() == bounded.silver()
    assert {key: record.counts for key, record in whole(shop).items()} == {
        key: record.counts for key, record in whole(bounded).items()
    }
    streamed, once = whole(shop, "silver"), whole(bounded, "silver")
    for key in once:
        assert streamed[key].reasons == once[key].reasons
        assert verdicts(streamed[key]) == verdicts(once[key])
        assert non_empty(streamed[key].topics[0].ranges) == non_empty(once[key].topics[0].ranges)
    assert "duplicate" in set(shop.fates().values())


def test_a_batch_of_many_duplicates_is_marked_like_one_of_few(shop: Engine, tmp_path: Path) -> None:
    shop.send(
        *(event(f"k{n % 500}", at=1.0) for n in range(1500)), *(event(f"k{n}", at=2.0, partition=1) for n in range(9))
    )
    bounded = shop.in_lake(tmp_path / "bounded")
    bounded.process("10")
    catch_up(shop)
    assert sum(fate == "duplicate" for fate in shop.fates().values()) == 1000 > micro_batch.MOST_IN_PLAN
    assert shop.raw() == bounded.raw()
    assert shop.silver() == bounded.silver()


class Visitor(pa.DataFrameModel):
    """An event with a text that only a library can decide."""

    id: str = pa.Field(nullable=True)
    email: str = pa.Field(nullable=True, metadata={"format": "email"})
    amount: int = pa.Field(ge=0, nullable=True)


def visitor(number: int, email: str | None, amount: int = 1) -> Sent:
    value = {"id": str(number), "email": email, "amount": amount}
    return Sent(json.dumps(value).encode(), at=1 + number / 100)


def test_a_text_that_only_a_library_decides_is_asked_about_and_has_the_same_fate(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    plain = ["ann@shop.com", "ann", "ann@shop", None]
    odd = ["jürgen@müller.de", "a..b@shop.com", '"ann b"@shop.com', "ann@shop.test"]
    with fresh(stack, spark, tmp_path / "lake", unique_by=("id",), contract=contract_of(Visitor)) as shop:
        shop.send(*(visitor(number, text) for number, text in enumerate(plain)))
        shop.send(*(visitor(10 + number, text, -1) for number, text in enumerate([*odd, *plain])))
        shop.send(*(visitor(20 + number, text) for number, text in enumerate([*odd, *plain])))
        bounded = shop.in_lake(tmp_path / "bounded")
        bounded.process("10")
        shop.sliced(NOW)
        catch_up(shop, bite=4)
        assert len(shop.log("raw")) > 3
        assert list(shop.fates().values())[:4] == ["ok", "dead", "dead", "ok"]
        assert list(shop.fates().values())[12:16] == ["ok", "dead", "dead", "dead"]
        assert shop.raw() == bounded.raw()
        assert shop.silver() == bounded.silver()


def test_a_second_start_goes_on_where_raw_ends_whatever_became_of_the_checkpoint(shop: Engine) -> None:
    shop.send(event("a", at=1), event("b", at=2), event("a", at=3, partition=1))
    catch_up(shop)
    shop.send(event("a", at=4), event("c", at=5))
    catch_up(shop)
    assert_nothing_lost(shop)
    assert sorted(shop.fates().items()) == [
        ((0, 0), "ok"), ((0, 1), "ok"), ((0, 2), "duplicate"), ((0, 3), "ok"), ((1, 0), "ok"),
    ]  # fmt: skip
    versions = len(shop.log("raw"))
    catch_up(shop)
    assert len(shop.log("raw")) == versions, "nothing was new"


class Killed(Exception):
    """Stands for a kill at one place."""


def die_before_silver(engine: Engine, monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Commit the next records to raw as a batch would, and end before silver."""

    def die(*_: object) -> None:
        raise Killed

    start = Start(engine.settings, engine.table, "killed", "")
    batches = MicroBatches(start, engine.spark)
    ranges = {0: OffsetRange(records - 3, records)}
    decided, facts = batches._decide(kafka_source.read(engine.spark, engine.settings, engine.topic, [ranges]))
    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "commit_silver", die)
        with pytest.raises(Killed):
            piece = Piece(slice_of("10"), ranges, {})
            batches._write(piece, decided, facts, np.zeros(len(facts), bool), 1, alone=True)
            batches.drain()


def test_a_batch_that_raw_has_and_silver_lacks_reaches_silver_by_raws_decision(
    shop: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state after a kill between the two commits, and a start under another contract."""
    shop.send(event("a", 5, at=1), event("b", 150, at=2))
    shop.sliced(NOW)
    catch_up(shop)
    shop.send(event("c", 7, at=3), event("d", 200, at=4), Sent(b"no json", 5))
    die_before_silver(shop, monkeypatch, 5)
    assert clean(shop) == [(0, 0), (0, 1)]

    stricter = shop.with_table(contract=contract_of(StricterEvent))
    stricter.send(event("e", 8, at=6), event("f", 300, at=7))
    catch_up(stricter)
    assert clean(stricter) == ok_places(stricter) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 6)]
    assert stricter.fates()[0, 5] == "dead"
    assert archived(stricter) == consumed(stricter)


def test_a_restored_table_stops_the_stream_and_resume_brings_both_to_one_cut(shop: Engine, spark: SparkSession) -> None:
    for number in range(3):
        shop.send(event(f"k{number}", at=number), event(f"l{number}", at=number, partition=1))
        catch_up(shop)
    assert len(clean(shop)) == 6
    table = shop.settings.lake_env.path(f"raw/{shop.table.name}")
    older = [one.version for one in shop.log("raw") if one.record and one.record.kind == "append"][1]
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {older}").collect()
    with pytest.raises(FatalError, match=r"was restored to version .*resume .*--from-table"):
        catch_up(shop)
    assert len(archived(shop)) == 4

    resume.from_table(shop.settings, shop.table)
    assert len(clean(shop)) == 4
    shop.send(event("m", at=9))
    catch_up(shop)
    assert archived(shop) == consumed(shop)
    assert clean(shop) == ok_places(shop)
    assert len(clean(shop)) == 7


def test_silver_restored_alone_is_made_again_from_raw(shop: Engine, spark: SparkSession) -> None:
    for number in range(3):
        shop.send(event(f"k{number}", at=number))
        catch_up(shop)
    table = shop.settings.lake_env.path(f"silver/{shop.table.name}")
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {shop.log('silver')[-2].version}").collect()
    with pytest.raises(FatalError, match=r"silver/.* was restored"):
        catch_up(shop)
    resume.from_table(shop.settings, shop.table)
    catch_up(shop)
    assert archived(shop) == consumed(shop)
    assert clean(shop) == ok_places(shop) == [(0, 0), (0, 1), (0, 2)]


def test_a_topic_made_again_stops_the_stream_until_it_is_accepted(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    from lineage_assets.kafka.client import create_topic, describe
    from tests.integration.engine import TOPIC_CONFIG

    with fresh(stack, spark, tmp_path, unique_by=("id",)) as shop:
        shop.send(event("a", at=1), event("b", at=2))
        catch_up(shop)
        before = describe(shop.settings, shop.topic).id
        shop.delete_topic()
        create_topic(shop.settings, shop.topic, 1, TOPIC_CONFIG)
        after = describe(shop.settings, shop.topic).id
        shop.send(event("a", at=3), event("c", at=4), event("c", at=5))
        with pytest.raises(FatalError, match=f"{before}.*{after}.*topic accept"):
            catch_up(shop)
        ref = ledger.TopicRef(shop.settings.kafka_alias, shop.topic, after)
        assert ledger.accept(shop.settings.lake_env, ref, [before]) == [before]
        catch_up(shop)
        rows = shop.raw()
        assert sorted((row["topic_id"], row["offset"], row["fate"]) for row in rows) == sorted(
            [(before, 0, "ok"), (before, 1, "ok"), (after, 0, "ok"), (after, 1, "ok"), (after, 2, "duplicate")]
        )
        assert sorted(row["id"] for row in shop.silver()) == ["a", "a", "b", "c"]


def test_what_retention_took_unread_is_named_counted_and_fails_its_check(shop: Engine) -> None:
    shop.send(*(event(f"a{n}", at=n) for n in range(5)))
    catch_up(shop)
    shop.send(*(event(f"b{n}", at=10 + n) for n in range(10)))
    shop.delete_records({0: 12})
    said: list[str] = []
    catch_up(shop, said=said)
    assert any(f"{shop.topic}/0@[5, 12)" in one for one in said), said
    assert sorted(offset for _, offset in archived(shop)) == [0, 1, 2, 3, 4, 12, 13, 14]
    assert clean(shop) == ok_places(shop)
    # What came after the first look belongs to the slice that it came in.
    (record,) = [one for one in whole(shop).values() if one.stated.get("lost")]
    assert record.slice != slice_of("10").key
    assert lost_offsets(record) == {0: (OffsetRange(5, 12),)}
    conservation = next(one for one in record.checks if one.name == "conservation")
    assert (conservation.passed, conservation.severity, conservation.failed) == (False, "ERROR", 7)


def test_records_of_aborted_transactions_are_no_rows_and_balance(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with fresh(stack, spark, tmp_path, transactional=True) as shop:
        with shop.transaction("one") as send:
            send(event("a", at=1), event("b", at=2))
        with shop.transaction("two") as send:
            send(event("gone", at=3))
            raise Abort
        with shop.transaction("three") as send:
            send(event("c", at=4))
        shop.await_end(7)
        catch_up(shop, bite=2)
        assert_nothing_lost(shop)
        assert [row["id"] for row in shop.silver()] == ["a", "b", "c"]
        records = list(whole(shop).values())
        assert all(one.passed for record in records for one in record.checks if one.name == "conservation")
        gaps = [kinds for record in records for kinds in record.stated.get("gaps", {}).values()]
        assert sum(sum(kinds.values()) for kinds in gaps) == 4


def test_partitions_that_are_added_while_the_stream_runs_are_read_from_their_beginning(shop: Engine) -> None:
    with streaming(shop):
        shop.send(event("a", at=1), event("b", at=2, partition=1))
        await_rows(shop, 2)
        shop.add_partitions(3)
        shop.send(*(event(f"c{n}", at=3, partition=2) for n in range(3)))
        await_rows(shop, 5)
    assert_nothing_lost(shop)


def test_one_stream_a_topic_and_its_slices_are_left_to_it(shop: Engine) -> None:
    shop.send(event("a", at=1), event("b", at=61))
    with streaming(shop):
        await_rows(shop, 2)
        with pytest.raises(TransientError, match=r"runs already.*stream stop"):
            catch_up(shop)
        now = shop.sliced().cuts[-1].at
        with pytest.raises(TransientError, match="is being written by the stream"):
            from lineage_assets.lineage.slices import Slice
            from lineage_assets.spark.process import process

            process(shop.job(shop.sliced()), Slice(now, shop.table.grain))
    assert lease.live(shop.settings.lake_env, shop.topic) is None


def test_a_backfill_beside_a_stream_neither_loses_nor_doubles_nor_fails(shop: Engine) -> None:
    shop.send(*(event(f"a{n}", at=float(n)) for n in range(0, 180, 5)))
    faults: list[BaseException] = []
    ended = threading.Event()

    def produce() -> None:
        number = 0
        while not ended.is_set():
            shop.send(event(f"n{number}", at=200.0, partition=1))
            number += 1
            time.sleep(0.05)

    def backfill(key: str) -> None:
        try:
            with session(shop.settings) as own:
                from dataclasses import replace

                replace(shop, spark=own).process(key)
        except BaseException as error:
            faults.append(error)

    with streaming(shop):
        await_rows(shop, 36)
        producer = threading.Thread(target=produce)
        producer.start()
        runs = [threading.Thread(target=backfill, args=(key,)) for key in ("10", "11", "12")]
        for one in runs:
            one.start()
        for one in runs:
            one.join()
        ended.set()
        producer.join()
        await_rows(shop, len(consumed(shop)))
    assert not faults
    assert_nothing_lost(shop)
    kinds = [one.record.kind for one in shop.log("raw") if one.record]
    assert kinds.count("replace") >= 3 and kinds.count("append") > 3


class streaming:
    """A stream of an engine's topic in a thread, ended after its batch at the end of the block."""

    def __init__(self, engine: Engine, **options: object) -> None:
        self._engine, self.stop, self.said = engine, threading.Event(), list[str]()
        self.failure: BaseException | None = None
        self._options = stream.Options(**options)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            stream.run(self._engine.settings, self._engine.table, self._options, self.stop, self.said.append)
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> streaming:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


def await_rows(engine: Engine, count: int, timeout_s: float = 90.0) -> None:
    """Wait until raw has so many rows."""
    until = time.monotonic() + timeout_s
    while len(engine.raw()) < count:
        assert time.monotonic() < until, f"raw has {len(engine.raw())} of {count} rows"
        time.sleep(0.2)


def test_a_slow_sink_halves_the_bite_and_good_batches_bring_it_back(
    shop: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bite, "GOOD_BATCHES", 2)
    slow = "java_method('java.lang.Thread', 'sleep', CAST(3 AS bigint))"
    lazy = shop.with_table(select=f"SELECT id, amount, {slow} AS slow FROM records")
    lazy.send(*(event(f"a{n}", at=1.0) for n in range(9000)))
    with streaming(lazy, profile=replace(stream.PROFILES["embedded"], bite=2000)) as running:
        await_rows(lazy, 9000, timeout_s=180)
        until = time.monotonic() + 90
        while not any("2 good batches: from now on at most 2000" in one for one in running.said):
            assert time.monotonic() < until, running.said
            lazy.send(event(f"small{time.monotonic()}", at=1.0))
            time.sleep(0.5)
        await_rows(lazy, len(consumed(lazy)))
    assert any("from now on at most 1000 records a batch, before 2000" in one for one in running.said), running.said
    assert any("2 good batches: from now on at most 2000 records" in one for one in running.said), running.said
    assert lease.read(lazy.settings.lake_env, lazy.topic).facts["restarts"] >= 2  # type: ignore[union-attr]
    assert_nothing_lost(lazy)


@contextmanager
def forwarded(to: str) -> Iterator[tuple[int, threading.Event]]:
    """A port that refuses connections until the event is set, and from then on is the address `to` (host:port)."""
    host, _, port = to.partition(":")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    opened, ended = threading.Event(), threading.Event()

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        opened.wait()
        listener.listen()
        while not ended.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], opened
    finally:
        ended.set()
        opened.set()
        listener.close()


@contextmanager
def full_disk(settings: Settings) -> Iterator[None]:
    """Spark's files may not grow any more: the kernel refuses it, as it does on a disk that is full."""
    record = process.read(settings.stack_dir, "spark")
    assert record is not None
    server = psutil.Process(process.main_pid(record))
    before = server.rlimit(psutil.RLIMIT_FSIZE)
    server.rlimit(psutil.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        server.rlimit(psutil.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_the_stream_with_its_name_and_costs_no_row(shop: Engine) -> None:
    shop.send(*(event(f"a{n}", at=1.0) for n in range(300)))
    catch_up(shop)
    shop.send(*(event(f"a{n}", at=2.0) for n in range(200, 600)))
    with full_disk(shop.settings), pytest.raises(FatalError, match="takes no more") as caught:
        catch_up(shop)
    assert "free space" in caught.value.remedy
    assert len(shop.raw()) == 300
    catch_up(shop)
    assert_nothing_lost(shop)
    assert len(shop.raw()) == 700 and len(shop.silver()) == 600


def test_a_registry_that_is_away_is_waited_for_and_named_when_it_stays_away(
    stack: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LONGEST_PAUSE_S", 2.0)
    address = urlsplit(stack.registry)
    with (
        fresh(stack, spark, tmp_path, format="avro") as shop,
        forwarded(f"{address.hostname}:{address.port}") as (port, opened),
    ):
        schema_id = Registry(stack).register(shop.table.subject, EVENT_AVRO)
        shop.send(Sent(framed(schema_id, avro_bytes(EVENT_AVRO, {"id": "a", "amount": 1})), at=1))
        away = shop.with_settings(registry_url=f"http://127.0.0.1:{port}{address.path}")
        with monkeypatch.context() as patched:
            patched.setattr(stream, "FAILURES_IN_A_ROW", 2)
            with pytest.raises(TransientError, match=r"2 starts in a row failed.*registry"):
                catch_up(away)
        with streaming(away) as running:
            until = time.monotonic() + 60
            while not any("again in" in one for one in running.said):
                assert time.monotonic() < until
                time.sleep(0.1)
            opened.set()
            await_rows(away, 1)
        assert [row["id"] for row in away.silver()] == ["a"]
