"""`up`, `down` and the state of the embedded stack of one home.

Belongs here: the order of things, and what is said when one of them fails. Does not belong here: how a part is
configured, how a process is started, what the command line prints.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass

from lineage_assets.settings import Settings, addresses_file
from lineage_assets.stack import jars, parts, ports, process
from lineage_assets.stack.errors import DiskFull, NotReady, PartDied
from lineage_assets.stack.part import Part

MIN_FREE_MB = 1024
POLL_S = 0.2

STOP_TIMEOUT_S = 20.0

_ENDS = {
    "stopped": "stopped",
    "killed": f"did not stop in {STOP_TIMEOUT_S:.0f} s and was killed",
    "gone": "was not running any more; its stale pid file is removed",
}

Say = Callable[[str, str], None]
"""Told about each step: (part, what happened)."""


def _nothing(part: str, text: str) -> None:
    """The `Say` of those who do not want to know."""


@dataclass(frozen=True, slots=True)
class Started:
    """What `up` did with a part: `started`, `running` (it already did) or `yours`."""

    part: str
    what: str
    address: str
    seconds: float = 0.0


def up(settings: Settings, say: Say = _nothing) -> list[Started]:
    """Starts what is not running and waits until every part answers.

    Raises StackError types: DiskFull, JarsMissing, PortInUse before anything is started; PartDied, NotReady afterwards
    (parts that work are left running, so that a second `up` has less to do).
    """
    settings.stack_dir.mkdir(parents=True, exist_ok=True)
    with _only_one(settings, say):
        to_start: list[Part] = []
        running: list[Part] = []
        for kind in parts.embedded(settings):
            part = parts.build(kind, settings)
            (running if _is_up(settings, part, say) else to_start).append(part)
        if to_start:
            _require_disk(settings)
            jars.require([part.jars for part in to_start])
            to_start = [_with_free_ports(settings, part) for part in to_start]
        done = _start_all(settings, to_start, running, say)
        _write_addresses(settings, [*running, *to_start])
    return [*done, *(Started(name, "yours", address) for name, address in parts.yours(settings).items())]


def down(settings: Settings, say: Say = _nothing) -> list[tuple[str, str]]:
    """Ends what was started under this home, last part first: Dagster, Spark, registry, broker.

    Returns (part, `stopped` | `killed` | `gone`) for each that had a record; `gone` was a stale pid file.
    """
    if not settings.stack_dir.is_dir():
        return []
    order = {kind.name: place for place, kind in enumerate(parts.KINDS)}
    done = []
    with _only_one(settings, say):
        records = process.records(settings.stack_dir)
        for record in sorted(records, key=lambda r: order.get(r.part, len(order)), reverse=True):
            say(record.part, "stopping")
            how = process.stop(record, STOP_TIMEOUT_S)
            process.forget(settings.stack_dir, record.part)
            say(record.part, _ENDS[how])
            done.append((record.part, how))
        addresses_file(settings).unlink(missing_ok=True)
    return done


def _is_up(settings: Settings, part: Part, say: Say) -> bool:
    """Whether the part's own process runs. A record of a process that is gone is cleaned away, and said."""
    record = process.read(settings.stack_dir, part.name)
    if record is None:
        return False
    if process.leader(record):
        return True
    how = process.exit_text(settings.stack_dir, part.name)
    process.forget(settings.stack_dir, part.name)
    say(part.name, f"its pid file was stale (pid {record.pid} is gone: {how}) and is removed; its log is {record.log}")
    return False


def _with_free_ports(settings: Settings, part: Part) -> Part:
    """The part, on other ports if one that we chose is now taken. Raises PortInUse for a port of the settings."""
    (kind,) = (k for k in parts.KINDS if k.name == part.name)
    for name, port in part.ports.items():
        if getattr(settings, name):
            ports.require_free(part.name, port, f"LINEAGE_{name.upper()}")
        elif not ports.is_free(port):
            ports.forget(parts.ports_file(settings), name)
    return parts.build(kind, settings)


def _start_all(settings: Settings, to_start: Sequence[Part], running: Sequence[Part], say: Say) -> list[Started]:
    """All at once: no part needs another one to start. The first failure ends the waiting, not the other parts."""
    abandoned = threading.Event()
    with ThreadPoolExecutor(max_workers=len(parts.KINDS)) as pool:
        futures = [pool.submit(_wait_for_running, settings, part, abandoned) for part in running]
        futures += [pool.submit(_start, settings, part, say, abandoned) for part in to_start]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            abandoned.set()
            raise
    return [future.result() for future in futures]


def _start(settings: Settings, part: Part, say: Say, abandoned: threading.Event) -> Started:
    begun = time.monotonic()
    say(part.name, "starting")
    part.folder.mkdir(parents=True, exist_ok=True)
    part.prepare()
    env = {**part.env, "LINEAGE_HOME": str(settings.home)}
    log = part.log(settings.stack_dir)
    process.start(settings.stack_dir, part.name, part.argv, env=env, cwd=part.folder, log=log, address=part.shown)
    _wait(settings, part, abandoned)
    seconds = round(time.monotonic() - begun, 1)
    if not abandoned.is_set():
        say(part.name, f"ready at {part.shown} after {seconds} s")
    return Started(part.name, "started", part.shown, seconds)


def _wait_for_running(settings: Settings, part: Part, abandoned: threading.Event) -> Started:
    """A running part is probed in full only if its port is not open yet: a second `up` must cost nothing."""
    if not all(ports.answers(port) for port in part.ports.values()):
        _wait(settings, part, abandoned)
    return Started(part.name, "running", part.shown)


def _wait(settings: Settings, part: Part, abandoned: threading.Event) -> None:
    """Until the probe is good. Raises PartDied as soon as the process is gone, NotReady when time is up."""
    record = process.read(settings.stack_dir, part.name)
    log = part.log(settings.stack_dir)
    deadline = time.monotonic() + part.ready_timeout_s
    while True:
        why = part.probe()
        # In this order: a good answer counts only if our own process is still there to have given it.
        if record is None or process.leader(record) is None:
            _require_disk(settings)
            raise PartDied(part.name, process.exit_text(settings.stack_dir, part.name), log, process.tail(log))
        if not why:
            return
        if time.monotonic() > deadline:
            raise NotReady(part.name, part.ready_timeout_s, why, log, process.tail(log))
        if abandoned.wait(POLL_S):
            return


def _require_disk(settings: Settings) -> None:
    free_mb = shutil.disk_usage(settings.stack_dir).free >> 20
    if free_mb < MIN_FREE_MB:
        raise DiskFull(settings.home, free_mb, MIN_FREE_MB)


def _write_addresses(settings: Settings, embedded: Sequence[Part]) -> None:
    """Of all that runs here: also of a part that this call was told to leave to another address."""
    path = addresses_file(settings)
    before = json.loads(path.read_text()) if path.exists() else {}
    kept = {name: address for name, address in before.items() if _runs(settings, name)}
    text = json.dumps({**kept, **{part.name: part.address for part in embedded}})
    if not path.exists() or path.read_text() != text:
        process.write_private(path, text)


def _runs(settings: Settings, name: str) -> bool:
    record = process.read(settings.stack_dir, name)
    return record is not None and process.leader(record) is not None


@contextmanager
def _only_one(settings: Settings, say: Say) -> Iterator[None]:
    """Two commands that start or stop the same stack take turns."""
    with (settings.stack_dir / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("stack", "waiting for another `lineage` command that is starting or stopping it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
