"""Which ports the embedded parts listen on: chosen once, kept, and checked before a start.

Belongs here: choosing, keeping and checking local ports. Does not belong here: what listens there.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping
from pathlib import Path

from lineage_assets.stack.errors import PortInUse, StackError
from lineage_assets.stack.process import write_private

HOST = "127.0.0.1"

# Below the range from which the kernel takes ports for outgoing connections: a kept port is still free next time.
_CHOICE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int, timeout_s: float = 1.0) -> bool:
    """Whether something accepts connections on 127.0.0.1:port."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def owner(port: int) -> str:
    """Who listens on a port, as far as this user may see."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return "another process (which one is not visible to this user)"
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                break
    return "another process"


def choose(kept_file: Path, wanted: Mapping[str, int]) -> dict[str, int]:
    """A port for each name: the wanted one, else (0) the one kept from last time, else a free one, which is kept."""
    kept = _read(kept_file)
    chosen = {name: port or kept.get(name, 0) for name, port in wanted.items()}
    for name, port in chosen.items():
        if not port:
            chosen[name] = _free(set(chosen.values()) | set(kept.values()))
    if any(kept.get(name) != port for name, port in chosen.items()):
        kept_file.parent.mkdir(parents=True, exist_ok=True)
        write_private(kept_file, json.dumps(kept | chosen))
    return chosen


def forget(kept_file: Path, name: str) -> None:
    """The next `choose` takes another port for this name."""
    kept = _read(kept_file)
    if kept.pop(name, None) is not None:
        write_private(kept_file, json.dumps(kept))


def require_free(part: str, port: int, variable: str) -> None:
    """Raises PortInUse, naming who has the port and which variable moves it."""
    if not is_free(port):
        raise PortInUse(part, port, owner(port), variable)


def _free(taken: set[int]) -> int:
    for port in random.sample(_CHOICE, len(_CHOICE)):
        if port not in taken and is_free(port):
            return port
    raise StackError(
        "no port from 20000 to 31999 is free on 127.0.0.1", remedy="end what holds them, or set LINEAGE_…_PORT"
    )


def _read(kept_file: Path) -> dict[str, int]:
    try:
        return {str(name): int(port) for name, port in json.loads(kept_file.read_text()).items()}
    except (FileNotFoundError, ValueError, AttributeError):
        return {}
