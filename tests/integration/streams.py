"""What the tests of streams share: running one to the end of its topic, and what a plain consumer reads.

Belongs here: helpers without a verdict. Does not belong here: tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from lineage_assets.kafka.client import client_config, describe
from lineage_assets.lineage.commits import commits
from lineage_assets.lineage.content import newest_by_slice
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.spark import stream
from tests.integration.engine import Engine

Place = tuple[int, int]


def catch_up(engine: Engine, bite: int = 1_000_000, said: list[str] | None = None) -> None:
    """Stream what the topic has now, in batches of at most `bite` records, and end."""
    say: Callable[[str], None] = (lambda _: None) if said is None else said.append
    options = stream.Options(replace(stream.PROFILES["embedded"], bite=bite), until_caught_up=True)
    stream.run(engine.settings, engine.table, options, threading.Event(), say)


def consumed(engine: Engine) -> dict[Place, bytes | None]:
    """What a plain consumer reads: the value of every committed record that the topic has, by place."""
    topic = describe(engine.settings, engine.topic)
    more: dict[str, Any] = {
        "group.id": "plain",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(client_config(engine.settings, **more))
    found: dict[Place, bytes | None] = {}
    try:
        consumer.assign([TopicPartition(engine.topic, p, 0) for p in topic.partitions])
        ended: set[int] = set()
        while len(ended) < len(topic.partitions):
            for message in consumer.consume(1000, 1.0):
                partition, offset, error = message.partition(), message.offset(), message.error()
                assert partition is not None
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(partition)
                else:
                    assert offset is not None
                    found[partition, offset] = message.value()
    finally:
        consumer.close()
    return found


def archived(engine: Engine) -> dict[Place, bytes | None]:
    """What raw holds, by place; each place once."""
    rows = engine.raw()
    found = {(row["partition"], row["offset"]): row["value"] for row in rows}
    assert len(found) == len(rows), "an offset stands twice in raw"
    return found


def clean(engine: Engine) -> list[Place]:
    """The places of silver's rows, in order; each place once."""
    places = [(row["_partition"], row["_offset"]) for row in engine.silver()]
    assert len(set(places)) == len(places), "an offset stands twice in silver"
    return places


def ok_places(engine: Engine) -> list[Place]:
    """The places that raw calls ok, in order."""
    return sorted(place for place, fate in engine.fates().items() if fate == "ok")


def whole(engine: Engine, layer: str = "raw") -> dict[str | None, CommitRecord]:
    """What the records of each slice say together."""
    history = commits(engine.settings.lake_env, f"{layer}/{engine.table.name}")
    return {key: record for key, (_, record) in newest_by_slice(history).items()}


def assert_nothing_lost(engine: Engine) -> None:
    """Raw is what a consumer reads, silver follows from raw, and every commit has its record."""
    assert archived(engine) == consumed(engine)
    assert clean(engine) == ok_places(engine)
    for layer in ("raw", "silver"):
        assert all(one.record is not None for one in engine.log(layer))
