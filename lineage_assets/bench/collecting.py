"""The collector as a process of its own, over a fresh Dagster instance, so that its CPU can be told from all else.

Belongs here: ticking as the daemon does, and the account. Does not belong here: collecting (lineage_assets/reporting).
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from lineage_assets.lineage.slices import Grain
from lineage_assets.settings import settings

TICK_S = 10.0


def main(tables: Sequence[str], grain: str, home: str, tick_s: float = TICK_S) -> None:
    """The process: collect these tables' commits until SIGTERM, and those that are left; then tell CPU and events."""
    import dagster as dg

    from lineage_assets.reporting.collector import Managed, collect

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    Path(home).mkdir(parents=True, exist_ok=True)
    wanted = [Managed(asset, Grain(grain)) for asset in tables]
    lake, events = settings().lake_env, 0
    with dg.DagsterInstance.local_temp(home) as instance:
        done = collect(instance, lake, wanted, {})
        print("collecting", file=sys.stderr, flush=True)
        began = time.process_time()
        while True:
            last = stop.wait(tick_s)
            done = collect(instance, lake, wanted, done.cursor)
            events += done.events
            if done.problems:
                raise done.problems[0]
            if last:
                break
    print(json.dumps({"cpu_s": time.process_time() - began, "events": events}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
