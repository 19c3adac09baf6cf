"""Durations as people write them in a declaration: `30s`, `10m`, `1h`, `7d`.

Belongs here: reading them. Does not belong here: instants.
"""

from __future__ import annotations

import re

from lineage_assets.errors import ContractError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int:
    """Whole seconds of a duration above zero. Raises ContractError for anything else.

    >>> seconds("10m")
    600
    """
    found = re.fullmatch(r"([1-9][0-9]*)\s*([smhd])", text.strip())
    if not found:
        raise ContractError(f"{text!r} is no duration; expected a number and s, m, h or d, such as 10m")
    return int(found[1]) * _SECONDS[found[2]]
