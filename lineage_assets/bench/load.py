"""Sends clicks into a topic, at a constant rate or as fast as the broker takes them, as a process of its own.

Belongs here: pacing, producing, and the account of it. Does not belong here: what a click is (clicks.py), when a load is
wanted (the parts of the bench).

`python -m lineage_assets.bench.load '<JSON of Load>'` prints its `Sent` as JSON. SIGTERM ends it early, with its account.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lineage_assets.bench.clicks import Kind, clicks, schema
from lineage_assets.errors import TransientError
from lineage_assets.kafka.client import client_config, describe
from lineage_assets.kafka.errors import kafka_errors
from lineage_assets.kafka.registry import Registry
from lineage_assets.settings import Settings, settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

TICK_S = 0.005
FLUSH_S = 120.0
FILL_AT_ONCE = 2_000
_SENDING = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    # Kafka's own default; a key's duplicates then lie in one partition, whatever the client.
    "partitioner": "murmur2_random",
    # Confirmed records are counted by flush(): a call into Python for each would cost more than the sending.
    "delivery.report.only.error": True,
}
STEADY = {"linger.ms": 5}
FILLING = {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000}


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. With a `rate` (events/s) for `seconds`; without one `events` as fast as possible.

    The events of a fill are stamped evenly over the `over_s` seconds that ended `ago_s` seconds ago, as if they had come
    then.
    """

    topic: str
    rate: float = 0.0
    seconds: float = 0.0
    events: int = 0
    over_s: float = 0.0
    ago_s: float = 0.0
    seed: int = 7


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent, and at what cost. All of it is confirmed by the broker."""

    records: int
    ok: int
    dead: int
    duplicate: int
    bytes: int
    seconds: float
    """From the first record to the confirmation of the last."""
    rate: float
    slowest_second: int
    """Records of the second with the fewest, of a load with a rate; the first and last second aside."""
    late_ms_p99: float
    late_ms_max: float
    """How late behind their time the ticks of 5 ms were: how steady the load was."""
    cpu_s: float
    """Of this process, in all its threads, without its start."""
    first_ms: int
    last_ms: int
    ok_by_second: Mapping[str, int]
    """Kafka timestamp in seconds -> how many rows silver must have of it."""

    @property
    def cores(self) -> float:
        """How much of a core it used."""
        return self.cpu_s / self.seconds if self.seconds else 0.0


def send(config: Settings, load: Load, stop: threading.Event | None = None) -> Sent:
    """Register the schema, send, and return when the broker has confirmed every record. The topic must exist.

    Raises ContractError for a topic that does not exist, TransientError when the broker does not take the records.
    """
    from confluent_kafka import KafkaException, Producer

    stop = stop or threading.Event()
    describe(config, load.topic)
    ready = clicks(load.seed, Registry(config).register(f"{load.topic}-value", schema()), uuid.uuid4().hex[:12])
    reasons: list[KafkaError] = []
    failed: list[KafkaError] = []
    more = {**_SENDING, **(STEADY if load.rate else FILLING), "error_cb": reasons.append}
    size = 0
    by_second: dict[int, list[int]] = {}
    delays: list[float] = []
    with kafka_errors(config, FLUSH_S, reasons):
        producer = Producer(
            client_config(config, **more, on_delivery=lambda error, _: failed.append(error) if error else None)
        )
        # The first request connects and asks for the topic; that is no part of the load.
        producer.list_topics(load.topic, timeout=10)
        began, cpu = time.monotonic(), time.process_time()
        ticks = _paced(load, delays, stop) if load.rate else _stamped(load, stop)
        first_ms = last_ms = 0
        for stamp_ms, count in ticks:
            ok_before = ready.counts[Kind.ok]
            for key, value in ready.take(count, stamp_ms):
                _produce(producer, load.topic, key, value, stamp_ms)
                size += len(key) + len(value)
            tally = by_second.setdefault(stamp_ms // 1000, [0, 0])
            tally[0] += count
            tally[1] += ready.counts[Kind.ok] - ok_before
            first_ms, last_ms = first_ms or stamp_ms, stamp_ms
            producer.poll(0)
            if failed:
                raise KafkaException(failed[0])
        left = producer.flush(FLUSH_S)
        if failed:
            raise KafkaException(failed[0])
    if left:
        raise TransientError(
            f"the brokers at {config.kafka} did not confirm {left} of {ready.sent} records for topic {load.topic}",
            remedy="look whether the broker runs, and start the bench again",
        )
    seconds = time.monotonic() - began
    whole = [tally[0] for second, tally in by_second.items() if first_ms // 1000 < second < last_ms // 1000]
    delays.sort()
    return Sent(
        records=ready.sent,
        ok=ready.counts[Kind.ok],
        dead=ready.counts[Kind.dead],
        duplicate=ready.counts[Kind.duplicate],
        bytes=size,
        seconds=seconds,
        rate=ready.sent / seconds,
        slowest_second=min(whole, default=0) if load.rate else 0,
        late_ms_p99=delays[int(len(delays) * 0.99)] * 1000 if delays else 0.0,
        late_ms_max=delays[-1] * 1000 if delays else 0.0,
        cpu_s=time.process_time() - cpu,
        first_ms=first_ms,
        last_ms=last_ms,
        ok_by_second={str(second): tally[1] for second, tally in by_second.items()},
    )


def _paced(load: Load, delays: list[float], stop: threading.Event) -> Iterator[tuple[int, int]]:
    """(stamp, count) every tick: as many records as are due by now, stamped now."""
    began, sent, tick = time.monotonic(), 0, 0
    total = round(load.rate * load.seconds)
    while sent < total and not stop.is_set():
        tick += 1
        due = began + tick * TICK_S
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        now = time.monotonic()
        delays.append(now - due)
        # After a long delay the missed ticks are not made up one by one: their records are due now.
        tick = max(tick, int((now - began) / TICK_S))
        count = min(total, int(load.rate * (now - began))) - sent
        if count > 0:
            yield int(time.time() * 1000), count
            sent += count


def _stamped(load: Load, stop: threading.Event) -> Iterator[tuple[int, int]]:
    """(stamp, count) until all events are sent, stamped over the time that they are to seem to take."""
    began_ms = (time.time() - load.ago_s - load.over_s) * 1000
    sent = 0
    while sent < load.events and not stop.is_set():
        count = min(FILL_AT_ONCE, load.events - sent)
        yield int(began_ms + load.over_s * 1000 * sent / load.events), count
        sent += count


def _produce(producer: Producer, topic: str, key: bytes, value: bytes, stamp_ms: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, timestamp=stamp_ms)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def run(load: Load, tell: Callable[[str], Any] = print) -> None:
    """The process: send with this home's settings and tell the account."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    tell(json.dumps(asdict(send(settings(), load, stop))))


if __name__ == "__main__":
    run(Load(**json.loads(sys.argv[1])))
