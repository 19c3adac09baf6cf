"""What the tests of process(slice) share: a fresh topic, records with any bytes, a table over it, plain reading.

Belongs here: helpers without a verdict. Does not belong here: tests, fixtures of the stack (conftest.py).
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandera.pandas as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from lineage_assets.kafka.client import client_config, create_topic, describe, end_offsets
from lineage_assets.kafka.cuts import SlicedTopic, slice_topic
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage.commits import Commit, commits, open_table
from lineage_assets.lineage.record import CheckOutcome, CommitRecord
from lineage_assets.lineage.slices import Grain, Slice
from lineage_assets.quality.compiler import compile_model
from lineage_assets.quality.contract import Contract
from lineage_assets.settings import Settings
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.job import Job
from lineage_assets.spark.process import Processed, process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
"""Start of the first hour of every test's topic."""
NOW = T0 + timedelta(hours=3, minutes=30)
"""When the tests look at a topic, if they do not say otherwise: 10, 11 and 12 are closed, 13 is open."""

TOPIC_CONFIG = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)}
BASE_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


class Event(pa.DataFrameModel):
    """A small event, as JSON or Avro."""

    id: str = pa.Field(nullable=True)
    amount: int = pa.Field(ge=0, nullable=True)


class StricterEvent(pa.DataFrameModel):
    """The same under a contract that allows less."""

    id: str = pa.Field(nullable=True)
    amount: int = pa.Field(ge=100, nullable=True)


EVENT_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Event",
        "fields": [{"name": "id", "type": ["null", "string"]}, {"name": "amount", "type": ["null", "long"]}],
    }
)


@dataclass(frozen=True, slots=True)
class Sent:
    """One record to produce; `at` is minutes after T0."""

    value: bytes | None
    at: float = 0.0
    key: bytes | None = None
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] | None = None

    @property
    def timestamp_ms(self) -> int:
        return minute_ms(self.at)


def minute_ms(at: float) -> int:
    """A Kafka timestamp so many minutes after T0."""
    return int(T0.timestamp() * 1000) + round(at * 60_000)


def event(id: str | None, amount: int | None = 1, at: float = 0.0, partition: int = 0, **more: Any) -> Sent:
    """A JSON event. Minute 0 to 59 lies in hour 10."""
    return Sent(json.dumps({"id": id, "amount": amount}).encode(), at, partition=partition, **more)


def contract_of(model: type[pa.DataFrameModel]) -> Contract:
    """A compiled contract."""
    return compile_model(model, lambda field: f"{model.__name__}.{field}")


def avro_bytes(schema: str, record: Mapping[str, Any]) -> bytes:
    """A datum without its header."""
    from fastavro import parse_schema, schemaless_writer

    buffer = io.BytesIO()
    schemaless_writer(buffer, parse_schema(json.loads(schema)), dict(record))
    return buffer.getvalue()


def framed(schema_id: int, payload: bytes) -> bytes:
    """A payload behind the Confluent header."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


@dataclass(frozen=True, slots=True)
class Engine:
    """A table over a topic of its own, in a lake of its own."""

    settings: Settings
    spark: SparkSession
    table: EventTable

    @property
    def topic(self) -> str:
        return self.table.topic

    def with_table(self, **changes: Any) -> Engine:
        """The same topic and lake under another declaration."""
        return replace(self, table=replace(self.table, **changes))

    def with_settings(self, **changes: Any) -> Engine:
        """The same table with other addresses."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def in_lake(self, folder: Path) -> Engine:
        """The same topic with an empty lake and ledger."""
        return self.with_settings(lake=str(folder))

    def send(self, *records: Sent) -> None:
        """Produce in this order and wait for the broker."""
        producer = Producer(client_config(self.settings, **{"enable.idempotence": True}))
        produce(producer, self.topic, records)
        assert producer.flush(20) == 0

    @contextmanager
    def transaction(self, id: str = "") -> Iterator[Callable[..., None]]:
        """A transaction; what it yields sends records in it. It is committed at the end, aborted by `Abort`."""
        config = {"transactional.id": f"{self.topic}{id}"}
        producer = Producer(client_config(self.settings, **config))
        producer.init_transactions(20)
        producer.begin_transaction()
        try:
            yield lambda *records: produce(producer, self.topic, records)
        except Abort:
            producer.flush(20)
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)

    def delete_records(self, upto: Mapping[int, int]) -> None:
        """What retention does: the log begins at these offsets from now on."""
        wanted = [TopicPartition(self.topic, partition, offset) for partition, offset in upto.items()]
        admin = AdminClient(client_config(self.settings))
        for future in admin.delete_records(wanted).values():
            future.result(20)

    def delete_topic(self) -> None:
        """Delete the topic and wait until it is gone."""
        admin = AdminClient(client_config(self.settings))
        admin.delete_topics([self.topic])[self.topic].result(20)
        while self.topic in admin.list_topics(timeout=10).topics:
            admin.poll(0.05)

    def add_partitions(self, total: int) -> None:
        """Raise the topic's number of partitions and wait until they can be written."""
        admin = AdminClient(client_config(self.settings))
        admin.create_partitions([NewPartitions(self.topic, total)])[self.topic].result(20)
        while len(admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions) < total:
            admin.poll(0.05)

    def await_end(self, offset: int) -> None:
        """Wait until partition 0 ends there: a broker confirms the end of a transaction before it writes the marker."""
        topic = describe(self.settings, self.topic)
        while end_offsets(self.settings, topic)[0] < offset:
            time.sleep(0.02)

    def sliced(self, now: datetime = NOW) -> SlicedTopic:
        """The topic as of `now`."""
        return slice_topic(
            self.settings, self.settings.lake_env, self.topic, self.table.grain, self.table.since, now=now
        )

    def job(self, sliced: SlicedTopic | None = None) -> Job:
        """What `process` works with."""
        return Job(self.spark, self.settings, self.table, sliced or self.sliced(), "a-run", Registry(self.settings))

    def process(self, key: str, now: datetime = NOW) -> Processed:
        """Materialize one slice, such as `"10"` for the first hour."""
        return process(self.job(self.sliced(now)), slice_of(key))

    def rows(self, asset: str, key: str | None = None) -> list[dict[str, Any]]:
        """All rows of a table, or of one slice, by partition and offset; read without Spark."""
        table = open_table(self.settings.lake_env, f"{asset}/{self.table.name}")
        if table is None:
            return []
        rows = table.to_pyarrow_table().to_pylist()
        if key is not None:
            rows = [row for row in rows if row["_slice"] == slice_of(key).key]
        return sorted(rows, key=lambda row: _place(row))

    def raw(self, key: str | None = None) -> list[dict[str, Any]]:
        return self.rows("raw", key)

    def silver(self, key: str | None = None) -> list[dict[str, Any]]:
        return self.rows("silver", key)

    def fates(self, key: str | None = None) -> dict[tuple[int, int], str]:
        """Fate by (partition, offset)."""
        rows = self.raw(key)
        found = {(row["partition"], row["offset"]): row["fate"] for row in rows}
        assert len(found) == len(rows), "an offset stands twice"
        return found

    def log(self, asset: str) -> list[Commit]:
        """The table's commits, newest first."""
        return commits(self.settings.lake_env, f"{asset}/{self.table.name}")


class Abort(Exception):
    """Raised inside `Engine.transaction` to abort it."""


def produce(producer: Producer, topic: str, records: Sequence[Sent]) -> None:
    """Hand records to a producer, whose flush sends them."""
    for one in records:
        headers = None if one.headers is None else list(one.headers)
        producer.produce(
            topic, one.value, one.key, partition=one.partition, timestamp=one.timestamp_ms, headers=headers
        )


def slice_of(key: str) -> Slice:
    """The slice of an hour of T0's day."""
    return Slice.of(f"{T0:%Y-%m-%d}-{key}", Grain.hour)


def record_of(commit: Commit) -> CommitRecord:
    """A commit's record, which it must have."""
    assert commit.record is not None
    return commit.record


def check(done: Processed, name: str) -> CheckOutcome:
    """One outcome of a slice."""
    return next(one for one in record_of(done.silver).checks if one.name == name)


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return (row["partition"], row["offset"]) if "offset" in row else (row["_partition"], row["_offset"])


@contextmanager
def fresh(
    stack: Settings,
    spark: SparkSession,
    lake: Path,
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    **declared: Any,
) -> Iterator[Engine]:
    """An engine over a fresh topic, which is removed in the end. A JSON table under `Event` unless declared otherwise."""
    name = f"engine-{uuid.uuid4().hex[:10]}"
    settings = stack.model_copy(update={"lake": str(lake)})
    create_topic(stack, name, partitions, {**TOPIC_CONFIG, **(config or {})})
    declaration: dict[str, Any] = {
        "name": name,
        "topic": name,
        "format": "json",
        "grain": Grain.hour,
        "since": T0,
        "contract": contract_of(Event),
        **declared,
    }
    try:
        yield Engine(settings, spark, EventTable(**declaration))
    finally:
        admin = AdminClient(client_config(stack))
        admin.delete_topics([name])[name].exception(20)
