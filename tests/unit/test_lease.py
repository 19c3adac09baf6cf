"""Leases and wishes of streams: who holds a topic, and whether somebody wants it streamed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.lease import Lease


def held(**changes: object) -> Lease:
    mine = {"stream": "clicks", "owner": "a", "host": socket.gethostname(), "pid": os.getpid()}
    return Lease(**{**mine, "beat_at": datetime.now(UTC), "state": "running", **changes})  # type: ignore[arg-type]


def test_a_lease_comes_back_as_it_was_written(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    assert lease.read(lake, "clicks") is None and lease.streams(lake) == []
    written = lease.beat(lake, held(session="s"), facts={"bite": 7})
    assert lease.read(lake, "clicks") == written
    assert lease.streams(lake) == ["clicks"]


def test_it_lives_while_its_owner_beats_and_runs(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lease.beat(lake, held())
    assert lease.live(lake, "clicks") is not None
    assert lease.live(lake, "clicks", besides="a") is None, "the owner itself is not in its own way"
    assert not held().live(datetime.now(UTC) + lease.LIVES), "no heartbeat"
    for state in lease.ENDED:
        assert not held(state=state).live()


def test_an_owner_that_has_ended_on_this_machine_holds_nothing_however_young_its_heartbeat() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    # Not waited for: a process that has ended and was not asked how is still listed, as a zombie.
    while lease._runs(ended.pid):
        pass
    assert not held(pid=ended.pid).live()
    ended.wait()
    assert not held(pid=ended.pid).live()
    assert held(pid=ended.pid, host="elsewhere").live(), "nobody can see that from here"
    assert not held(host="elsewhere", beat_at=datetime.now(UTC) - timedelta(minutes=1)).live()


def test_wishes_and_words_of_failure(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert lease.wanted(lake, "clicks") is None
    lease.wish(lake, "clicks", True)
    assert lease.wanted(lake, "clicks") is True
    lease.wish(lake, "clicks", False)
    assert lease.wanted(lake, "clicks") is False

    assert lease.failure(lake, "a") is None
    lease.fail(lake, "a", "FatalError", "restored", "resume")
    assert lease.failure(lake, "a") == {"kind": "FatalError", "message": "restored", "remedy": "resume"}
    lease.forget_failure(lake, "a")
    lease.forget_failure(lake, "a")
    assert lease.failure(lake, "a") is None
