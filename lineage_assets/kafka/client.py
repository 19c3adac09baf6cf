"""What a Kafka cluster knows about a topic: its id, partitions, settings and offsets.

Belongs here: single questions to a broker, each with a time limit. Does not belong here: its errors (errors.py),
what offsets mean (lineage_assets/lineage/), reading records into tables (lineage_assets/spark/).

Every end is a last stable offset (isolation level read_committed): a reader must not see records of a transaction that
may still be aborted.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lineage_assets.errors import ContractError
from lineage_assets.kafka.errors import kafka_errors as kafka_errors
from lineage_assets.kafka.errors import leaderless, no_answer, place
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

TIMEOUT_S = 10.0
_CONFIGS = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type", "max.message.bytes")
_INSTANTS_AT_ONCE = 200
_GUARD_S = 2.0
"""A future is given this much longer than the request in it, which ends by itself."""

# One client a process and cluster: a warm one answers in a millisecond, a new one takes 5 to 50.
_clients: dict[object, _Client] = {}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster has it.

    `id` is the broker's UUID as Kafka's own tools print it, in URL-safe base64: a topic that is made again has another.
    """

    name: str
    id: str
    partitions: tuple[int, ...]
    config: Mapping[str, str]

    @property
    def compacted(self) -> bool:
        """Whether the broker removes records that a newer one of the same key replaced."""
        return "compact" in self.config.get("cleanup.policy", "")


def client_config(settings: Settings, **more: Any) -> dict[str, Any]:
    """Settings for any librdkafka client, the user's `kafka_config` included: it holds secrets. `more` wins.

    Raises NotRunning if the broker is ours and was never started.
    """
    return {
        "bootstrap.servers": settings.kafka,
        # librdkafka writes each failed connection to stderr; what matters of it arrives through error_cb.
        "log_level": 0,
        **{key: value.get_secret_value() for key, value in settings.kafka_config.items()},
        **more,
    }


def describe(settings: Settings, topic: str, *, timeout_s: float = TIMEOUT_S) -> Topic:
    """The topic's id, partitions and settings.

    Raises ContractError if the cluster has no such topic, with the names nearest to it; TransientError if it does not
    answer.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import ConfigResource

    with _admin(settings, timeout_s) as admin:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        configs = admin.describe_configs([resource], request_timeout=timeout_s)
        try:
            found = described[topic].result(timeout_s + _GUARD_S)
            config = configs[resource].result(timeout_s + _GUARD_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _no_such_topic(settings, topic, admin, timeout_s) from error
            raise
    return Topic(
        name=topic,
        # librdkafka prints standard base64; Kafka itself, and file names, want the URL-safe one.
        id=str(found.topic_id).replace("+", "-").replace("/", "_"),
        partitions=tuple(sorted(partition.id for partition in found.partitions)),
        config={name: config[name].value for name in _CONFIGS if name in config},
    )


def begin_offsets(settings: Settings, topic: Topic, *, timeout_s: float = TIMEOUT_S) -> dict[int, int]:
    """Partition -> the lowest offset that the broker still has."""
    from confluent_kafka.admin import OffsetSpec

    with _admin(settings, timeout_s) as admin:
        return _results(_ask(admin, topic, OffsetSpec.earliest(), timeout_s), timeout_s)


def end_offsets(settings: Settings, topic: Topic, *, timeout_s: float = TIMEOUT_S) -> dict[int, int]:
    """Partition -> its last stable offset: where the next record will be, or an open transaction's first one is."""
    from confluent_kafka.admin import OffsetSpec

    with _admin(settings, timeout_s) as admin:
        return _results(_ask(admin, topic, OffsetSpec.latest(), timeout_s), timeout_s)


def offsets_for_times(
    settings: Settings, topic: Topic, instants: Sequence[datetime], *, timeout_s: float = TIMEOUT_S
) -> dict[int, list[int]]:
    """Partition -> for each instant the first offset whose record is stamped then or later, -1 where there is none.

    All answers for a few hundred instants are asked for at once; `timeout_s` is for each such batch.
    """
    from confluent_kafka.admin import OffsetSpec

    offsets: dict[int, list[int]] = {partition: [] for partition in topic.partitions}
    with _admin(settings, timeout_s) as admin:
        for first in range(0, len(instants), _INSTANTS_AT_ONCE):
            batch = [round(instant.timestamp() * 1000) for instant in instants[first : first + _INSTANTS_AT_ONCE]]
            asked = [_ask(admin, topic, OffsetSpec.for_timestamp(instant_ms), timeout_s) for instant_ms in batch]
            for answer in asked:
                for partition, offset in _results(answer, timeout_s).items():
                    offsets[partition].append(offset)
    return offsets


def earliest_timestamp(settings: Settings, topic: Topic, *, timeout_s: float = TIMEOUT_S) -> int | None:
    """The lowest timestamp, in ms, among the first records of the partitions; None if the topic has no record.

    A later record can be stamped earlier still. The first slice takes it all the same: a slice is a range of offsets.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    begin = begin_offsets(settings, topic, timeout_s=timeout_s)
    end = end_offsets(settings, topic, timeout_s=timeout_s)
    waiting = {partition for partition in topic.partitions if begin[partition] < end[partition]}
    if not waiting:
        return None
    reasons: list[KafkaError] = []
    more = {
        "group.id": "lineage-assets-peek",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "error_cb": reasons.append,
    }
    stamps: list[int] = []
    deadline = time.monotonic() + timeout_s
    with kafka_errors(settings, timeout_s, reasons):
        consumer = Consumer(client_config(settings, **more))
        try:
            consumer.assign([TopicPartition(topic.name, partition, OFFSET_BEGINNING) for partition in waiting])
            while waiting and (left_s := deadline - time.monotonic()) > 0:
                message = consumer.poll(left_s)
                if message is None:
                    continue
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None and message.partition() in waiting:
                    stamps.append(message.timestamp()[1])
                waiting.discard(message.partition() or 0)
        finally:
            consumer.close()
    if waiting:
        raise no_answer(settings, timeout_s, reasons)
    return min(stamps, default=None)


def create_topic(
    settings: Settings,
    topic: str,
    partitions: int,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> bool:
    """Creates the topic with the cluster's default replication, and returns when every partition has a leader.

    False, and nothing changed, if it is there already.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    with _admin(settings, timeout_s) as admin:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
        created = admin.create_topics([new], request_timeout=timeout_s, operation_timeout=timeout_s)[topic]
        try:
            created.result(timeout_s + _GUARD_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        _await_leaders(admin, Topic(topic, "", tuple(range(partitions)), {}), timeout_s)
    return True


def _await_leaders(admin: AdminClient, topic: Topic, timeout_s: float) -> None:
    """A broker confirms a new topic before it leads its partitions, and for a moment denies both."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import OffsetSpec

    deadline = time.monotonic() + timeout_s
    led = False
    while True:
        try:
            # librdkafka remembers "no leaders" for many seconds, so it must not ask for offsets before there are some.
            if not led:
                described = admin.describe_topics(TopicCollection([topic.name]), request_timeout=timeout_s)
                partitions = described[topic.name].result(timeout_s + _GUARD_S).partitions
                led = len(partitions) == len(topic.partitions) and all(partition.leader for partition in partitions)
            if led:
                _results(_ask(admin, topic, OffsetSpec.latest(), timeout_s), timeout_s)
                return
        except KafkaException as error:
            if error.args[0].code() not in leaderless():
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f"no leaders of {topic.name}")
        admin.poll(0.05)


def _ask(
    admin: AdminClient, topic: Topic, spec: OffsetSpec | None, timeout_s: float
) -> Mapping[TopicPartition, Future[Any]]:
    from confluent_kafka import IsolationLevel, TopicPartition

    wanted: Any = {TopicPartition(topic.name, partition): spec for partition in topic.partitions}
    return admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s)


def _results(asked: Mapping[TopicPartition, Future[Any]], timeout_s: float) -> dict[int, int]:
    return {key.partition: future.result(timeout_s + _GUARD_S).offset for key, future in asked.items()}


@dataclass(slots=True)
class _Client:
    """A client that is kept for the next question, and what its error_cb got."""

    admin: AdminClient
    reasons: list[KafkaError]
    greeted: bool = False

    def greet(self, timeout_s: float) -> None:
        """Asks for the brokers, the first time.

        An offset request that comes first meets librdkafka's change from the bootstrap connection to the broker's own,
        and then, one time in ten, stands still for one to three seconds.
        """
        if not self.greeted:
            self.admin.describe_cluster(request_timeout=timeout_s).result(timeout_s + _GUARD_S)
            self.greeted = True


@contextmanager
def _admin(settings: Settings, timeout_s: float) -> Iterator[AdminClient]:
    """This process's client of the cluster, for one question. What goes wrong inside is raised in our words."""
    from confluent_kafka import KafkaException

    reasons: list[KafkaError] = []
    with kafka_errors(settings, timeout_s, reasons):
        # The process id is part of it because a client's threads do not survive a fork.
        key = (os.getpid(), *sorted(client_config(settings).items()))
        client = _clients.get(key) or _new_client(settings)
        _clients[key] = client
        client.reasons.clear()
        try:
            client.greet(timeout_s)
            yield client.admin
        except (KafkaException, TimeoutError):
            # A client that has lost its broker waits before it tries again; a new one tries at once.
            _clients.pop(key, None)
            client.admin.poll(0)  # delivers error_cb
            reasons.extend(client.reasons)
            raise


def _new_client(settings: Settings) -> _Client:
    from confluent_kafka.admin import AdminClient

    reasons: list[KafkaError] = []
    config = client_config(settings, **{"error_cb": reasons.append, "socket.connection.setup.timeout.ms": 5_000})
    return _Client(AdminClient(config), reasons)


def _no_such_topic(settings: Settings, topic: str, admin: AdminClient, timeout_s: float) -> ContractError:
    names = sorted(name for name in admin.list_topics(timeout=timeout_s).topics if not name.startswith("_"))
    near = difflib.get_close_matches(topic, names, n=3)
    return ContractError(
        f"topic {topic} does not exist on {place(settings)}",
        remedy=f"create it, or did you mean {' or '.join(near)}?" if near else "create it, or correct its name",
    )
