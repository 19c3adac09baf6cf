"""Who streams a topic: one small file a stream, beside the tables.

Belongs here: reading and writing leases and wishes, and whether a lease is alive. Does not belong here: what a stream does.

A lease keeps two streams of a topic from running side by side, and tells bounded runs and sensors to leave the stream's
slices and cuts to it. No data depends on it: two writers of a slice are told apart by the turn (commits.py).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lineage_assets.lineage.commits import Lake

ENDED = ("stopped", "failed")
LIVES = timedelta(seconds=20)
"""A lease without a heartbeat for so long is nobody's."""


@dataclass(frozen=True, slots=True)
class Lease:
    """`owner` is one start of a stream. `session` is its Spark Connect session: who takes over ends it first."""

    stream: str
    owner: str
    host: str
    pid: int
    beat_at: datetime
    session: str = ""
    state: str = "starting"
    stopping: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What `status` shows: batches, rates, the bite, the last error."""

    def live(self, now: datetime | None = None) -> bool:
        """Whether its owner still runs, as far as can be seen from here."""
        if self.state in ENDED:
            return False
        if self.host == socket.gethostname() and not _runs(self.pid):
            return False
        return (now or datetime.now(UTC)) - self.beat_at < LIVES


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    # A zombie has ended, and only waits to be asked how.
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def read(lake: Lake, stream: str) -> Lease | None:
    """The lease of a stream, whether it lives or not."""
    text = _read(lake, f"streams/{stream}.lease.json")
    if text is None:
        return None
    document = json.loads(text)
    return Lease(**{**document, "beat_at": datetime.fromisoformat(document["beat_at"])})


def live(lake: Lake, stream: str, besides: str = "") -> Lease | None:
    """The lease of a stream that runs, unless its owner is the one who asks."""
    lease = read(lake, stream)
    return lease if lease is not None and lease.owner != besides and lease.live() else None


def streams(lake: Lake) -> list[str]:
    """The streams that were ever started in a lake."""
    suffix = ".lease.json"
    if "://" not in lake.root:
        return sorted(one.name.removesuffix(suffix) for one in Path(lake.root, "streams").glob(f"*{suffix}"))
    from pyarrow.fs import FileSelector

    found = _files(lake).get_file_info(FileSelector("streams", allow_not_found=True))
    return sorted(one.base_name.removesuffix(suffix) for one in found if one.base_name.endswith(suffix))


def beat(lake: Lake, lease: Lease, **changes: Any) -> Lease:
    """Write a lease with the time of now."""
    lease = replace(lease, beat_at=datetime.now(UTC), **changes)
    document = {**asdict(lease), "beat_at": lease.beat_at.isoformat()}
    _write(lake, f"streams/{lease.stream}.lease.json", json.dumps(document))
    return lease


def wanted(lake: Lake, stream: str) -> bool | None:
    """Whether somebody wants the stream to run; None: nobody ever said."""
    text = _read(lake, f"streams/{stream}.wish.json")
    return None if text is None else bool(json.loads(text)["run"])


def wish(lake: Lake, stream: str, run: bool) -> None:
    """Say that a stream is to run, or to stop."""
    _write(lake, f"streams/{stream}.wish.json", json.dumps({"run": run, "at": datetime.now(UTC).isoformat()}))


def failure(lake: Lake, owner: str) -> Mapping[str, str] | None:
    """What a stream's Python worker said when it failed: the kind of error, message and remedy."""
    text = _read(lake, f"streams/failures/{owner}.json")
    return None if text is None else dict(json.loads(text))


def fail(lake: Lake, owner: str, kind: str, message: str, remedy: str) -> None:
    """Leave word of a failure for the stream's client: Spark hands on nothing but a text."""
    _write(lake, f"streams/failures/{owner}.json", json.dumps({"kind": kind, "message": message, "remedy": remedy}))


def forget_failure(lake: Lake, owner: str) -> None:
    """Remove what `fail` left."""
    if _read(lake, f"streams/failures/{owner}.json") is not None:
        _files(lake).delete_file(f"streams/failures/{owner}.json")


def _files(lake: Lake) -> Any:
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    if "://" not in lake.root:
        Path(lake.root).mkdir(parents=True, exist_ok=True)
    return PyFileSystem(DeltaStorageHandler(lake.root, dict(lake.storage_options) or None))


def _read(lake: Lake, name: str) -> str | None:
    if "://" not in lake.root:
        # A local lake needs no object store client: this is asked before every batch.
        path = Path(lake.root, name)
        return path.read_text() if path.exists() else None
    try:
        with _files(lake).open_input_stream(name) as stream:
            return bytes(stream.read()).decode()
    except FileNotFoundError:
        return None


def _write(lake: Lake, name: str, text: str) -> None:
    if "://" not in lake.root:
        path = Path(lake.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(text)
        scratch.replace(path)
        return
    with _files(lake).open_output_stream(name) as stream:
        stream.write(text.encode())
