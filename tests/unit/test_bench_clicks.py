"""The bench's clicks: bytes that decode to what they are meant to be, and a truth that counts them.

Belongs here: bench/clicks.py. Does not belong here: sending them (tests/integration/test_bench_load.py).
"""

from __future__ import annotations

import doctest
import io
import json
from collections import Counter
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader

from lineage_assets.bench import clicks as module
from lineage_assets.bench.clicks import DEAD, DUPLICATES, RESENT_WITHIN_MS, TEMPLATES, Kind, clicks, schema

SCHEMA = parse_schema(json.loads(schema()))
T0 = 1_796_000_000_000
TYPES = {"view", "search", "add_to_cart", "checkout", "purchase"}
Row = tuple[int, bytes, bytes]


def decoded(value: bytes) -> dict[str, Any] | None:
    """The record of a value, None if its header is wrong. All bytes are used up."""
    if value[:5] != b"\0\0\0\0\x07":
        return None
    payload = io.BytesIO(value[5:])
    record = schemaless_reader(payload, SCHEMA, SCHEMA)
    assert payload.read() == b""
    return record  # type: ignore[return-value]


def breaks_contract(record: dict[str, Any] | None) -> bool:
    return record is None or record["event_type"] not in TYPES or (record["amount_cents"] or 0) < 0


@pytest.fixture(scope="module")
def made() -> tuple[module.Clicks, list[Row]]:
    """Three rounds of all templates, one call a second, as (stamp, key, value)."""
    ready, rows = clicks(7, 7, "0123456789ab"), []
    for second in range(60):
        stamp = T0 + second * 1000
        rows += [(stamp, key, value) for key, value in ready.take(TEMPLATES * 3 // 60, stamp)]
    return ready, rows


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


def test_every_record_is_what_the_truth_counts_it_as(made: tuple[module.Clicks, list[Row]]) -> None:
    ready, rows = made
    found: Counter[Kind] = Counter()
    known: set[str] = set()
    for _, _, value in rows:
        record = decoded(value)
        if breaks_contract(record):
            found[Kind.dead] += 1
            continue
        assert record is not None
        found[Kind.duplicate if record["event_id"] in known else Kind.ok] += 1
        known.add(record["event_id"])
    assert ready.counts == found
    assert found[Kind.dead] / len(rows) == pytest.approx(DEAD, rel=0.1)
    assert found[Kind.duplicate] / len(rows) == pytest.approx(DUPLICATES, rel=0.1)


def test_a_record_happens_when_it_is_sent_and_its_key_is_its_user(made: tuple[module.Clicks, list[Row]]) -> None:
    first: dict[str, tuple[int, bytes, bytes]] = {}
    for stamp, key, value in made[1]:
        record = decoded(value)
        if record is None:
            continue
        assert key == b"%d" % record["user_id"]
        sent, as_key, as_value = first.setdefault(record["event_id"], (stamp, key, value))
        assert int(record["occurred_at"].timestamp() * 1000) == sent
        assert (as_key, as_value) == (key, value), "sent again it is the same record, so in the same partition"
        assert stamp - sent <= RESENT_WITHIN_MS


def test_users_are_few_heavy_and_many_light(made: tuple[module.Clicks, list[Row]]) -> None:
    users = Counter(key for _, key, _ in made[1])
    heaviest, count = users.most_common(1)[0]
    assert heaviest == b"1"
    assert 0.05 < count / len(made[1]) < 0.25
    assert len(users) > 3_000


def test_nothing_is_sent_again_after_the_window() -> None:
    ready = clicks(7, 7, "0123456789ab")
    ready.take(1_000, T0)
    later = ready.take(TEMPLATES, T0 + RESENT_WITHIN_MS + 1)

    ids = [record["event_id"] for _, value in later if (record := decoded(value))]

    assert len(set(ids)) == len(ids), "the only records before were too old, and one call repeats none of its own"
    assert ready.counts[Kind.duplicate] == 0


def test_two_rows_share_no_id() -> None:
    one, other = clicks(7, 7, "0123456789ab"), clicks(7, 7, "ba9876543210")
    assert not {v for _, v in one.take(500, T0)} & {v for _, v in other.take(500, T0)}
