"""How the bench runs a stream: what it asks for, and what it needs to know of the one that runs.

Belongs here: the process of a stream over a table that no defs.yaml declares. Does not belong here: what a stream does
(lineage_assets/spark), measuring it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lineage_assets.bench.declaration import declare
from lineage_assets.settings import Settings, settings
from lineage_assets.spark.event_table import EventTable

LINEAGE_PARTS = ("record", "turn", "row_tracking", "offset_log", "counts", "collector")
"""What lineage adds to two plain appends; each can be left out of a stream, to see what it costs. `turn` is the transaction id
by which one of two writers of a slice commits."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """`bite` is the most records a batch takes; None: the profile's own. `off` names parts of lineage to leave out."""

    profile: str = "embedded"
    bite: int | None = None
    off: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if unknown := self.off - set(LINEAGE_PARTS):
            raise ValueError(f"{', '.join(sorted(unknown))}: no part of lineage; known: {', '.join(LINEAGE_PARTS)}")


class Running(Protocol):
    """A stream that was started. `pid` is its client's; its query runs in the Spark server."""

    @property
    def pid(self) -> int: ...

    @property
    def log(self) -> Path: ...

    def ended(self) -> int | None:
        """Its exit code once it has ended."""
        ...


StartStream = Callable[[EventTable, Settings, StreamOptions], AbstractContextManager[Running]]
"""Starts a stream; leaving the block stops it after its batch."""


def command(table: EventTable, options: StreamOptions) -> list[str]:
    """The command line of a stream's process: over the clicks' declaration with this table's name."""
    told = {"name": table.name, "profile": options.profile, "bite": options.bite, "off": sorted(options.off)}
    return [sys.executable, "-m", "lineage_assets.bench.streams", json.dumps(told)]


def main(name: str, profile: str, bite: int | None, off: list[str]) -> None:
    """The process: stream until SIGTERM."""
    from lineage_assets.errors import LineageError
    from lineage_assets.spark import stream

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    chosen = stream.profile(profile, bite)

    def say(text: Any) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        stream.run(settings(), declare(name), stream.Options(chosen, off=frozenset(off)), stop, say)
    except LineageError as error:
        say(f"error: {error}")
        sys.exit(1)
    print("{}")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
