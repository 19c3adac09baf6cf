"""The demo's producer against the running stack: what it says of the topic is what the broker holds.

Belongs here: lineage_assets/demo/produce.py. Does not belong here: what the clicks are (tests/unit/test_shop.py).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from lineage_assets.demo.produce import Encoder, clicks_schema, produce_clicks, stored_truth
from lineage_assets.demo.shop import SLICE_KEY, make_clicks
from lineage_assets.errors import ContractError, TransientError
from lineage_assets.kafka.client import (
    Topic,
    client_config,
    create_topic,
    describe,
    end_offsets,
    offsets_for_times,
)
from lineage_assets.kafka.registry import Registry
from lineage_assets.settings import Settings

UNTIL = datetime(2026, 8, 1, 15, 42, tzinfo=UTC)


@pytest.fixture
def name(stack: Settings) -> Iterator[str]:
    """The name of a topic that does not exist; removed in the end."""
    name = f"produce-{uuid.uuid4().hex[:10]}"
    yield name
    admin = AdminClient(client_config(stack))
    if name in admin.list_topics(timeout=10).topics:
        admin.delete_topics([name])[name].result(10)
    for truth in (stack.home / "demo").glob(f"{name}-*"):
        truth.unlink()


def read_all(settings: Settings, topic: str, total: int) -> list[Message]:
    consumer = Consumer(client_config(settings, **{"group.id": topic, "enable.auto.commit": False}))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in describe(settings, topic).partitions])
    read: list[Message] = []
    deadline = time.monotonic() + 20
    while len(read) < total and time.monotonic() < deadline:
        read += consumer.consume(1000, timeout=1)
    consumer.close()
    return read


def test_the_topic_holds_the_very_records_at_their_offsets_with_their_timestamps(stack: Settings, name: str) -> None:
    made = produce_clicks(stack, topic=name, events=3_000, hours=3, until=UNTIL, partitions=2)

    messages = {(message.partition(), message.offset()): message for message in read_all(stack, name, 3_000)}
    encode = Encoder(clicks_schema(), made.schema_id)
    expected = make_clicks(events=3_000, hours=3, until=UNTIL, partitions=2).events
    assert len(messages) == len(expected) == made.records_in_topic == made.truth.records
    for event in expected:
        message = messages[event.partition, event.position]
        assert (message.timestamp()[1], message.key(), message.value()) == (
            event.timestamp_ms,
            event.key,
            encode(event),
        )


def test_the_truth_is_in_the_brokers_own_index(stack: Settings, name: str) -> None:
    made = produce_clicks(stack, topic=name, events=2_000, hours=4, until=UNTIL)

    hours = [datetime.strptime(key, SLICE_KEY).replace(tzinfo=UTC) for key in made.truth.hours]
    starts = offsets_for_times(stack, made.topic, [*hours, hours[-1] + timedelta(hours=1)])
    ends = end_offsets(stack, made.topic)
    for index, hour in enumerate(made.truth.hours.values()):
        for partition in made.topic.partitions:
            start, end = starts[partition][index : index + 2]
            assert hour.positions[partition] == (start, ends[partition] if end == -1 else end)
    assert made.delivered == {partition: (0, end) for partition, end in ends.items()}


def test_the_schema_is_registered_under_the_topics_subject(stack: Settings, name: str) -> None:
    made = produce_clicks(stack, topic=name, events=10, hours=1, until=UNTIL)

    assert [version.id for version in Registry(stack).versions(f"{name}-value")] == [made.schema_id]


def test_a_topic_that_has_records_is_left_alone_unless_asked_for(stack: Settings, name: str) -> None:
    first = produce_clicks(stack, topic=name, events=200, hours=1, until=UNTIL)
    assert stored_truth(stack, first.topic) == first.truth
    remade = Topic(first.topic.name, "another", first.topic.partitions, {})
    assert stored_truth(stack, remade) is None, "a topic that is made again has another truth"

    with pytest.raises(ContractError, match="holds 200 records already"):
        produce_clicks(stack, topic=name, events=200, hours=1, until=UNTIL)
    assert sum(end_offsets(stack, first.topic).values()) == 200

    second = produce_clicks(stack, topic=name, seed=8, events=100, hours=1, until=UNTIL, again=True)
    assert second.records_in_topic == 300
    assert second.truth.records == 100
    assert min(start for start, _ in second.delivered.values()) > 0
    assert stored_truth(stack, first.topic) is None, "no longer the truth about all records"


def test_a_topic_that_exists_keeps_its_partitions(stack: Settings, name: str) -> None:
    create_topic(stack, name, 5)

    made = produce_clicks(stack, topic=name, events=500, hours=1, until=UNTIL)

    assert made.topic.partitions == (0, 1, 2, 3, 4)
    assert set(made.delivered) == {0, 1, 2, 3, 4}


def test_sixty_thousand_records_are_there_within_ten_seconds(stack: Settings, name: str) -> None:
    seen: Counter[int] = Counter()
    start = time.monotonic()
    made = produce_clicks(stack, topic=name, until=UNTIL, progress=lambda done, total: seen.update({total: 1}))

    assert time.monotonic() - start < 10
    assert made.records_in_topic == made.truth.records == 60_000
    assert len(made.truth.blocked) == 1
    assert seen[60_000] > 10, "progress is shown"


def test_nothing_is_produced_while_the_registry_is_down(stack: Settings, name: str) -> None:
    away = stack.model_copy(update={"registry_url": "http://127.0.0.1:1/apis/ccompat/v7"})
    with pytest.raises(TransientError, match="registry"):
        produce_clicks(away, topic=name, events=10, hours=1, until=UNTIL)

    assert name not in AdminClient(client_config(stack)).list_topics(timeout=10).topics
