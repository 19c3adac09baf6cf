"""The one shape that every embedded part has.

Belongs here: the `Part` type. Does not belong here: any particular part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """How to start one embedded service and how to know that it works.

    `ports` maps the name of a setting (`kafka_port`) to the port that it listens on.
    `prepare` writes configuration and makes folders; it runs before each start.
    `probe` asks the service something real; it returns "" when the answer is good, else why it is not.
    `address` may hold a secret; `shown` is what people see.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    ports: Mapping[str, int]
    jars: str
    address: str
    shown: str
    prepare: Callable[[], None]
    probe: Callable[[], str]
    ready_timeout_s: float = 120.0

    def log(self, stack_dir: Path) -> Path:
        return stack_dir / "logs" / f"{self.name}.log"
