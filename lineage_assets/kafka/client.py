"""What a Kafka cluster knows about a topic: its id, partitions, settings and offsets.

Belongs here: single questions to a broker, each with a time limit, and a broker's errors in our words.
Does not belong here: what offsets mean (lineage_assets/lineage/), reading records into tables (lineage_assets/spark/).

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

from lineage_assets.errors import ContractError, FatalError, LineageError, TransientError
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError, KafkaException, TopicPartition
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

    `id` is the broker's UUID as Kafka's own tools print it, in base64: a topic that is made again has another.
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
        id=str(found.topic_id),
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
        raise _no_answer(settings, timeout_s, reasons)
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
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import OffsetSpec

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _results(_ask(admin, topic, OffsetSpec.latest(), timeout_s), timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in _leaderless() or time.monotonic() > deadline:
                raise
            admin.poll(0.05)
        else:
            return


def _leaderless() -> tuple[int, ...]:
    """Errors of a partition whose leader is being made or moved."""
    from confluent_kafka import KafkaError

    return (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    )


@contextmanager
def kafka_errors(settings: Settings, timeout_s: float, reasons: list[KafkaError]) -> Iterator[None]:
    """Raises what librdkafka raises inside in our words. `reasons` is what the client's `error_cb` appends to."""
    from confluent_kafka import KafkaException

    try:
        yield
    except TimeoutError as error:
        raise _no_answer(settings, timeout_s, reasons) from error
    except KafkaException as error:
        raise _in_our_words(settings, error, timeout_s, reasons) from error


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


def _in_our_words(
    settings: Settings, error: KafkaException, timeout_s: float, reasons: Sequence[KafkaError] = ()
) -> LineageError:
    """The error to raise for one of librdkafka's. `reasons` are what its error_cb got, oldest first."""
    from confluent_kafka import KafkaError

    cause: KafkaError = error.args[0]
    code = cause.code()
    if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        return _no_answer(settings, timeout_s, reasons)
    where, text = _where(settings), _without_secrets(settings, cause.str())
    if code in (KafkaError._INVALID_ARG, KafkaError._NOT_IMPLEMENTED, KafkaError._CONFLICT):
        return ContractError(f"the Kafka client refuses its settings: {text}", remedy="correct LINEAGE_KAFKA_CONFIG")
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return ContractError(f"a topic or partition is gone from {where}: {text}", remedy="look whether it was deleted")
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return ContractError(f"{where} forbids it: {text}", remedy="grant this user Describe, DescribeConfigs and Read")
    if cause.retriable() or code in _leaderless():
        return TransientError(f"{where} is not ready: {text}", remedy="try again")
    return FatalError(f"{where} answers: {text}", remedy="look into the broker's log")


def _no_answer(settings: Settings, timeout_s: float, reasons: Sequence[KafkaError]) -> LineageError:
    from confluent_kafka import KafkaError

    # The last word is usually "all brokers are down", which says nothing that the first does not.
    telling = [reason for reason in reasons if reason.code() != KafkaError._ALL_BROKERS_DOWN]
    detail = f" ({_without_secrets(settings, telling[-1].str())})" if telling else ""
    if any(reason.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) for reason in telling):
        return ContractError(
            f"Kafka at {settings.kafka} refuses the login{detail}", remedy="correct LINEAGE_KAFKA_CONFIG"
        )
    return TransientError(
        f"Kafka at {settings.kafka} does not answer within {timeout_s:g} s{detail}",
        remedy="look whether that broker runs and can be reached from here"
        if settings.kafka_bootstrap
        else "see `lineage status`, and start it with `lineage up`",
    )


def _no_such_topic(settings: Settings, topic: str, admin: AdminClient, timeout_s: float) -> ContractError:
    names = sorted(name for name in admin.list_topics(timeout=timeout_s).topics if not name.startswith("_"))
    near = difflib.get_close_matches(topic, names, n=3)
    return ContractError(
        f"topic {topic} does not exist on {_where(settings)}",
        remedy=f"create it, or did you mean {' or '.join(near)}?" if near else "create it, or correct its name",
    )


def _where(settings: Settings) -> str:
    return f"cluster {settings.kafka_alias} ({settings.kafka})"


def _without_secrets(settings: Settings, text: str) -> str:
    for value in settings.kafka_config.values():
        secret = value.get_secret_value()
        text = text.replace(secret, "***") if secret else text
    return text
