"""The embedded schema registry: Apicurio, on its Confluent-compatible API, with its own small database on disk.

Belongs here: its configuration and its probe. Does not belong here: subjects and schemas (lineage_assets/kafka).
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

from lineage_assets.settings import Settings
from lineage_assets.stack import jars, java
from lineage_assets.stack.part import Part
from lineage_assets.stack.ports import HOST

HEAP = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")


def part(settings: Settings, ports: dict[str, int]) -> Part:
    folder = settings.stack_dir / "registry"
    address = f"http://{HOST}:{ports['registry_port']}/apis/ccompat/v7"
    return Part(
        name="registry",
        title="Schema registry",
        argv=(java.java(), *HEAP, *java.common_options(), *_options(folder, ports["registry_port"]), "-jar", _runner()),
        env=dict(os.environ),
        folder=folder,
        ports=ports,
        jars="registry",
        address=address,
        shown=address,
        prepare=lambda: folder.mkdir(parents=True, exist_ok=True),
        probe=lambda: probe(address),
    )


def probe(address: str) -> str:
    """Lists the subjects through the API that clients use."""
    try:
        with urllib.request.urlopen(f"{address}/subjects", timeout=2) as answer:
            return "" if answer.status == 200 else f"it answers HTTP {answer.status}"
    except urllib.error.HTTPError as error:
        return f"it answers HTTP {error.code}"
    except OSError as error:
        return str(getattr(error, "reason", error))


def _options(folder: Path, port: int) -> list[str]:
    options = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": port,
        # A second server for metrics, which cannot be left out: it gets a port that nobody needs to know.
        "quarkus.management.host": HOST,
        "quarkus.management.port": 0,
        "quarkus.banner.enabled": "false",
        "quarkus.log.level": "WARN",
        "quarkus.log.console.format": "%d{yyyy-MM-dd'T'HH:mm:ss} %p [%c{1}] %m%n%e",
        'quarkus.log.category."io.quarkus.config".level': "ERROR",
        "quarkus.otel.sdk.disabled": "true",
        'quarkus.log.category."io.apicurio".level': "WARN",
        "quarkus.http.access-log.enabled": "false",
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
        "apicurio.datasource.url": f"jdbc:h2:file:{folder / 'registry'}",
        "apicurio.datasource.jdbc.initial-size": 2,
        "apicurio.datasource.jdbc.min-size": 2,
        "apicurio.datasource.jdbc.max-size": 10,
        "apicurio.rest.deletion.group.enabled": "true",
        "apicurio.rest.deletion.artifact.enabled": "true",
        "apicurio.rest.deletion.artifact-version.enabled": "true",
    }
    return [f"-D{name}={value}" for name, value in options.items()]


def _runner() -> str:
    return str(jars.unpacked("registry") / "quarkus-run.jar")
