"""Puts the shop's clicks into Kafka, whole and broken ones, and keeps the truth about them.

Belongs here: the clicks as bytes, and their way into the topic. Does not belong here: what is made (shop.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage_assets.demo.shop import Clicks, make_clicks
from lineage_assets.demo.truth import Event, Kind, Truth, as_avro
from lineage_assets.errors import ContractError, TransientError
from lineage_assets.kafka.client import (
    Topic,
    begin_offsets,
    client_config,
    create_topic,
    describe,
    end_offsets,
)
from lineage_assets.kafka.errors import kafka_errors
from lineage_assets.kafka.registry import Registry
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

UNKNOWN_SCHEMA_ID = 1_999_999_999
DELIVERY_TIMEOUT_S = 60.0
_TOPIC_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}
_PROGRESS_EVERY = 2_000


@dataclass(frozen=True, slots=True)
class Produced:
    """What one call put into the topic."""

    topic: Topic
    schema_id: int
    truth: Truth
    delivered: dict[int, tuple[int, int]]
    """Partition -> half-open range of the offsets that the records got."""
    records_in_topic: int
    """All records of the topic, those of earlier calls included."""


def produce_clicks(
    settings: Settings,
    *,
    topic: str = "clicks",
    seed: int = 7,
    events: int = 60_000,
    hours: int = 6,
    until: datetime | None = None,
    partitions: int = 3,
    again: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Produced:
    """Registers the schema, creates the topic, and returns when the broker has confirmed every record.

    `until` is now by default; `progress` is called with the number of confirmed records and of all. A topic that exists
    keeps its partitions. The truth is kept (`stored_truth`) unless the topic held other records before.

    Raises ContractError if the topic is not empty, unless `again`: then new records are stamped earlier than old ones,
    and with the same seed and hours all of them are duplicates. Raises TransientError if a service is away.
    """
    subject = f"{topic}-value"
    schema_text = clicks_schema()
    schema_id = Registry(settings).register(subject, schema_text)
    create_topic(settings, topic, partitions, _TOPIC_CONFIG)
    found = describe(settings, topic)
    held = _records(settings, found)
    if held and not again:
        raise ContractError(
            f"topic {topic} on cluster {settings.kafka_alias} ({settings.kafka}) holds {held} records already",
            remedy="use them, delete the topic, or ask for more records on purpose (again)",
        )
    clicks = make_clicks(seed, events, hours, until=until or datetime.now(UTC), partitions=len(found.partitions))
    delivered = _send(settings, topic, clicks, Encoder(schema_text, schema_id), progress)
    _keep_truth(settings, found, None if held else clicks.truth)
    return Produced(found, schema_id, clicks.truth, delivered, _records(settings, found))


def clicks_schema() -> str:
    """The Avro schema of a click, as it is registered."""
    return files("lineage_assets").joinpath("defs/clicks/clicks.avsc").read_text()


def stored_truth(settings: Settings, topic: Topic) -> Truth | None:
    """The truth about all records of this very topic; None unless one `produce_clicks` made them all."""
    path = _truth_file(settings, topic)
    return Truth.from_json(path.read_text()) if path.exists() else None


class Encoder:
    """Events as the bytes of a record's value: magic byte, four bytes of schema id, Avro.

    Of a malformed event, what its kind makes of them; None for a tombstone.
    """

    def __init__(self, schema_text: str, schema_id: int) -> None:
        from fastavro import parse_schema, schemaless_writer

        self._write = schemaless_writer
        self._schema = parse_schema(json.loads(schema_text))
        self._header = _header(schema_id)

    def __call__(self, event: Event) -> bytes | None:
        if event.click is None:
            return None
        record = as_avro(event.click)
        if event.kind is Kind.EMPTY_VALUE:
            return b""
        if event.kind is Kind.PLAIN_JSON:
            return json.dumps(record).encode()
        body = self._avro(record)
        if event.kind is Kind.WRONG_MAGIC_BYTE:
            return b"\x01" + self._header[1:] + body
        if event.kind is Kind.UNKNOWN_SCHEMA_ID:
            return _header(UNKNOWN_SCHEMA_ID) + body
        if event.kind is Kind.TRUNCATED:
            # Some end in the middle of the header.
            return self._header[:3] if event.position % 4 == 0 else self._header + body[: len(body) // 2]
        return self._header + body

    def _avro(self, record: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        self._write(buffer, self._schema, record)
        return buffer.getvalue()


def _header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def _send(
    settings: Settings, topic: str, clicks: Clicks, encode: Encoder, progress: Callable[[int, int], None]
) -> dict[int, tuple[int, int]]:
    from confluent_kafka import KafkaException, Producer

    reasons: list[KafkaError] = []
    failed: list[KafkaError] = []
    delivered: dict[int, tuple[int, int]] = {}
    done = 0

    def confirm(error: KafkaError | None, message: Message) -> None:
        nonlocal done
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            failed.extend([error] if error is not None else [])
            return
        start, end = delivered.get(partition, (offset, offset))
        delivered[partition] = (min(start, offset), max(end, offset + 1))
        done += 1
        if done % _PROGRESS_EVERY == 0:
            progress(done, len(clicks.events))

    # Idempotent: a retry inside the client must not make duplicates that the truth does not know of.
    more = {
        "enable.idempotence": True,
        "linger.ms": 20,
        "compression.type": "lz4",
        "delivery.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
        "error_cb": reasons.append,
    }
    with kafka_errors(settings, DELIVERY_TIMEOUT_S, reasons):
        producer = Producer(client_config(settings, **more))
        for event in clicks.events:
            if failed:
                break
            _produce(producer, topic, event, encode(event), confirm)
        left = producer.flush(DELIVERY_TIMEOUT_S)
        if failed:
            raise KafkaException(failed[0])
    progress(done, len(clicks.events))
    if left or done != len(clicks.events):
        raise TransientError(
            f"the brokers at {settings.kafka} confirmed {done} of {len(clicks.events)} records for topic {topic}",
            remedy="delete the topic and try again",
        )
    return delivered


def _produce(producer: Producer, topic: str, event: Event, value: bytes | None, confirm: Callable[..., None]) -> None:
    while True:
        try:
            producer.produce(
                topic,
                value,
                event.key,
                partition=event.partition,
                timestamp=event.timestamp_ms,
                on_delivery=confirm,
            )
        except BufferError:
            producer.poll(1.0)
        else:
            producer.poll(0)
            return


def _records(settings: Settings, topic: Topic) -> int:
    begin, end = begin_offsets(settings, topic), end_offsets(settings, topic)
    return sum(end[partition] - begin[partition] for partition in topic.partitions)


def _truth_file(settings: Settings, topic: Topic) -> Path:
    return settings.home / "demo" / f"{topic.name}-{topic.id}.json"


def _keep_truth(settings: Settings, topic: Topic, truth: Truth | None) -> None:
    path = _truth_file(settings, topic)
    if truth is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(truth.to_json())
