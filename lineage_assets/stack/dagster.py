"""Dagster's own processes and instance folder, under this LINEAGE_HOME.

Belongs here: dagster.yaml, starting the UI with its daemon, waiting for it. Does not belong here: definitions; this
module starts `dagster` and does not import it.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import lineage_assets
from lineage_assets.settings import Settings
from lineage_assets.stack import ports, process
from lineage_assets.stack.control import Say
from lineage_assets.stack.errors import NotReady, PartDied

NAME = "dagster"
READY_TIMEOUT_S = 120.0
INSTANCE = """\
# Written once by lineage-assets; change it as you like.
nux:
  enabled: false
telemetry:
  enabled: false
sensors:
  use_threads: true
  num_workers: 4
run_monitoring:
  enabled: true
concurrency:
  runs:
    # Three slices at once. A stream's run lives for months and takes no slot; there is one for each stream.
    max_concurrent_runs: -1
    tag_concurrency_limits:
      - {key: lineage/stream, limit: 1, value: {applyLimitPerUniqueValue: true}}
      - {key: dagster/partition, limit: 3}
      - {key: dagster/asset_partition_range_start, limit: 1}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
"""


def workspace_file() -> Path:
    """The workspace.yaml beside this package."""
    return Path(lineage_assets.__file__).parents[1] / "workspace.yaml"


def environment(settings: Settings) -> dict[str, str]:
    """What a Dagster process needs to find this home, on top of the caller's own environment."""
    return {"DAGSTER_HOME": str(settings.dagster_home), "LINEAGE_HOME": str(settings.home)}


def ensure_instance(settings: Settings) -> None:
    """Make the instance folder with its dagster.yaml; an existing file is the user's and stays."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    file = settings.dagster_home / "dagster.yaml"
    if not file.exists():
        file.write_text(INSTANCE)


def command(settings: Settings, workspace: Path, port: int) -> list[str]:
    """The command line of UI and daemon, with the signals that a background start takes away put back."""
    program = str(Path(sys.executable).with_name("dagster"))
    run = [program, "dev", "-w", str(workspace), "-h", ports.HOST, "-p", str(port), "--log-level", "warning"]
    return ["env", "--default-signal=INT,TERM", *run]


def start(settings: Settings, port: int, say: Say, workspace: Path | None = None) -> str:
    """Start UI and daemon in the background and return the UI's address; at once if they already run.

    Raises PortInUse, PartDied or NotReady, each with what to do next.
    """
    workspace = workspace or workspace_file()
    ensure_instance(settings)
    running = process.read(settings.stack_dir, NAME)
    if running is not None and process.leader(running):
        return running.address
    ports.require_free(NAME, port, "LINEAGE_UI_PORT")
    address = f"http://{ports.HOST}:{port}"
    log = settings.stack_dir / "logs" / f"{NAME}.log"
    say(NAME, "starting")
    record = process.start(
        settings.stack_dir,
        NAME,
        command(settings, workspace, port),
        env={**os.environ, **environment(settings)},
        cwd=workspace.parent,
        log=log,
        address=address,
    )
    until = time.monotonic() + READY_TIMEOUT_S
    while not _answers(address):
        if process.leader(record) is None:
            raise PartDied(NAME, process.exit_text(settings.stack_dir, NAME), log, process.tail(log))
        if time.monotonic() > until:
            raise NotReady(NAME, READY_TIMEOUT_S, f"no answer at {address}", log, process.tail(log))
        time.sleep(0.3)
    say(NAME, f"ready at {address}")
    return address


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
