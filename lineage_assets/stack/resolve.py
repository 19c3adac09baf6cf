"""Which jars the embedded stack needs, and how the lock file is made of that. For maintainers; users never run it.

Belongs here: the few artifacts that we ask for, their resolution. Does not belong here: fetching what is locked.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from lineage_assets.stack import jars
from lineage_assets.stack.jars import Artifact

# As group:artifact:version[:classifier[:type]]; all that they depend on follows.
# `!` (jgo's mark): this one's own list of managed versions must not bend those of the others.
ROOTS = {
    "kafka": (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4!",
    ),
    "spark": (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-avro_2.13:4.2.0",
    ),
    "registry": ("io.apicurio:apicurio-registry-app:3.3.3:all:tar.gz",),
}


def write_lock(path: Path = jars.LOCK) -> None:
    """Resolves ROOTS anew, downloads every file to measure it, and writes the lock file."""
    url = jars.repository_url()
    with ThreadPoolExecutor(jars.PARALLEL_DOWNLOADS) as pool:
        sets = {
            name: [asdict(a) for a in pool.map(lambda c: _measure(c, url), coordinates(name, url))]
            for name in jars.SETS
        }
    path.write_text(json.dumps({"version": 1, "sets": sets}, indent=1) + "\n")


def coordinates(name: str, url: str) -> list[str]:
    """All artifacts of one set, sorted. The engine's leaves out what pyspark brings, in whatever version."""
    import jgo

    if name == "registry":
        return list(ROOTS[name])
    found = jgo.resolve("+".join(ROOTS[name]), repositories={"central": url})
    brought = brought_by_pyspark() if name == "spark" else set()
    return sorted({f"{a.groupId}:{a.artifactId}:{a.version}" for a in found if a.artifactId not in brought})


def brought_by_pyspark() -> set[str]:
    """Artifact ids of pyspark's own jars: `avro-1.12.1.jar` -> `avro`."""
    import pyspark

    return {re.sub(r"-\d.*$", "", jar.stem) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}


def _measure(coordinate: str, url: str) -> Artifact:
    nameless = Artifact(coordinate, "", 0)
    digest, scratch = jars.stream_to_scratch(f"{url}/{nameless.path}", nameless.cached(), lambda count: None)
    artifact = Artifact(coordinate, digest, scratch.stat().st_size)
    scratch.replace(artifact.cached())
    return artifact
