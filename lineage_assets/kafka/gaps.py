"""Offsets that hold no record, measured by a second client that sees what read_committed hides.

Belongs here: counting a partition's gaps by kind. Does not belong here: whether a gap is a fault.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from lineage_assets.errors import TransientError
from lineage_assets.kafka import client
from lineage_assets.lineage.offsets import OffsetRange, Ranges
from lineage_assets.settings import Settings

IDLE_S = 10.0
"""A consumer that hears nothing for this long, inside a range that the broker says is there, is stuck."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """How many records of a partition's range each kind of reader is given."""

    committed: int
    uncommitted: int

    @property
    def aborted(self) -> int:
        return self.uncommitted - self.committed


def measure(settings: Settings, topic: str, ranges: Ranges) -> dict[int, Delivered]:
    """Per partition, the records delivered with read_committed and with read_uncommitted.

    What a range spans beyond `uncommitted` are transaction markers and the holes that compaction left.
    """
    return {
        partition: Delivered(*(_count(settings, topic, partition, span, level) for level in LEVELS))
        for partition, span in ranges.items()
        if span.span
    }


LEVELS = ("read_committed", "read_uncommitted")


def _count(settings: Settings, topic: str, partition: int, span: OffsetRange, level: str) -> int:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    own = {
        "isolation.level": level,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        # A range that is gone is an error, not the end of the topic.
        "auto.offset.reset": "error",
        "group.id": "lineage-gaps",
    }
    consumer = Consumer(client.client_config(settings, **own))
    try:
        consumer.assign([TopicPartition(topic, partition, span.start)])
        found, heard = 0, time.monotonic()
        while time.monotonic() - heard < IDLE_S:
            for message in consumer.consume(10_000, 0.5):
                heard = time.monotonic()
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found
                if error is not None:
                    raise TransientError(f"reading {topic}/{partition} failed: {error}", remedy="try again")
                if message.offset() >= span.end:
                    return found
                found += 1
            position = consumer.position([TopicPartition(topic, partition)])[0].offset
            if position >= span.end:
                return found
        raise TransientError(
            f"{topic}/{partition} delivered nothing for {IDLE_S} s below {span.end}", remedy="try again"
        )
    finally:
        consumer.close()
