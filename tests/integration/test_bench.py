"""The bench beside the real stack: the load that it sends, and its parts on a small scale.

Belongs here: that what is measured is what happened. Does not belong here: whether a figure is good.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from lineage_assets.bench import batch, catch_up, latency, overhead, upkeep
from lineage_assets.bench.declaration import declare
from lineage_assets.bench.latency import Plan
from lineage_assets.bench.load import Load, send
from lineage_assets.bench.rig import Rig, rows
from lineage_assets.bench.streams import StreamOptions
from lineage_assets.errors import ContractError, FatalError
from lineage_assets.kafka.client import client_config
from lineage_assets.kafka.partitioner import default_partition
from lineage_assets.lineage.commits import commits
from lineage_assets.lineage.content import by_slice, summary
from lineage_assets.settings import Settings
from lineage_assets.spark.event_table import EventTable


@pytest.fixture
def rig(stack: Settings, tmp_path: Path) -> Iterator[Rig]:
    """A rig in a lake of its own; its topics are removed in the end."""
    ready = Rig(stack.model_copy(update={"lake": str(tmp_path / "lake")}), tmp_path / "logs", lambda part, text: None)
    yield ready
    ready.delete_topics()


def read_all(stack: Settings, topic: str, partitions: int, total: int) -> list[Message]:
    consumer = Consumer(client_config(stack, **{"group.id": topic, "enable.auto.commit": False}))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    read: list[Message] = []
    deadline = time.monotonic() + 20
    while len(read) < total and time.monotonic() < deadline:
        read += consumer.consume(1000, timeout=1)
    consumer.close()
    return read


def ids(messages: list[Message]) -> Counter[tuple[int, bytes]]:
    """(partition, event id) of those with the right magic byte."""
    return Counter(
        (one.partition() or 0, (one.value() or b"")[6:30]) for one in messages if (one.value() or b"")[0] == 0
    )


def test_a_load_keeps_its_rate_and_stamps_each_record_when_it_sends_it(rig: Rig) -> None:
    table = rig.table("load")
    began_ms = time.time_ns() // 1_000_000
    sent = send(rig.settings, Load(table.topic, rate=2_000, seconds=2.0))
    ended_ms = time.time_ns() // 1_000_000

    messages = read_all(rig.settings, table.topic, rig.partitions, sent.records)
    stamps = [one.timestamp()[1] for one in messages]
    assert len(messages) == sent.records == 4_000
    assert sent.ok + sent.dead + sent.duplicate == 4_000
    assert sum(sent.ok_by_second.values()) == sent.ok
    assert began_ms <= sent.first_ms == min(stamps) and max(stamps) == sent.last_ms <= ended_ms
    assert max(stamps) - min(stamps) > 1_800, "spread over its time"
    assert sent.bytes == sum(len(one.value() or b"") + len(one.key() or b"") for one in messages)
    assert all(default_partition(one.key() or b"", rig.partitions) == one.partition() for one in messages)
    repeated = sum(count - 1 for count in ids(messages).values())
    assert repeated == sent.duplicate > 0, "a duplicate lies in the partition of its original"


def test_a_fill_is_stamped_over_the_time_that_it_is_to_seem_to_take(rig: Rig) -> None:
    table = rig.table("fill")
    now_ms = time.time_ns() // 1_000_000
    sent = rig.fill(table, 50_000, over_s=600, ago_s=3_600)

    assert rig.records(table) == sent.records == 50_000
    assert abs(sent.first_ms - (now_ms - 4_200_000)) < 15_000
    assert 570_000 < sent.last_ms - sent.first_ms < 600_000
    assert sent.duplicate > 0 and sent.rate > 20_000


def test_a_load_that_is_asked_to_end_tells_what_it_sent_until_then(rig: Rig) -> None:
    table = rig.table("end")
    with rig.loading(Load(table.topic, rate=500, seconds=3_600)) as load:
        while rig.records(table) < 100:
            time.sleep(0.05)
        sent = load.account()

    assert 100 <= sent.records == rig.records(table) < 60_000


def test_a_topic_that_does_not_exist_is_named(rig: Rig) -> None:
    with pytest.raises(ContractError, match="no-such-bench-topic"):
        send(rig.settings, Load("no-such-bench-topic", rate=1, seconds=1))


def test_every_row_of_the_measured_time_is_seen_once_and_a_batch_makes_the_same(rig: Rig) -> None:
    """The whole of (a), (d) and (f) on a small scale, with maintenance, over a topic with an older slice."""
    asked: list[str] = []

    def maintain(_: Rig, table: EventTable) -> dict[str, Any]:
        asked.append(table.name)
        return {"done": True}

    table, found = latency.measure(rig, Plan(rate=200, seconds=8, warm_up_s=1, window=False), maintain)

    silver = f"silver/{table.name}"
    assert found.complete, (found.latency, found.expected)
    assert found.latency["count"] == found.expected == pytest.approx(1_600, rel=0.1)
    assert 0 < found.latency["p50_ms"] <= found.latency["p99_ms"] <= found.latency["max_ms"] < 60_000
    assert asked == [table.name] and found.maintenance == {"done": True}
    assert found.usage.cpu_s["spark"] > 0 and found.usage.cpu_s["stream"] > 0
    assert found.usage.peak_mb["spark/java"] > 100
    assert found.bytes[silver].live > 0 and found.bytes[silver].log > 0
    assert sum(one["rows"] for one in found.arrived) == found.expected

    made = batch.measure(rig, table)
    assert made.events == found.events == rig.records(table)
    assert made.cpu_s > 0 and made.bytes[silver].live > 0
    assert rows(rig.settings, silver) == found.load["ok"], "the batch used a lake of its own"


def test_pipeline_and_plain_copy_go_through_the_whole_topic(rig: Rig) -> None:
    found = catch_up.measure(rig, 20_000, 1, bite=10_000)

    assert found.events == found.pipeline[0].events == found.copy[0].events == 20_000
    assert found.pipeline[0].commits >= 2 and found.copy[0].commits >= 2
    assert found.summary()["share_of_copy"] > 0
    assert not list(rig.folder.parent.glob("lake-*")), "both lakes are gone"


def test_a_stream_without_lineage_or_parts_of_it_goes_through_its_batches(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {name: overhead.variants(each=True)[name] for name in ("bare", "without record", "without turn")}
    monkeypatch.setattr(overhead, "variants", lambda each: chosen)

    (found,) = overhead.measure(rig, 4_000, 1_000, 0)

    assert [turn.variant for turn in found.turns] == [*chosen]
    assert all(turn.cpu_s_per_million > 0 for turn in found.turns)
    assert found.summary()["costs"] == {}


def test_maintenance_compacts_a_closed_slice_of_both_tables(rig: Rig) -> None:
    table = rig.table("upkeep")
    sent = rig.fill(table, 3_000, ago_s=2 * 3600)
    raw, silver = f"raw/{table.name}", f"silver/{table.name}"
    with rig.streaming(table, StreamOptions(bite=600)) as running:
        rig.await_rows(raw, lambda: sent.records, running)
        rig.await_rows(silver, lambda: sent.ok, running)
    before = {key: summary(entries).counts for key, entries in by_slice(commits(rig.settings.lake_env, raw)).items()}

    told = upkeep.maintain(rig, table)

    assert all(told[asset]["files_before"] > 2 and told[asset]["files_after"] == 1 for asset in (raw, silver))
    log = commits(rig.settings.lake_env, raw)
    assert log[0].record is not None and log[0].record.kind == "compact"
    assert {key: summary(entries).counts for key, entries in by_slice(log).items()} == before
    assert (rows(rig.settings, raw), rows(rig.settings, silver)) == (sent.records, sent.ok)


class Ended:
    """A stream whose client has ended."""

    pid = 2**22 + 5

    def __init__(self, log: Path) -> None:
        self.log = log

    def ended(self) -> int | None:
        return 7


def test_a_stream_that_ends_is_told_with_its_last_words(rig: Rig, tmp_path: Path) -> None:
    log = tmp_path / "stream.log"
    log.write_text("error: the disk is full\n")

    with pytest.raises(FatalError, match="ended with exit code 7 at 0 of 10 rows: error: the disk is full"):
        rig.await_rows("raw/none", lambda: 10, Ended(log))


def test_a_stream_of_another_kind_can_be_measured(rig: Rig, tmp_path: Path) -> None:
    started: list[tuple[str, StreamOptions]] = []

    def start(table: EventTable, config: Settings, options: StreamOptions) -> AbstractContextManager[Any]:
        from contextlib import nullcontext

        started.append((table.name, options))
        return nullcontext(Ended(tmp_path / "log"))

    other = Rig(rig.settings, rig.folder, rig.say, start=start)
    with other.streaming(declare("anything"), StreamOptions(bite=5)) as running:
        assert running.ended() == 7
    assert started == [("anything", StreamOptions(bite=5))]


def test_the_command_measures_on_the_stack_that_runs(stack: Settings, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "lineage_assets.cli",
        "bench",
        "stream",
        "--here",
        "--part",
        "b",
        "--events",
        "10000",
    ]
    command += ["--rounds", "1", "--plots", str(tmp_path / "plots"), "--json"]
    env = {**os.environ, "LINEAGE_HOME": str(stack.home)}

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)

    told = json.loads(done.stdout)
    reached = [one["reached"] for one in told["figures"]]
    assert done.returncode == (0 if all(reached) else 1), done.stderr
    assert told["catch_up"]["events"] == 10_000 and told["latency"] == []
    assert (tmp_path / "plots" / "catch-up.svg").exists()
    kept = [json.loads(file.read_text()) for file in (stack.home / "bench").glob("*.json")]
    assert told["catch_up"] in [one["catch_up"] for one in kept]
    assert "to be reached: 60,000" in done.stderr or all(reached)


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--part", "z"], "no part z"), (["--here", "--part", "e"], "part e needs")]
)
def test_a_wrong_call_is_told_with_what_is_right(stack: Settings, arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "lineage_assets.cli", "bench", "stream", *arguments]

    done = subprocess.run(command, env={**os.environ, "LINEAGE_HOME": str(stack.home)}, capture_output=True, text=True)

    assert done.returncode == 2 and said in " ".join(done.stderr.split()) and done.stdout == ""
