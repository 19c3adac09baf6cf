"""A stack of its own in which processes are killed: a load, a stream, a collector, and what must hold after each kill.

Belongs here: the rig of the kill tests. Does not belong here: how many kills, which (test_kills.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lineage_assets.bench.rig import declare
from lineage_assets.kafka.client import create_topic
from lineage_assets.lineage import lease
from lineage_assets.reporting.collector import Managed
from lineage_assets.settings import Settings
from lineage_assets.spark.event_table import EventTable
from lineage_assets.stack import control, process

TARGETS = ("spark", "worker", "client", "collector", "kafka")
BURST = 40
CAUGHT_UP_S = 240.0


@dataclass
class Rig:
    """One stream of the clicks' declaration over a topic of its own, with all that may be killed around it."""

    settings: Settings
    table: EventTable
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def managed(self) -> list[Managed]:
        return [Managed(f"{layer}/{self.table.name}", self.table.grain) for layer in ("raw", "silver")]

    @property
    def told_home(self) -> str:
        """The Dagster instance that the collector tells."""
        return str(self.settings.home / "told")

    def start(self, name: str) -> None:
        """Start the stream's client or the collector, each a process of its own."""
        assets = [one.asset for one in self.managed]
        told = {
            "client": ("streams", {"name": self.table.name, "profile": "embedded", "bite": None, "off": []}),
            "collector": (
                "collecting",
                {"tables": assets, "grain": self.table.grain.value, "home": self.told_home, "tick_s": 1.0},
            ),
        }
        module, argument = told[name]
        command = [sys.executable, "-m", f"lineage_assets.bench.{module}", json.dumps(argument)]
        env = {**os.environ, "LINEAGE_HOME": str(self.settings.home)}
        with Path(self.settings.home, f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def kill(self, name: str) -> bool:
        """Kill -9 one of TARGETS, and start again what does not start by itself. False when it was not there to be killed."""
        if name in ("client", "collector"):
            self.children[name].kill()
            self.children[name].wait()
            self.start(name)
            return True
        pid = self._pid(name)
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        if name in ("spark", "kafka"):
            record = process.read(self.settings.stack_dir, name)
            assert record is not None
            _await(lambda: process.leader(record) is None, 10, f"{name} is gone")
            control.up(self.settings)
        return True

    def terminate(self, name: str) -> int:
        """End the client or the collector as a person would; its exit code."""
        child = self.children.pop(name)
        child.send_signal(signal.SIGTERM)
        return child.wait(120)

    def workers(self) -> list[int]:
        """The Python workers that run a stream's batches: one for each query in the server."""
        record = process.read(self.settings.stack_dir, "spark")
        assert record is not None
        return [one.pid for one in process.tree(record) if "foreach_batch_worker" in " ".join(one.cmdline())]

    def _pid(self, name: str) -> int | None:
        if name == "worker":
            return next(iter(self.workers()), None)
        record = process.read(self.settings.stack_dir, name)
        assert record is not None
        return process.main_pid(record)

    def end(self) -> None:
        """End what was started here."""
        for child in self.children.values():
            child.send_signal(signal.SIGTERM)
        for child in self.children.values():
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def require_alive(self) -> None:
        """The client must not have given up."""
        held = lease.read(self.settings.lake_env, self.table.topic)
        code = self.children["client"].poll()
        assert code is None, f"the client ended with {code}: {held and dict(held.facts)}"


@contextmanager
def rig(home: Path) -> Iterator[Rig]:
    """A stack of its own under a fresh home, with a stream and a collector that run."""
    settings = Settings(home=home)
    control.up(settings)
    table = declare("killed")
    create_topic(settings, table.topic, 2, {"retention.ms": "-1"})
    made = Rig(settings, table)
    try:
        made.start("client")
        made.start("collector")
        yield made
    finally:
        made.end()
        control.down(settings)


@contextmanager
def load(settings: Settings, topic: str, dice: random.Random) -> Iterator[Callable[[], int]]:
    """Records that keep coming, some of them twice; what is yielded counts those that the broker has confirmed."""
    from confluent_kafka import Producer

    from lineage_assets.bench.clicks import schema
    from lineage_assets.kafka.client import client_config
    from lineage_assets.kafka.registry import Registry
    from tests.integration.engine import avro_bytes, framed

    text = schema()
    schema_id = Registry(settings).register(f"{topic}-value", text)
    confirmed, ended = [0], threading.Event()
    producer = Producer(client_config(settings, **{"enable.idempotence": True, "delivery.timeout.ms": 600_000}))

    def count(error: object, _: object) -> None:
        confirmed[0] += error is None

    def produce() -> None:
        number = 0
        while not ended.is_set():
            for _ in range(BURST):
                number += 1
                key = number if dice.random() > 0.1 else max(1, number - dice.randrange(200))
                event = {
                    "event_id": f"e{key}", "user_id": 1 + key % 50, "session_id": "s", "event_type": "view", "page": "/",
                    "email": None, "amount_cents": None if dice.random() > 0.02 else -1, "occurred_at": int(time.time() * 1000),
                }  # fmt: skip
                producer.produce(topic, framed(schema_id, avro_bytes(text, event)), str(key % 50), on_delivery=count)
            producer.poll(0)
            ended.wait(0.5)
        assert producer.flush(300) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield lambda: confirmed[0]
    finally:
        ended.set()
        thread.join()


def _await(done: Callable[[], bool], timeout_s: float, what: str) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.2)


def await_(done: Callable[[], bool], what: str, rigged: Rig | None = None) -> None:
    """Wait for something that must come, as long as the client lives."""

    def look() -> bool:
        if rigged is not None:
            rigged.require_alive()
        return done()

    _await(look, CAUGHT_UP_S, what)
