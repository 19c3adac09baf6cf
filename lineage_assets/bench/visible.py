"""Part (e): from a commit to its materialization being there in Dagster.

Belongs here: polling Dagster's event log as its UI does. Does not belong here: reporting (lineage_assets/reporting), having
Dagster run (location.py).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lineage_assets.bench.histogram import Histogram

if TYPE_CHECKING:
    import dagster as dg

POLL_S = 1.0
LATEST_S = 150.0
"""A commit is shown a minute after the one before it and a tick, at the latest; beyond this it counts as never shown."""
AT_ONCE = 200
VERSIONS = "delta/versions"


class Visible:
    """Which versions of an asset Dagster showed, and when it did first. `committed` tells when each was committed, in ms."""

    def __init__(self, committed: Callable[[], Mapping[int, int]]) -> None:
        self._committed = committed
        self._shown_ms: dict[int, int] = {}
        self._told_ms: list[int] = []

    def shown(self, versions: Iterable[int], now_ms: int) -> None:
        """One materialization covers these versions."""
        self._told_ms.append(now_ms)
        for version in versions:
            self._shown_ms.setdefault(version, now_ms)

    def summary(self, from_ms: int, to_ms: int, timeout_s: float = LATEST_S) -> dict[str, Any]:
        """Times from commit to visible, of what was committed in `[from_ms, to_ms)`; waits until all of it is shown."""
        wanted = {version: at for version, at in self._committed().items() if from_ms <= at < to_ms}
        until = time.monotonic() + timeout_s
        while not wanted.keys() <= self._shown_ms.keys() and time.monotonic() < until:
            time.sleep(POLL_S)
        latency = Histogram()
        for version, at in wanted.items():
            if version in self._shown_ms:
                latency.add({max(0, self._shown_ms[version] - at): 1})
        told = sum(from_ms <= at < to_ms for at in self._told_ms)
        return {**latency.summary(), "materializations": told, "never_shown": len(wanted) - latency.count}


def covered(text: str) -> list[int]:
    """The versions in the text of half-open ranges.

    >>> covered("[10, 13), [15, 16)")
    [10, 11, 12, 15]
    """
    pairs = re.findall(r"\[(\d+), (\d+)\)", text)
    return [version for start, end in pairs for version in range(int(start), int(end))]


@contextmanager
def watching(
    instance: dg.DagsterInstance, asset: str, committed: Callable[[], Mapping[int, int]], poll_s: float = POLL_S
) -> Iterator[Visible]:
    """Poll the asset's materializations while the block runs."""
    visible, stop = Visible(committed), threading.Event()
    poller = threading.Thread(target=_poll, args=(instance, asset, visible, stop, poll_s), name="visible", daemon=True)
    poller.start()
    try:
        yield visible
    finally:
        stop.set()
        poller.join()


def _poll(instance: dg.DagsterInstance, asset: str, visible: Visible, stop: threading.Event, poll_s: float) -> None:
    import dagster as dg

    key, after = dg.AssetKey(asset.split("/")), 0
    while True:
        last = stop.is_set()
        wanted = dg.AssetRecordsFilter(asset_key=key, after_storage_id=after)
        for one in instance.fetch_materializations(wanted, limit=AT_ONCE, ascending=True).records:
            after = one.storage_id
            assert one.asset_materialization is not None
            said = one.asset_materialization.metadata.get(VERSIONS)
            if said is not None:
                visible.shown(covered(str(said.value)), time.time_ns() // 1_000_000)
        if last:
            return
        stop.wait(poll_s)
