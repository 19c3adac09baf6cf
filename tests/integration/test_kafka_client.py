"""What the client and the registry say of a real broker and a real registry, and of ones that are away.

Belongs here: lineage_assets/kafka/client.py and registry.py against the running stack.
Does not belong here: cuts and slices made of the answers.
"""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from fastavro import parse_schema
from pydantic import SecretStr

from lineage_assets.errors import ContractError, NotRunning, TransientError
from lineage_assets.kafka.client import (
    Topic,
    begin_offsets,
    client_config,
    create_topic,
    describe,
    earliest_timestamp,
    end_offsets,
    offsets_for_times,
)
from lineage_assets.kafka.registry import UNKNOWN_FOR_S, Registry
from lineage_assets.settings import Settings

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def topic(stack: Settings) -> Iterator[Topic]:
    """A fresh topic of two partitions, removed in the end."""
    name = f"client-{uuid.uuid4().hex[:10]}"
    create_topic(stack, name, 2, {"retention.ms": "-1"})
    yield describe(stack, name)
    admin = AdminClient(client_config(stack))
    admin.delete_topics([name])[name].result(10)


@pytest.fixture
def closed_port() -> str:
    """An address of this machine where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def away(stack: Settings, closed_port: str) -> Settings:
    """Settings whose broker and registry are down."""
    address = {"kafka_bootstrap": closed_port, "registry_url": f"http://user:s3cret@{closed_port}/apis/ccompat/v7"}
    return stack.model_copy(update=address)


def send(settings: Settings, topic: Topic, partition: int, stamps: list[datetime], **config: object) -> Producer:
    producer = Producer(client_config(settings, **config))
    if "transactional.id" in config:
        producer.init_transactions(20)
        producer.begin_transaction()
    for stamp in stamps:
        producer.produce(topic.name, b"v", b"k", partition=partition, timestamp=int(stamp.timestamp() * 1000))
    assert producer.flush(20) == 0
    return producer


def eventual_end(settings: Settings, topic: Topic, expected: int) -> int:
    """Partition 0's end, given time: the broker confirms the end of a transaction before it writes the marker."""
    deadline = time.monotonic() + 10
    while (end := end_offsets(settings, topic)[0]) < expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return end


def test_a_topic_is_described_with_its_id_partitions_and_settings(topic: Topic) -> None:
    assert topic.partitions == (0, 1)
    assert re.fullmatch("[A-Za-z0-9_-]{22}", topic.id), "Kafka's own, URL-safe text of a UUID"
    assert topic.config["cleanup.policy"] == "delete"
    assert topic.config["retention.ms"] == "-1"
    assert not topic.compacted


def test_a_topic_that_is_made_again_has_another_id(stack: Settings, topic: Topic) -> None:
    admin = AdminClient(client_config(stack))
    admin.delete_topics([topic.name])[topic.name].result(10)
    deadline = time.monotonic() + 10
    while topic.name in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        admin.poll(0.05)
    assert create_topic(stack, topic.name, 1, {"cleanup.policy": "compact"})

    again = describe(stack, topic.name)

    assert again.id != topic.id
    assert again.partitions == (0,)
    assert again.compacted


def test_creating_a_topic_twice_changes_nothing(stack: Settings, topic: Topic) -> None:
    assert create_topic(stack, topic.name, 9) is False
    assert describe(stack, topic.name) == topic


def test_a_topic_that_does_not_exist_is_named_with_its_cluster_and_the_nearest_name(
    stack: Settings, topic: Topic
) -> None:
    with pytest.raises(ContractError) as caught:
        describe(stack, topic.name + "s")

    assert caught.value.message == f"topic {topic.name}s does not exist on cluster local ({stack.kafka})"
    assert f"did you mean {topic.name}" in caught.value.remedy


def test_an_empty_topic_begins_and_ends_at_zero_and_has_no_earliest_record(stack: Settings, topic: Topic) -> None:
    assert begin_offsets(stack, topic) == {0: 0, 1: 0}
    assert end_offsets(stack, topic) == {0: 0, 1: 0}
    assert earliest_timestamp(stack, topic) is None
    assert offsets_for_times(stack, topic, [T0]) == {0: [-1], 1: [-1]}


def test_begin_rises_when_records_are_removed(stack: Settings, topic: Topic) -> None:
    from confluent_kafka import TopicPartition

    send(stack, topic, 1, [T0 + timedelta(minutes=minute) for minute in range(5)])
    admin, upto = AdminClient(client_config(stack)), TopicPartition(topic.name, 1, 3)
    admin.delete_records([upto])[upto].result(10)

    assert begin_offsets(stack, topic) == {0: 0, 1: 3}
    assert end_offsets(stack, topic) == {0: 0, 1: 5}
    assert earliest_timestamp(stack, topic) == int((T0 + timedelta(minutes=3)).timestamp() * 1000)


def test_the_end_stops_at_an_open_transaction_and_passes_it_when_it_ends(stack: Settings, topic: Topic) -> None:
    send(stack, topic, 0, [T0, T0])
    producer = send(stack, topic, 0, [T0] * 3, **{"transactional.id": topic.name})

    assert end_offsets(stack, topic)[0] == 2

    producer.commit_transaction(20)
    assert eventual_end(stack, topic, 6) == 6, "three records and the marker"


def test_a_topic_with_nothing_but_aborted_records_has_no_earliest_record(stack: Settings, topic: Topic) -> None:
    send(stack, topic, 0, [T0] * 3, **{"transactional.id": topic.name}).abort_transaction(20)

    assert eventual_end(stack, topic, 4) == 4
    assert earliest_timestamp(stack, topic) is None


def test_offsets_for_times_answers_each_instant_in_each_partition(stack: Settings, topic: Topic) -> None:
    send(stack, topic, 0, [T0, T0 + timedelta(hours=1), T0 + timedelta(hours=2)])
    send(stack, topic, 1, [T0 + timedelta(minutes=90)])
    instants = [T0 - timedelta(days=1), T0, T0 + timedelta(milliseconds=1), T0 + timedelta(hours=2), T0 + timedelta(3)]

    assert offsets_for_times(stack, topic, instants) == {0: [0, 0, 1, 2, -1], 1: [0, 0, 0, -1, -1]}
    assert offsets_for_times(stack, topic, []) == {0: [], 1: []}


def test_a_long_history_is_asked_for_in_batches(stack: Settings, topic: Topic) -> None:
    send(stack, topic, 0, [T0, T0 + timedelta(hours=200)])
    instants = [T0 + timedelta(hours=hour) for hour in range(250)]

    assert offsets_for_times(stack, topic, instants)[0] == [0] + [1] * 200 + [-1] * 49


def test_the_earliest_timestamp_is_the_lowest_of_the_partitions_first(stack: Settings, topic: Topic) -> None:
    send(stack, topic, 0, [T0 + timedelta(hours=1)])
    send(stack, topic, 1, [T0, T0 + timedelta(hours=3)])

    assert earliest_timestamp(stack, topic) == int(T0.timestamp() * 1000)


def test_answers_come_within_a_moment(stack: Settings, topic: Topic) -> None:
    end_offsets(stack, topic)
    start = time.monotonic()
    for _ in range(20):
        end_offsets(stack, topic)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("question", [begin_offsets, end_offsets, earliest_timestamp])
def test_a_broker_that_is_down_is_a_transient_error_within_the_limit(question: object, away: Settings) -> None:
    topic = Topic("clicks", "x", (0, 1), {})
    start = time.monotonic()

    with pytest.raises(TransientError) as caught:
        question(away, topic, timeout_s=1)  # type: ignore[operator]

    assert time.monotonic() - start < 4
    assert caught.value.message.startswith(f"Kafka at {away.kafka} does not answer within 1 s")
    assert "Connection refused" in caught.value.message
    assert "broker runs" in caught.value.remedy


def test_no_other_question_hangs_on_a_broker_that_is_down(away: Settings) -> None:
    with pytest.raises(TransientError):
        describe(away, "clicks", timeout_s=1)
    with pytest.raises(TransientError):
        create_topic(away, "clicks", 1, timeout_s=1)
    with pytest.raises(TransientError):
        offsets_for_times(away, Topic("clicks", "x", (0,), {}), [T0], timeout_s=1)


def test_a_broker_that_accepts_and_says_nothing_is_a_transient_error(stack: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings = stack.model_copy(update={"kafka_bootstrap": f"127.0.0.1:{mute.getsockname()[1]}"})
        start = time.monotonic()
        with pytest.raises(TransientError, match="does not answer within 1 s"):
            end_offsets(settings, Topic("clicks", "x", (0,), {}), timeout_s=1)
        assert time.monotonic() - start < 4


def test_a_stack_that_was_never_started_is_said_at_once(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with pytest.raises(NotRunning, match="lineage up"):
        describe(settings, "clicks")
    with pytest.raises(NotRunning, match="lineage up"):
        Registry(settings).schema(1)


def test_client_settings_reach_the_client_and_their_values_no_error(stack: Settings) -> None:
    assert client_config(stack.model_copy(update={"kafka_config": {"client.id": SecretStr("me")}}))["client.id"] == "me"

    wrong = stack.model_copy(update={"kafka_config": {"security.protocol": SecretStr("s3cret")}})
    with pytest.raises(ContractError, match="LINEAGE_KAFKA_CONFIG") as caught:
        describe(wrong, "clicks")
    assert "security.protocol" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def record(name: str, **fields: object) -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in fields.items()]}
    )


@pytest.fixture
def subject() -> str:
    return f"client-{uuid.uuid4().hex[:10]}-value"


def test_a_registered_schema_is_found_by_id_and_by_subject(stack: Settings, subject: str) -> None:
    first, second = record("Click", a="long"), record("Click", a="long", b=["null", "string"])
    second = second.replace('["null", "string"]}', '["null", "string"], "default": null}')
    registry = Registry(stack)

    first_id = registry.register(subject, first)
    second_id = registry.register(subject, second)

    assert registry.register(subject, first) == first_id
    found = registry.schema(first_id)
    assert found is not None
    assert (found.id, found.type, json.loads(found.text)) == (first_id, "AVRO", json.loads(first))
    versions = Registry(stack).versions(subject)
    assert [(version.version, version.id) for version in versions] == [(1, first_id), (2, second_id)]
    assert json.loads(versions[1].text) == json.loads(second)


def test_a_subject_that_does_not_exist_has_no_versions(stack: Settings, subject: str) -> None:
    assert Registry(stack).versions(subject) == []


def test_an_unknown_id_is_asked_for_once_a_minute_and_not_for_each_record(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(stack)
    assert registry.schema(1_999_999_999) is None
    assert registry.schema(-1) is None

    client = registry._connected()
    asked: list[int] = []
    monkeypatch.setattr(client, "get_schema", lambda id_: asked.append(id_))
    assert registry.schema(1_999_999_999) is None
    assert asked == []

    clock = time.monotonic() + UNKNOWN_FOR_S + 1
    monkeypatch.setattr("lineage_assets.kafka.registry.time.monotonic", lambda: clock)
    registry.schema(1_999_999_999)
    assert asked == [1_999_999_999]


def test_a_known_schema_is_answered_without_the_registry(stack: Settings, subject: str) -> None:
    registry = Registry(stack)
    schema_id = registry.register(subject, record("Click", a="long"))
    found = registry.schema(schema_id)

    registry._client = None
    registry._settings = stack.model_copy(update={"registry_url": "http://127.0.0.1:1"})
    assert registry.schema(schema_id) == found


def test_types_of_another_subject_stand_in_the_avro_text_once(stack: Settings, subject: str) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    registry = Registry(stack)
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    order = record(
        "shop.Order", net="shop.Money", gross=["null", "shop.Money"], lines={"type": "array", "items": "Money"}
    )
    registry.register(f"{subject}-money", json.dumps(money))
    references = [SchemaReference("shop.Money", f"{subject}-money", 1)]
    order_id = registry._connected().register_schema(subject, Schema(order, "AVRO", references))

    found = Registry(stack).schema(order_id)

    assert found is not None
    parse_schema(json.loads(found.text))
    assert found.text.count('"cents"') == 1
    assert json.loads(registry.versions(subject)[0].text) == json.loads(found.text)


def test_a_schema_that_is_no_schema_is_refused_with_its_subject(stack: Settings, subject: str) -> None:
    with pytest.raises(ContractError, match=f"refuses subject {subject}"):
        Registry(stack).register(subject, '{"type": "record"}')


def test_a_registry_that_is_down_is_a_transient_error_without_its_password(away: Settings) -> None:
    questions: list[Callable[[Registry], object]] = [
        lambda registry: registry.schema(1),
        lambda registry: registry.versions("clicks-value"),
        lambda registry: registry.register("clicks-value", '"string"'),
    ]
    start = time.monotonic()
    for question in questions:
        with pytest.raises(TransientError) as caught:
            question(Registry(away))
        assert f"registry at http://{away.kafka}/apis/ccompat/v7 does not answer" in caught.value.message
        assert "s3cret" not in str(caught.value)
    assert time.monotonic() - start < 15


def test_an_id_asked_for_while_the_registry_is_down_is_not_taken_for_unknown(stack: Settings, away: Settings) -> None:
    subject = f"client-{uuid.uuid4().hex[:10]}-value"
    schema_id = Registry(stack).register(subject, record("Click", a="long"))
    registry = Registry(away)
    with pytest.raises(TransientError):
        registry.schema(schema_id)

    registry._client, registry._settings = None, stack
    assert registry.schema(schema_id) is not None


def test_registry_settings_that_do_not_exist_are_named_without_their_values(stack: Settings) -> None:
    wrong = stack.model_copy(update={"registry_config": {"nonsense": SecretStr("s3cret")}})
    with pytest.raises(ContractError, match="nonsense") as caught:
        Registry(wrong).schema(1)
    assert "s3cret" not in str(caught.value)
