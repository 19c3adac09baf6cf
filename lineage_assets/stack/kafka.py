"""The embedded broker: Apache Kafka, one node that is broker and controller (KRaft).

Belongs here: its configuration, its first formatting, its probe. Does not belong here: topics (lineage_assets/kafka).
"""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import uuid
from pathlib import Path

from lineage_assets.settings import Settings
from lineage_assets.stack import jars, java
from lineage_assets.stack.errors import StackError
from lineage_assets.stack.part import Part
from lineage_assets.stack.ports import HOST

HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")

# Retention is off: records keep their producers' timestamps, and history loaded with old ones must not be deleted.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=2
log.retention.ms=-1
log.retention.bytes=-1
offsets.retention.minutes=5256000
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""

_LOG4J = """\
Configuration:
  status: warn
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: "%d{ISO8601} %p %c{1}: %m%n"
  Loggers:
    Root:
      level: warn
      AppenderRef:
        ref: out
    Logger:
      - name: kafka.server.KafkaRaftServer
        level: info
"""


def part(settings: Settings, ports: dict[str, int]) -> Part:
    folder = settings.stack_dir / "kafka"
    address = f"{HOST}:{ports['kafka_port']}"
    return Part(
        name="kafka",
        title="Kafka",
        argv=(*_java(folder), "kafka.Kafka", str(folder / "server.properties")),
        env=dict(os.environ),
        folder=folder,
        ports=ports,
        jars="kafka",
        address=address,
        shown=address,
        prepare=lambda: prepare(folder, ports),
        probe=lambda: probe(address),
    )


def prepare(folder: Path, ports: dict[str, int]) -> None:
    """Writes the configuration; formats the data folder the first time."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.yaml").write_text(_LOG4J)
    port, controller_port = ports["kafka_port"], ports["kafka_controller_port"]
    properties = _PROPERTIES.format(host=HOST, port=port, controller_port=controller_port, data=data)
    (folder / "server.properties").write_text(properties)
    if not (data / "meta.properties").exists():
        _format(folder)


def probe(address: str) -> str:
    """Asks for the cluster's metadata, as any client would."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    quiet: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "log_level": 0,
        "socket.timeout.ms": 2000,
    }
    try:
        brokers = AdminClient(quiet, logger=_silent()).list_topics(timeout=2).brokers
    except KafkaException as error:
        return str(error.args[0])
    return "" if brokers else "it lists no broker"


def _format(folder: Path) -> None:
    # It may begin with a hyphen: as a word of its own the tool would take it for an option.
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(folder / "server.properties"))
    argv = [*_java(folder), *tool]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(
            f"Kafka's data folder {folder / 'data'} could not be formatted: {(done.stderr or done.stdout).strip()}",
            remedy=f"if nothing in it is needed, remove {folder} and run `lineage up` again",
        )


def _java(folder: Path) -> tuple[str, ...]:
    return (
        java.java(),
        *HEAP,
        *java.common_options(),
        f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}",
        "-Dlog4j2.disable.jmx=true",
        "-cp",
        jars.class_path("kafka"),
    )


def _silent() -> logging.Logger:
    """For a client that is expected to fail at first: its complaints would only alarm."""
    logger = logging.getLogger("lineage_assets.stack.kafka.probe")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
