"""How large a topic's records are, by a look at the newest few of each partition.

Belongs here: that look. Does not belong here: what follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lineage_assets.kafka import client
from lineage_assets.settings import Settings

RECORDS_A_PARTITION = 200
WAIT_S = 3.0


def mean_bytes(settings: Settings, topic: str, begin: Mapping[int, int], end: Mapping[int, int]) -> float | None:
    """Mean bytes of key and value of some of the newest records; None when none came in time."""
    from confluent_kafka import Consumer, TopicPartition

    wanted = [
        TopicPartition(topic, partition, max(begin.get(partition, 0), last - RECORDS_A_PARTITION))
        for partition, last in end.items()
        if last > begin.get(partition, 0)
    ]
    if not wanted:
        return None
    own = {"group.id": "lineage-sample", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(client.client_config(settings, **own))
    sizes: list[int] = []
    try:
        consumer.assign(wanted)
        until = time.monotonic() + WAIT_S
        while len(sizes) < RECORDS_A_PARTITION and time.monotonic() < until:
            for message in consumer.consume(RECORDS_A_PARTITION, 0.2):
                if message.error() is None:
                    sizes.append(len(message.key() or b"") + len(message.value() or b""))
            if sizes and len(sizes) >= sum(end[one.partition] - one.offset for one in wanted):
                break
    finally:
        consumer.close()
    return sum(sizes) / len(sizes) if sizes else None
