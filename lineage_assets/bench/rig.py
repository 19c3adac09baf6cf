"""What every part of the bench works with: a stack, a table over a fresh topic, the load, waiting for rows.

Belongs here: setting up and waiting. Does not belong here: what is measured (the parts), the processes' insides.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lineage_assets.bench.declaration import declare
from lineage_assets.bench.load import Load, Sent
from lineage_assets.bench.meter import Trees, pid_tree, stack_trees
from lineage_assets.bench.streams import Running, StartStream, StreamOptions, command
from lineage_assets.errors import FatalError, TransientError
from lineage_assets.kafka import client
from lineage_assets.lineage.commits import open_table
from lineage_assets.settings import Settings
from lineage_assets.spark.event_table import EventTable
from lineage_assets.stack import process

Say = Callable[[str, str], None]
"""Told about each step: (part, what happens)."""

TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}
POLL_S = 0.2
STALLED_S = 180.0
"""So long without a new row means that the stream hangs; a first batch on a cold server takes tens of seconds."""
ENDS_S = 120.0


@dataclass(frozen=True, slots=True)
class Rig:
    """`settings` name the stack and the lake; `folder` takes the logs. `start` is for a stream of another kind than ours."""

    settings: Settings
    folder: Path
    say: Say
    partitions: int = 3
    start: StartStream | None = None
    topics: list[str] = field(default_factory=list)

    def table(self, purpose: str) -> EventTable:
        """The clicks' declaration over a fresh topic of its own."""
        name = f"bench-{purpose}-{uuid.uuid4().hex[:6]}"
        client.create_topic(self.settings, name, self.partitions, TOPIC_CONFIG)
        self.topics.append(name)
        return declare(name)

    def in_lake(self, name: str) -> Rig:
        """The same stack with an empty lake beside this one's."""
        return Rig(
            self.settings.model_copy(update={"lake": f"{self.settings.lake}-{name}"}),
            self.folder, self.say, self.partitions, self.start, self.topics,
        )  # fmt: skip

    def fill(self, table: EventTable, events: int, *, over_s: float = 0.0, ago_s: float = 0.0) -> Sent:
        """Put events into the topic as fast as the broker takes them."""
        with self.loading(Load(table.topic, events=events, over_s=over_s, ago_s=ago_s)) as load:
            return load.account(ENDS_S + events / 20_000)

    @contextmanager
    def loading(self, load: Load) -> Iterator[Child]:
        """A load in a process of its own."""
        with self.child("load", [sys.executable, "-m", "lineage_assets.bench.load", json.dumps(asdict(load))]) as child:
            yield child

    @contextmanager
    def child(self, name: str, command: Sequence[str], **env: str) -> Iterator[Child]:
        """A process under this rig's settings, ended at the end of the block; its stdout is its account."""
        log = self.folder / f"{name}-{uuid.uuid4().hex[:6]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as err:
            started = subprocess.Popen(
                command, env={**os.environ, **self.environment(), **env}, stdout=subprocess.PIPE, stderr=err, text=True
            )
        try:
            yield Child(name, started, log)
        finally:
            if started.poll() is None:
                started.terminate()
                try:
                    started.wait(ENDS_S)
                except subprocess.TimeoutExpired:
                    started.kill()
                    started.wait()
            if started.stdout is not None:
                started.stdout.close()

    def environment(self) -> Mapping[str, str]:
        """What a process needs to find this rig's stack and lake."""
        lake = {"LINEAGE_LAKE": self.settings.lake, "LINEAGE_ENV": self.settings.env}
        return {"LINEAGE_HOME": str(self.settings.home), **lake}

    @contextmanager
    def streaming(self, table: EventTable, options: StreamOptions) -> Iterator[Running]:
        """The stream of a table; the end of the block stops it after its batch."""
        started = self.start(table, self.settings, options) if self.start else None
        with started or self.child("stream", command(table, options)) as running:
            yield running

    def trees(self, **pids: int) -> Trees:
        """The stack's processes, some of our own, and the bench itself."""
        own = {name: pid_tree(pid) for name, pid in pids.items()}
        return {**stack_trees(self.settings), **own, "bench": lambda: pid_tree(os.getpid())()[:1]}

    def records(self, table: EventTable) -> int:
        """How many records the topic holds."""
        topic = client.describe(self.settings, table.topic)
        begin, end = client.begin_offsets(self.settings, topic), client.end_offsets(self.settings, topic)
        return sum(end[partition] - begin[partition] for partition in topic.partitions)

    def await_rows(self, asset: str, count: Callable[[], int], running: Running | None) -> int:
        """Wait until a table has so many rows; returns how many it has then.

        Raises FatalError when the stream has ended, TransientError when no row came for a long time, and FatalError when
        there are more rows than there can be.
        """
        most, moved = -1, time.monotonic()
        while (now := rows(self.settings, asset)) < (wanted := count()):
            if now > most:
                most, moved = now, time.monotonic()
            if running is not None and (code := running.ended()) is not None:
                raise FatalError(
                    f"the stream of {asset} ended with exit code {code} at {now:,} of {wanted:,} rows: "
                    + process.tail(running.log),
                    remedy=f"read {running.log}",
                )
            if time.monotonic() - moved > STALLED_S:
                raise TransientError(
                    f"{asset} stands at {now:,} of {wanted:,} rows for {STALLED_S:.0f} s",
                    remedy=f"read {running.log}" if running else "look at the logs of the stack",
                )
            time.sleep(POLL_S)
        return now

    def delete_topics(self) -> None:
        """Remove the topics that this rig made."""
        from confluent_kafka.admin import AdminClient

        if self.topics:
            asked = AdminClient(client.client_config(self.settings)).delete_topics(self.topics)
            for future in asked.values():
                future.exception(20)
            self.topics.clear()


@dataclass(frozen=True, slots=True)
class Child:
    """A process that prints one JSON object when it ends."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> int | None:
        """Its exit code once it has ended."""
        return self.process.poll()

    def await_word(self, text: str, timeout_s: float = ENDS_S) -> None:
        """Wait until its log says something."""
        deadline = time.monotonic() + timeout_s
        while text not in process.tail(self.log):
            if self.ended() is not None or time.monotonic() > deadline:
                raise FatalError(f"{self.name} did not begin: {process.tail(self.log)}", remedy=f"read {self.log}")
            time.sleep(POLL_S / 4)

    def end(self) -> Any:
        """Ask it to end, and what it told."""
        self.process.send_signal(signal.SIGTERM)
        return self.told(ENDS_S)

    def told(self, timeout_s: float) -> Any:
        """What it printed when it ended by itself."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TransientError(
                f"{self.name} did not end within {timeout_s:.0f} s", remedy=f"read {self.log}"
            ) from error
        if self.process.returncode:
            raise FatalError(
                f"{self.name} ended with exit code {self.process.returncode}: {process.tail(self.log)}",
                remedy=f"read {self.log}",
            )
        return json.loads(out)

    def account(self, timeout_s: float | None = None) -> Sent:
        """Of a load: what it sent; without a time limit it is asked to end."""
        return Sent(**(self.end() if timeout_s is None else self.told(timeout_s)))


@contextmanager
def fresh_lake(rig: Rig, name: str) -> Iterator[Rig]:
    """An empty lake beside the rig's, removed at the end of the block if it is local."""
    there = rig.in_lake(name)
    try:
        yield there
    finally:
        if "://" not in there.settings.lake:
            shutil.rmtree(there.settings.lake, ignore_errors=True)


def rows(settings: Settings, asset: str) -> int:
    """How many rows a table has, by its log alone; 0 before it exists."""
    import pyarrow as pa

    table = open_table(settings.lake_env, asset)
    if table is None:
        return 0
    counts = pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist()
    return sum(count or 0 for count in counts)
