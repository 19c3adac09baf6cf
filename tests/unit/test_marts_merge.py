"""One row for each key out of one for each (key, slice)."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

import datasketches
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_assets.errors import ContractError
from lineage_assets.marts.merge import Merge, merge_rows

HOW = Merge.of(
    "gold/t",
    {"by": ["user", "at"], "measures": {"events": "sum", "first": "min", "last": "max", "sessions": "theta"}},
)
SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("events", pa.int32()),
        ("first", pa.timestamp("us", tz="UTC")),
        ("last", pa.float64()),
        ("sessions", pa.int64()),
        ("sessions_sketch", pa.binary()),
    ]
)
AT = datetime(2026, 8, 1, 13, 5, tzinfo=UTC)
# theta_sketch_agg of Spark 4.2 over the ids 0, 3, ..., 27 and over 1, 4, ..., 28 as text: ten values each.
OF_SPARK = [
    "0104033E011ACC930A0BD2F77B3105F05CC9CC921D19CFFC2008EDD04A870A340699ED2CB13FC9EFA047AC018E7AEBDCB61F24018255C5D1DE"
    "E77FB763EDAC0F00378E0645EAE34918AA821E84D1B03BD01CDA7D9E6780",
    "0104033E011ACC930A270C8530EC1F4D56B4F366B6A0E17DF0331FC1B04151BD0356F3A176E91C4C0CF230E1DEF4B0A0AD0F1B248471D1F11A"
    "97C9C3814741C1EB4B0B4DBB442762B2338C213D0A9410B0CFCA81284520",
]


def sketch_of(values: set[int]) -> bytes:
    sketch = datasketches.update_theta_sketch()
    for value in values:
        sketch.update(value)
    return bytes(sketch.compact().serialize())


def row(user: int, events: int = 1, sessions: frozenset[int] = frozenset({1})) -> dict[str, object]:
    return {
        "user": user,
        "at": AT,
        "events": events,
        "first": AT.replace(microsecond=events % 1000),
        "last": float(events),
        "sessions": len(sessions),
        "sessions_sketch": sketch_of(set(sessions)),
    }


def table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 999), st.frozensets(st.integers(0, 20), max_size=6)), max_size=12
    )
)
def test_merging_equals_counting_all_rows_of_a_key_at_once(parts: list[tuple[int, int, frozenset[int]]]) -> None:
    merged = merge_rows(table([row(*part) for part in parts]), HOW).to_pylist()
    by_user: dict[int, list[tuple[int, int, frozenset[int]]]] = defaultdict(list)
    for part in parts:
        by_user[part[0]].append(part)
    assert {one["user"]: (one["events"], one["first"], one["last"], one["sessions"]) for one in merged} == {
        user: (
            sum(events for _, events, _ in rows),
            min(AT.replace(microsecond=events) for _, events, _ in rows),
            float(max(events for _, events, _ in rows)),
            len(frozenset().union(*(sessions for _, _, sessions in rows))),
        )
        for user, rows in by_user.items()
    }


def test_types_are_those_of_the_table_and_the_sketch_stays_behind() -> None:
    merged = merge_rows(table([row(1), row(1), row(2)]), HOW)
    assert merged.schema.names == ["user", "at", "events", "first", "last", "sessions"]
    assert all(merged.schema.field(name).type == SCHEMA.field(name).type for name in merged.schema.names)


def test_a_table_without_rows_merges_to_one_without_rows() -> None:
    merged = merge_rows(table([]), HOW)
    assert (merged.num_rows, merged.schema.names) == (0, ["user", "at", "events", "first", "last", "sessions"])


def test_a_session_in_two_slices_counts_once() -> None:
    (one,) = merge_rows(table([row(1, 2, frozenset({7, 8})), row(1, 3, frozenset({8}))]), HOW).to_pylist()
    assert (one["events"], one["sessions"]) == (5, 2)


def test_sketches_that_spark_made_can_be_united() -> None:
    rows = [{**row(1), "sessions": 10, "sessions_sketch": bytes.fromhex(sketch)} for sketch in [*OF_SPARK, OF_SPARK[0]]]
    (one,) = merge_rows(table(rows), HOW).to_pylist()
    assert one["sessions"] == 20


def test_bytes_that_are_no_sketch_are_the_tables_fault_and_said_so() -> None:
    rows = [row(1), {**row(1), "sessions_sketch": b"nonsense"}]
    with pytest.raises(ContractError, match="sessions_sketch holds 8 bytes that are no theta sketch"):
        merge_rows(table(rows), HOW)


def test_a_key_with_one_row_keeps_its_estimate_unread() -> None:
    (one,) = merge_rows(table([{**row(1), "sessions": 41, "sessions_sketch": b"nonsense"}]), HOW).to_pylist()
    assert one["sessions"] == 41


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"by": ["user"], "measures": {"mean": "avg"}}, "merges {'mean': 'avg'}"),
        ({"by": "user", "measures": {}}, "give `by`, a list of columns"),
        ({"measures": {"n": "sum"}}, "give `by`, a list of columns"),
    ],
)
def test_a_merge_that_cannot_be_done_is_refused_by_name(declared: dict[str, object], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Merge.of("gold/t", declared)
