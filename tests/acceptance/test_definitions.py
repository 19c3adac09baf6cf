"""A code location loads with every service down, talks to nobody while it does, and is quick.

Belongs here: loading alone, each in a process of its own. Does not belong here: what is loaded (the graph's snapshot).
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOAD = """
import lineage_assets.definitions
loaded = lineage_assets.definitions.defs()
"""
"""What a code server does with our module: import it, call what it finds."""

WATCHED = """
import json, sys
met = []
def hook(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        met.append([event, repr(arguments[-1])])
sys.addaudithook(hook)
"""
"""An audit hook sees every connection and look-up of Python's sockets, whichever library makes it. Clients that do not ask
Python (librdkafka, gRPC's core) are looked for as modules below. A bind reaches nobody: urllib3 learns of IPv6 by one."""

TELL = """
from lineage_assets.definitions import build_defs
keys = [key.to_user_string() for key in loaded.resolve_asset_graph().get_all_asset_keys()]
services = [name for name in ("confluent_kafka", "pyspark", "grpc", "deltalake") if name in sys.modules]
print(json.dumps({"met": met, "assets": keys, "services": services}))
"""


def environment(home: Path, **variables: str) -> dict[str, str]:
    """The caller's environment with another LINEAGE_HOME and no address of a service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LINEAGE_", "DAGSTER_"))}
    kept.pop("SPARK_REMOTE", None)
    return {**kept, "LINEAGE_HOME": str(home), "PYTHONPATH": str(ROOT), **variables}


def closed_port() -> int:
    """A port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(arguments: list[str], env: Mapping[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A process that must end well."""
    done = subprocess.run(arguments, env=env, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def nowhere() -> dict[str, str]:
    """Addresses at which nobody listens."""
    return {
        "LINEAGE_KAFKA_BOOTSTRAP": f"127.0.0.1:{closed_port()}",
        "LINEAGE_REGISTRY_URL": f"http://127.0.0.1:{closed_port()}/apis/ccompat/v7",
        "LINEAGE_SPARK_REMOTE": f"sc://127.0.0.1:{closed_port()}",
    }


@pytest.mark.parametrize("addresses", ["none", "closed ports"])
def test_the_code_location_loads_with_every_service_down_and_opens_no_socket(addresses: str, tmp_path: Path) -> None:
    env = environment(tmp_path / "home", **(nowhere() if addresses == "closed ports" else {}))
    told = json.loads(run([sys.executable, "-c", WATCHED + LOAD + TELL], env).stdout)

    assert told["met"] == []
    assert {"kafka/local/clicks", "raw/clicks", "silver/clicks", "gold/user_activity_5m"} <= set(told["assets"])
    assert any(asset.startswith("marts/") for asset in told["assets"])


def test_the_audit_hook_would_see_a_connection(tmp_path: Path) -> None:
    knock = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {closed_port()}), timeout=1)
except OSError:
    pass
loaded = __import__("lineage_assets.definitions").definitions.defs()
"""
    told = json.loads(run([sys.executable, "-c", WATCHED + knock + TELL], environment(tmp_path)).stdout)

    assert "socket.connect" in {event for event, _ in told["met"]}


def test_loading_imports_no_client_of_kafka_and_no_spark(tmp_path: Path) -> None:
    told = json.loads(run([sys.executable, "-c", WATCHED + LOAD + TELL], environment(tmp_path)).stdout)

    assert not {"confluent_kafka", "pyspark"} & set(told["services"])


def test_loading_writes_nothing_into_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run([sys.executable, "-c", LOAD], environment(home))

    assert not home.exists()


@pytest.mark.parametrize(
    "command", [["dg", "check", "defs"], ["dagster", "definitions", "validate", "-w", "workspace.yaml"]], ids=" ".join
)
def test_dagsters_own_check_passes_with_every_service_down(command: list[str], tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name(command[0]))
    (tmp_path / "dagster").mkdir()
    env = environment(tmp_path / "home", DAGSTER_HOME=str(tmp_path / "dagster"), **nowhere())
    done = run([program, *command[1:]], env)

    said = done.stdout + done.stderr
    assert "All definitions loaded successfully" in said or "All code locations passed validation" in said


def test_loading_takes_at_most_three_times_the_cpu_of_importing_dagster(
    tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """CPU seconds (user and system) of whole processes, medians of five, taken in turns: the machine's other load hits both.

    One round before counts for nothing: it fills the caches of byte code and contracts that every later start finds.
    """
    env = environment(tmp_path / "home")
    programs = {"dagster": "import dagster", "ours": LOAD}
    measured: dict[str, list[float]] = {name: [] for name in programs}
    for round_number in range(6):
        for name, program in programs.items():
            seconds = cpu_seconds([sys.executable, "-c", program], env)
            if round_number:
                measured[name].append(seconds)
    medians = {name: statistics.median(times) for name, times in measured.items()}
    ratio = medians["ours"] / medians["dagster"]
    record_property("cpu_s", json.dumps(medians))

    assert ratio <= 3.0, f"loading takes {ratio:.2f} times the CPU of `import dagster`: {measured}"


def cpu_seconds(arguments: list[str], env: Mapping[str, str]) -> float:
    """User and system time of one process and its children, seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(arguments, env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
