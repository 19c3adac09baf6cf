"""Known faults of other tools as cases: what went in, what must come out.

Belongs here: reading `cases.jsonl`. Does not belong here: tests.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


def case(id: str) -> dict[str, Any]:
    """The case of an id such as "C06": its `input`, what is `expected`, and why. KeyError when there is none."""
    found: dict[str, Any] = json.loads(_lines()[id])
    return found


@cache
def _lines() -> dict[str, str]:
    text = (Path(__file__).parent / "cases.jsonl").read_text(encoding="utf-8")
    return {json.loads(line)["id"]: line for line in text.splitlines()}
