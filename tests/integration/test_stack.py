"""The embedded stack as it really runs: what answers, who may reach it, what survives.

Belongs here: stack/ with the real Kafka, registry and Spark. Does not belong here: what the pipeline does with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.errors import PySparkException
from pyspark.sql.connect import functions as F
from pyspark.sql.connect.session import SparkSession

from lineage_assets.settings import Settings
from lineage_assets.stack import control, process, state

OLD_MS = 1_357_000_000_000  # 1 January 2013
RECORD = '{"type": "record", "name": "R", "fields": [{"name": "%s", "type": "long"}]}'


@pytest.fixture
def topic(stack: Settings) -> str:
    return make_topic(stack)


@pytest.fixture(scope="session")
def spark(stack: Settings) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(stack.spark).create()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A second home beside the session's, with broker and registry only: Spark is said to be somebody's own."""
    settings = Settings(home=tmp_path_factory.mktemp("small"), spark_remote="sc://nowhere.example")  # type: ignore[arg-type]
    control.up(settings)
    yield settings
    control.down(settings)


def test_every_part_runs_and_all_together_stay_below_6_gb(stack: Settings) -> None:
    rows = state.states(stack)
    assert [(row.part, row.state) for row in rows[:3]] == [(part, "running") for part in ("kafka", "registry", "spark")]
    assert 0 < state.total_memory_mb(rows) < 6144


def test_a_second_up_changes_nothing_and_takes_less_than_two_seconds(stack: Settings) -> None:
    pids = [record.pid for record in process.records(stack.stack_dir)]
    begun = time.monotonic()
    done = lineage("up", "--json", home=stack.home)
    seconds = time.monotonic() - begun
    assert {part["what"] for part in json.loads(done.stdout)} == {"running"}
    assert [record.pid for record in process.records(stack.stack_dir)] == pids
    assert seconds < 2


def test_only_this_machine_reaches_the_stack(stack: Settings) -> None:
    listening = [
        connection.laddr
        for record in process.records(stack.stack_dir)
        for part in process.tree(record)
        for connection in part.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 4
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_spark_refuses_who_does_not_know_the_token(stack: Settings) -> None:
    for address in (stack.spark.split(";")[0], stack.spark.split(";")[0] + ";token=guess"):
        with pytest.raises(PySparkException, match=r"(?i)UNAUTHENTICATED|token"):
            SparkSession(address).sql("select 1").collect()


def test_the_token_is_shown_nowhere(stack: Settings) -> None:
    token = stack.spark.partition("token=")[2]
    arguments = [part.cmdline() for record in process.records(stack.stack_dir) for part in process.tree(record)]
    logs = [path.read_text() for path in (stack.stack_dir / "logs").iterdir()]
    shown = [lineage("status", home=stack.home).stdout, lineage("status", "--json", home=stack.home).stdout]
    assert token not in repr(arguments) + "".join(logs) + "".join(shown)


def test_spark_writes_delta_in_utc_with_row_tracking(stack: Settings, spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = spark.range(6).withColumn("_slice", (F.col("id") % 2).cast("string"))
    for _ in range(2):
        write = rows.write.format("delta").mode("append").partitionBy("_slice").option("userMetadata", '{"v": 1}')
        write.option("delta.enableRowTracking", "true").save(table)
    read = spark.read.format("delta").load(table)
    versions = read.select(F.col("_metadata.row_commit_version").alias("version")).distinct().collect()
    assert {row.version for row in versions} == {0, 1}
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_python_in_the_server_has_our_package(spark: SparkSession) -> None:
    def name(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import lineage_assets

        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"name": lineage_assets.__name__}] * batch.num_rows)

    assert {row.name for row in spark.range(2).mapInArrow(name, "name string").collect()} == {"lineage_assets"}


def test_spark_reads_from_the_broker_what_was_produced_with_an_old_timestamp(
    stack: Settings, spark: SparkSession, topic: str
) -> None:
    produce(stack, topic, count=5)
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", stack.kafka).option("subscribe", topic).load()
    assert [row.ms for row in read.select(F.unix_millis("timestamp").alias("ms")).distinct().collect()] == [OLD_MS]
    assert read.count() == 5


def test_a_topic_that_nobody_made_is_not_made_by_asking_for_it(stack: Settings) -> None:
    name = f"never-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.list_topics(name, timeout=10)
    assert name not in admin.list_topics(timeout=10).topics


def test_equal_schemas_have_one_id_as_in_confluents_registry(stack: Settings) -> None:
    registry = SchemaRegistryClient({"url": stack.registry})
    one, two = f"one-{uuid.uuid4().hex}-value", f"two-{uuid.uuid4().hex}-value"
    first = registry.register_schema(one, Schema(RECORD % "x", "AVRO"))
    assert registry.register_schema(two, Schema(RECORD % "x", "AVRO")) == first
    assert registry.register_schema(two, Schema(RECORD % "other", "AVRO")) != first


def test_two_homes_run_side_by_side_and_share_nothing(stack: Settings, small: Settings, topic: str) -> None:
    assert small.kafka != stack.kafka and small.registry != stack.registry
    topics = AdminClient({"bootstrap.servers": small.kafka}).list_topics(timeout=10).topics
    assert topic not in topics
    assert [(row.part, row.state) for row in state.states(small)[:3]] == [
        ("kafka", "running"),
        ("registry", "running"),
        ("spark", "yours"),
    ]


def test_down_and_up_lose_nothing_and_touch_no_other_home(stack: Settings, small: Settings) -> None:
    topic = make_topic(small)
    produce(small, topic, count=7)
    registry = SchemaRegistryClient({"url": small.registry})
    schema_id = registry.register_schema(f"{topic}-value", Schema(RECORD % "kept", "AVRO"))
    before = topic_id(small, topic)
    others = [record.pid for record in process.records(stack.stack_dir)]

    assert control.down(small) == [("registry", "stopped"), ("kafka", "stopped")]
    assert [row.state for row in state.states(small)[:2]] == ["stopped", "stopped"]
    control.up(small)

    assert topic_id(small, topic) == before
    assert end_offset(small, topic) == 7
    registry = SchemaRegistryClient({"url": small.registry})
    assert registry.get_latest_version(f"{topic}-value").schema_id == schema_id
    assert registry.register_schema(f"{topic}-next", Schema(RECORD % "later", "AVRO")) > schema_id
    assert [record.pid for record in process.records(stack.stack_dir)] == others


def test_a_broker_that_was_killed_is_shown_dead_and_comes_back_with_its_records(small: Settings) -> None:
    topic = make_topic(small)
    produce(small, topic, count=3)
    record = process.read(small.stack_dir, "kafka")
    assert record
    whole = process.tree(record)
    psutil.Process(process.main_pid(record)).kill()
    psutil.wait_procs(whole, timeout=10)
    row = state.states(small)[0]
    assert (row.part, row.state) == ("kafka", "dead") and "SIGKILL" in row.note
    assert [part.what for part in control.up(small)] == ["running", "started", "yours"]
    assert end_offset(small, topic) == 3


def lineage(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LINEAGE_HOME": str(home)}
    program = [sys.executable, "-m", "lineage_assets.cli", *arguments]
    return subprocess.run(program, capture_output=True, text=True, env=env, check=False)


def make_topic(settings: Settings) -> str:
    name = f"t-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": settings.kafka})
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(30)
    return name


def produce(settings: Settings, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": settings.kafka})
    for n in range(count):
        producer.produce(topic, value=str(n).encode(), timestamp=OLD_MS)
    assert producer.flush(30) == 0


def topic_id(settings: Settings, topic: str) -> str:
    from confluent_kafka import TopicCollection

    admin = AdminClient({"bootstrap.servers": settings.kafka})
    (described,) = admin.describe_topics(TopicCollection([topic])).values()
    return str(described.result(30).topic_id)


def end_offset(settings: Settings, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": settings.kafka, "group.id": "test"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()
