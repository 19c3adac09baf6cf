"""Kafka's default partitioner, asked itself: librdkafka's `murmur2_random` puts records where we say.

Belongs here: kafka/partitioner.py beside a real client and broker. Does not belong here: its arithmetic
(tests/unit/test_partitioner.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient

from lineage_assets.kafka.client import client_config, create_topic
from lineage_assets.kafka.partitioner import Spread, default_partition
from lineage_assets.settings import Settings

PARTITIONS = 7


@pytest.fixture
def topic(stack: Settings) -> Iterator[str]:
    name = f"partitioner-{uuid.uuid4().hex[:10]}"
    create_topic(stack, name, PARTITIONS)
    yield name
    AdminClient(client_config(stack)).delete_topics([name])[name].exception(20)


def placed(
    stack: Settings, topic: str, keys: list[bytes], partitions: list[int] | None = None
) -> list[tuple[bytes, int]]:
    """(key, partition) as the broker confirmed them."""
    found: list[tuple[bytes, int]] = []

    def confirm(error: object, message: Message) -> None:
        assert error is None
        found.append((message.key() or b"", message.partition() or 0))

    producer = Producer(client_config(stack, partitioner="murmur2_random"))
    for index, key in enumerate(keys):
        where = {} if partitions is None else {"partition": partitions[index]}
        producer.produce(topic, b"", key, on_delivery=confirm, **where)
    assert producer.flush(20) == 0
    return found


def test_the_client_puts_every_key_where_we_say(stack: Settings, topic: str) -> None:
    keys = [
        b"",
        b"42",
        "schlüssel".encode(),
        *(uuid.uuid4().bytes[:n] for n in range(1, 17)),
        *(b"%d" % n for n in range(300)),
    ]

    found = placed(stack, topic, keys)

    assert len(found) == len(keys)
    assert [(key, default_partition(key, PARTITIONS)) for key, _ in found] == found


def test_a_hot_key_is_spread_by_a_producer_that_is_told_the_partition(stack: Settings, topic: str) -> None:
    spread = Spread(PARTITIONS, {b"hot": 3})
    keys = [b"hot", b"42"] * 200
    partitions = [spread.partition(key, b"event-%d" % n) for n, key in enumerate(keys)]

    found = placed(stack, topic, keys, partitions)

    home = default_partition(b"hot", PARTITIONS)
    assert {p for key, p in found if key == b"hot"} == {(home + step) % PARTITIONS for step in range(3)}
    assert {p for key, p in found if key == b"42"} == {default_partition(b"42", PARTITIONS)}
