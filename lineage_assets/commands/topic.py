"""`lineage topic`: create a topic, and put JSON lines into one, for trying things out."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


@app.callback()
def _frame() -> None:
    """Create a topic, and put JSON lines into one, for trying things out."""


@app.command()
def create(
    name: str,
    partitions: Annotated[int, typer.Option(min=1)] = 3,
    as_json: Json = False,
) -> None:
    """Create a topic that keeps its records for ever. One that exists stays as it is."""
    from lineage_assets.kafka.client import create_topic
    from lineage_assets.settings import settings

    made = create_topic(settings(), name, partitions, {"retention.ms": "-1", "retention.bytes": "-1"})
    if as_json:
        print(json.dumps({"topic": name, "created": made}))
    else:
        print(f"topic {name}: {'created' if made else 'exists already'}")


@app.command()
def accept(name: str, as_json: Json = False) -> None:
    """Go on with a topic that was deleted and made again: its records come into the tables of the one before."""
    from lineage_assets.definitions import event_table
    from lineage_assets.kafka.client import describe
    from lineage_assets.lineage import ledger
    from lineage_assets.lineage.commits import commits
    from lineage_assets.lineage.content import by_slice, other_topics
    from lineage_assets.settings import settings

    config, table = settings(), event_table(name)
    topic = ledger.TopicRef(config.kafka_alias, name, describe(config, name).id)
    held = by_slice(commits(config.lake_env, f"raw/{table.name}")).values()
    before = sorted(set().union(*(other_topics(entries, topic.topic_id) for entries in held)))
    new = ledger.accept(config.lake_env, topic, before)
    if as_json:
        print(json.dumps({"topic": name, "topic_id": topic.topic_id, "before": before, "accepted_now": new}))
    elif not before:
        print(f"topic {name}: raw/{table.name} holds records of no other; nothing is to be accepted")
    else:
        print(f"topic {name}: {topic.topic_id} goes on where {', '.join(before)} ended")


@app.command()
def produce(
    name: str,
    key: Annotated[str | None, typer.Option(help="Field whose value becomes the record's key.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Field whose instant becomes the Kafka timestamp. Default: now.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send each line of standard input as a record, its bytes unchanged; returns when the broker has all of them."""
    from confluent_kafka import Producer

    from lineage_assets.errors import ContractError, TransientError
    from lineage_assets.kafka.client import client_config, describe
    from lineage_assets.settings import settings

    describe(settings(), name)
    refused: list[str] = []
    producer = Producer(client_config(settings(), **{"enable.idempotence": True}))
    sent = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        value = line.rstrip(b"\r\n")
        try:
            fields = json.loads(value) if key or time else {}
            options: dict[str, Any] = {"key": str(fields[key])} if key else {}
            if time:
                options["timestamp"] = int(datetime.fromisoformat(fields[time]).timestamp() * 1000)
        except (ValueError, KeyError, TypeError) as error:
            raise ContractError(
                f"line {number} of standard input: {type(error).__name__} {error}",
                remedy="leave --key and --time out to send lines as they are",
            ) from error
        producer.produce(
            name, value, on_delivery=lambda fault, _: refused.append(str(fault)) if fault else None, **options
        )
        producer.poll(0)
        sent += 1
    if left := producer.flush(30):
        raise TransientError(f"{left} of {sent} records were not confirmed within 30 s", remedy="run `lineage status`")
    if refused:
        raise TransientError(f"the broker refused {len(refused)} of {sent} records: {refused[0]}", remedy="try again")
    print(json.dumps({"topic": name, "records": sent}) if as_json else f"topic {name}: {sent:,} records sent")
