"""Skew: the heaviest keys of some records, and how unevenly they lie in the partitions.

Belongs here: the summary that a record carries as `stated["skew"]`, and the sum of two. Does not belong here: counting
the records, writing the record, spreading a hot key (kafka/partitioner.py).

A summary names the heaviest only, so a sum of many knows a key's number of records between two bounds (Metwally, Agrawal,
El Abbadi: Efficient Computation of Frequent and Top-k Elements, 2005, and its merge by Agarwal et al., Mergeable
Summaries, 2012). As JSON: `{"records": 900, "keys": {"top": [["42", 310, 0], ["7", 95, 4]], "floor": 12},
"partitions": {"top": [["0", 500, 0], ["1", 400, 0]], "floor": 0, "of": 2}}`. Each entry is a name, the most records that
it can have, and by how many that may be too high; no name that is left out has more than `floor` records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEYS = 20
"""Keys that a record names: some 400 bytes of its 16 KB."""
PARTITIONS = 64
"""Partitions that a record names; the imbalance of topics with more is still exact in a single commit."""
NAME_LENGTH = 64
"""Longer keys are cut, and told apart by a hash."""


@dataclass(frozen=True, slots=True)
class Heavy:
    """One of the heaviest: it has at least `least` and at most `most` records. `name` is None for records without a key."""

    name: str | None
    least: int
    most: int


def skew(
    by_partition: Mapping[int, int],
    keys: Mapping[bytes | None, int],
    *,
    private: bool = False,
    floor: int = 0,
    salt: str = "",
) -> dict[str, Any]:
    """The summary of one commit, from its records per partition (also empty ones) and per key.

    `keys` may hold the heaviest keys only: then no key outside has more than `floor` records. Keys that are personal
    (`private`) are named by a hash; `salt`, such as the table's id, keeps it from being looked up elsewhere. It must be the
    same in all summaries that are added up.
    """
    named = [(_name(key, private, salt), count, 0) for key, count in keys.items() if count > 0]
    return {
        "records": sum(by_partition.values()),
        "keys": _cut(named, floor, KEYS),
        "partitions": {
            **_cut([(str(partition), count, 0) for partition, count in by_partition.items()], 0, PARTITIONS),
            "of": len(by_partition),
        },
    }


def merge(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of the records of both: for a slice that was made by several commits.

    >>> both = merge(skew({0: 3, 1: 1}, {b"x": 4}), skew({0: 1, 1: 1}, {b"x": 1, b"y": 1}))
    >>> heaviest_keys(both), imbalance(both)
    ([Heavy(name='x', least=5, most=5), Heavy(name='y', least=1, most=1)], 1.3333333333333333)
    """
    return {
        "records": a["records"] + b["records"],
        "keys": _sum(a["keys"], b["keys"], KEYS),
        "partitions": {
            **_sum(a["partitions"], b["partitions"], PARTITIONS),
            "of": max(a["partitions"]["of"], b["partitions"]["of"]),
        },
    }


def heaviest_keys(summary: Mapping[str, Any]) -> list[Heavy]:
    """The keys that a summary names, the heaviest first."""
    return [Heavy(name, most - error, most) for name, most, error in summary["keys"]["top"]]


def imbalance(summary: Mapping[str, Any]) -> float | None:
    """Records of the fullest partition over the mean of all: 1.0 is even. None without records.

    >>> imbalance(skew({0: 30, 1: 10, 2: 20}, {}))
    1.5
    """
    if not summary["records"]:
        return None
    fullest = max(most for _, most, _ in summary["partitions"]["top"])
    return float(fullest * summary["partitions"]["of"] / summary["records"])


Entry = tuple[str | None, int, int]


def _cut(entries: list[Entry], floor: int, most: int) -> dict[str, Any]:
    """The first `most` entries; what is cut off can only raise the floor."""
    ranked = sorted(entries, key=lambda one: (-one[1], one[0] or ""))
    left_out = max((count for _, count, _ in ranked[most:]), default=0)
    return {"top": [list(one) for one in ranked[:most]], "floor": max(floor, left_out)}


def _sum(a: Mapping[str, Any], b: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A name that one side leaves out has up to that side's floor there: added to its bound, and to its error."""
    left = {name: (count, error) for name, count, error in a["top"]}
    right = {name: (count, error) for name, count, error in b["top"]}
    absent_left, absent_right = (a["floor"], a["floor"]), (b["floor"], b["floor"])
    entries: list[Entry] = []
    for name in left.keys() | right.keys():
        counts = left.get(name, absent_left), right.get(name, absent_right)
        entries.append((name, counts[0][0] + counts[1][0], counts[0][1] + counts[1][1]))
    return _cut(entries, a["floor"] + b["floor"], most)


def _name(key: bytes | None, private: bool, salt: str) -> str | None:
    """A key for people: text where it is printable, else hex; a hash where it is personal.

    >>> _name(b"42", False, ""), _name(bytes([0, 200]), False, ""), _name(None, True, "")
    ('42', '0x00c8', None)
    """
    if key is None:
        return None
    if private:
        return "#" + hashlib.sha256(salt.encode() + b"\0" + key).hexdigest()[:16]
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text or text.startswith(("0x", "#")):
        text = "0x" + key.hex()
    if len(text) <= NAME_LENGTH:
        return text
    return f"{text[: NAME_LENGTH - 17]}…{hashlib.sha256(key).hexdigest()[:16]}"
