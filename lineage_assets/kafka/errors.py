"""A broker's errors in our words: what is wrong, at which cluster, and what to do.

Belongs here: librdkafka's errors to ours. Does not belong here: errors of the registry (registry.py).
No value of the user's `kafka_config` gets into a message: it holds secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lineage_assets.errors import ContractError, FatalError, LineageError, TransientError
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException


@contextmanager
def kafka_errors(settings: Settings, timeout_s: float, reasons: list[KafkaError]) -> Iterator[None]:
    """Raises what librdkafka raises inside in our words. `reasons` is what the client's `error_cb` appends to."""
    from confluent_kafka import KafkaException

    try:
        yield
    except TimeoutError as error:
        raise no_answer(settings, timeout_s, reasons) from error
    except KafkaException as error:
        raise _in_our_words(settings, error, timeout_s, reasons) from error


def leaderless() -> tuple[int, ...]:
    """Errors of a partition whose leader is being made or moved."""
    from confluent_kafka import KafkaError

    return (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._NOENT,  # librdkafka: no leaders found
    )


def place(settings: Settings) -> str:
    """The cluster's alias and address."""
    return f"cluster {settings.kafka_alias} ({settings.kafka})"


def _without_secrets(settings: Settings, text: str) -> str:
    for value in settings.kafka_config.values():
        secret = value.get_secret_value()
        text = text.replace(secret, "***") if secret else text
    return text


def _in_our_words(
    settings: Settings, error: KafkaException, timeout_s: float, reasons: Sequence[KafkaError] = ()
) -> LineageError:
    """The error to raise for one of librdkafka's. `reasons` are what its error_cb got, oldest first."""
    from confluent_kafka import KafkaError

    cause: KafkaError = error.args[0]
    code = cause.code()
    if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        return no_answer(settings, timeout_s, reasons)
    where, text = place(settings), _without_secrets(settings, cause.str())
    if code in (KafkaError._INVALID_ARG, KafkaError._NOT_IMPLEMENTED, KafkaError._CONFLICT):
        return ContractError(f"the Kafka client refuses its settings: {text}", remedy="correct LINEAGE_KAFKA_CONFIG")
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return ContractError(f"a topic or partition is gone from {where}: {text}", remedy="look whether it was deleted")
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return ContractError(f"{where} forbids it: {text}", remedy="grant this user Describe, DescribeConfigs and Read")
    if cause.retriable() or code in leaderless():
        return TransientError(f"{where} is not ready: {text}", remedy="try again")
    return FatalError(f"{where} answers: {text}", remedy="look into the broker's log")


def no_answer(settings: Settings, timeout_s: float, reasons: Sequence[KafkaError]) -> LineageError:
    """The error of a broker that did not answer in time, with the last thing that its client said about why."""
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
