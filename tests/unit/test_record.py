"""Commit records: JSON in both directions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import (
    TEXT_LIMIT,
    VERSION,
    CheckOutcome,
    CommitRecord,
    Kind,
    SchemaUse,
    TableInput,
    TopicInput,
    UnknownRecordVersion,
    finite,
    from_json,
    output_schema_hash,
    read,
    to_json,
)
from tests.cases import case

TEXT = st.text(max_size=12)
COUNT = st.integers(0, 2**63 - 1)
COUNTS = st.dictionaries(TEXT, COUNT, max_size=4)
RANGES = st.dictionaries(st.integers(0, 5000), st.tuples(COUNT, COUNT).map(lambda two: OffsetRange(*sorted(two))))
SCHEMAS = st.builds(SchemaUse, TEXT, COUNT, st.none() | COUNT, TEXT)
TOPICS = st.builds(TopicInput, TEXT, TEXT, TEXT, RANGES, st.lists(SCHEMAS, max_size=2).map(tuple))
TABLES = st.builds(
    TableInput, TEXT, TEXT, st.none() | st.tuples(COUNT, COUNT), st.none() | COUNT, st.none() | st.just("reference"),
    st.lists(TEXT, max_size=2).map(tuple),
)  # fmt: skip
CHECKS = st.builds(
    CheckOutcome, TEXT, st.booleans(), st.sampled_from(["ERROR", "WARN"]), COUNT, COUNT,
    st.lists(TEXT, max_size=3).map(tuple), st.booleans(),
)  # fmt: skip
STATED = st.dictionaries(
    TEXT,
    st.recursive(st.none() | st.booleans() | COUNT | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
                 lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=5),
    max_size=3,
)  # fmt: skip
RECORDS = st.builds(
    CommitRecord,
    asset=TEXT, env=TEXT, kind=st.sampled_from(get_args(Kind)), slice=st.none() | TEXT,
    inputs=st.lists(TOPICS | TABLES, max_size=3).map(tuple),
    counts=COUNTS, reasons=COUNTS, schema=TEXT, contract=TEXT, code=TEXT, run=TEXT,
    written_at=st.datetimes(timezones=st.just(UTC)), attempt=COUNT, batch=st.none() | COUNT,
    checks=st.lists(CHECKS, max_size=2).map(tuple), stated=STATED,
)  # fmt: skip

SMALL = CommitRecord(
    asset="silver/clicks",
    env="dev",
    kind="replace",
    slice="2026-08-01-13",
    inputs=(
        TopicInput("clicks", "c-1", "t-1", {0: OffsetRange(120, 180)}, (SchemaUse("clicks-value", 4, 2, "f00d"),)),
        TableInput("raw/clicks", "id-1", commits=(57, 60)),
        TableInput("silver/customers", "id-2", read_at=812, role="reference"),
    ),
    counts={"ok": 58, "dead": 2, "late": 3},
    reasons={"amount_cents: ge(0)": 2},
    schema="s",
    contract="c",
    code="1.0",
    run="r",
    written_at=datetime(2026, 8, 1, 14, tzinfo=UTC),
    batch=1042,
)


def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(to_json(SMALL))
    return parsed


def test_the_text_is_the_shape_of_the_design() -> None:
    assert document() == {
        "v": 1, "asset": "silver/clicks", "env": "dev", "kind": "replace", "slice": "2026-08-01-13",
        "inputs": [
            {"topic": "clicks", "cluster": "c-1", "topic_id": "t-1", "ranges": {"0": [120, 180]},
             "schemas": [{"subject": "clicks-value", "id": 4, "version": 2, "fingerprint": "f00d"}]},
            {"table": "raw/clicks", "table_id": "id-1", "commits": [57, 60]},
            {"table": "silver/customers", "table_id": "id-2", "read_at": 812, "role": "reference"},
        ],
        "counts": {"ok": 58, "dead": 2, "late": 3}, "reasons": {"amount_cents: ge(0)": 2},
        "schema": "s", "contract": "c", "code": "1.0", "run": "r", "attempt": 1, "batch": 1042,
        "written_at": "2026-08-01T14:00:00Z",
    }  # fmt: skip


@given(RECORDS)
def test_any_record_comes_back_whole(record: CommitRecord) -> None:
    text = to_json(record)
    assert from_json(text) == record
    assert to_json(from_json(text)) == text
    assert "\n" not in text and text.isascii()


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=True), st.integers(1000, 2000), st.integers(1, 63))
def test_a_record_above_the_limit_packs_its_ranges_and_comes_back_whole(random: Random, count: int, bits: int) -> None:
    starts = {random.randrange(2**20): random.getrandbits(bits) for _ in range(count)}
    ranges = {partition: OffsetRange(start, start + random.getrandbits(bits)) for partition, start in starts.items()}
    # A long name makes the text long also where the numbers are small.
    long = TableInput("raw/" + "x" * TEXT_LIMIT, "id-1")
    record = CommitRecord(**_values(SMALL) | {"inputs": (TopicInput("t", "c", "i", ranges), *SMALL.inputs, long)})
    text = to_json(record)
    assert '"packed":' in text and '"ranges":' not in text
    assert from_json(text) == record


def test_packed_ranges_of_a_real_topic_fit_the_limit() -> None:
    ranges = {p: OffsetRange(5_000_000_000 + 7919 * p, 5_000_000_000 + 7919 * p + 1000 + p) for p in range(1000)}
    record = CommitRecord(**_values(SMALL) | {"inputs": (TopicInput("t", "c", "i", ranges),)})
    assert len(to_json(record)) < TEXT_LIMIT
    assert from_json(to_json(record)).topics[0].ranges == ranges


def _values(record: CommitRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_unknown_fields_are_ignored_at_every_level() -> None:
    parsed = document()
    for level in (parsed, *parsed["inputs"], *parsed["inputs"][0]["schemas"]):
        level["from_a_later_release"] = {"x": [1]}
    assert from_json(json.dumps(parsed)) == SMALL


def test_a_later_version_is_refused_by_name() -> None:
    text = json.dumps(document() | {"v": VERSION + 1})
    for reader in (from_json, read):
        with pytest.raises(
            UnknownRecordVersion, match=rf"silver/clicks.*version {VERSION + 1}.*up to {VERSION}; update"
        ):
            reader(text)


@pytest.mark.parametrize(
    "text",
    [None, "", "hello", "null", "[]", "{}", '{"v": true, "asset": "a", "env": "e", "kind": "append"}', '{"v": 1}',
     '{"v": NaN}', '{"v":1,"asset":"a","env":"e","kind":"append"}', "[" * 100_000],
)  # fmt: skip
def test_text_that_is_no_record_reads_as_none(text: str | None) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    "damage",
    [{"kind": "merge"}, {"written_at": "yesterday"}, {"written_at": "2026-08-01T14:00:00"},
     {"inputs": [{"topic": "t"}]},
     {"inputs": [{"topic": "t", "cluster": "", "topic_id": "", "packed": "AAAA"}]}, {"checks": [1]}, {"counts": 3}],
)  # fmt: skip
def test_a_damaged_record_is_no_record(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_json(json.dumps(document() | damage))
    assert read(json.dumps(document() | damage)) is None


def test_c30_numbers_that_json_lacks_become_null() -> None:
    given_ = case("C30")["input"]["statistics"]
    numbers = {name: float(value) for name, value in given_.items() if name != "rows"} | {"rows": given_["rows"]}
    text = to_json(CommitRecord(**_values(SMALL) | {"stated": {"deep": [numbers]}}))

    def fail(word: str) -> None:
        raise AssertionError(word)

    (stated,) = json.loads(text, parse_constant=fail)["stated"]["deep"]
    assert stated == {"rows": 0, "mean_amount": None, "max_amount": None, "ratio": None, "null_share": 0.0}
    assert finite((float("inf"), {"x": float("nan")})) == [None, {"x": None}]


def test_a_count_that_is_no_number_stops_the_write() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json(CommitRecord(**_values(SMALL) | {"counts": {"ok": float("nan")}}))


def test_spark_finds_no_variable_to_replace_in_a_record() -> None:
    record = CommitRecord(**_values(SMALL) | {"reasons": {r"a\${env:HOME} $${x}": 1}})
    assert "${" not in to_json(record)
    assert from_json(to_json(record)) == record


def test_times_are_utc_and_have_a_zone() -> None:
    tokyo = datetime(2026, 8, 1, 23, tzinfo=timezone(timedelta(hours=9)))
    assert CommitRecord(**_values(SMALL) | {"written_at": tokyo}) == SMALL
    with pytest.raises(ValueError, match="time zone"):
        CommitRecord(**_values(SMALL) | {"written_at": datetime(2026, 8, 1)})


def test_a_check_gives_three_examples_at_most() -> None:
    with pytest.raises(ValueError, match="three"):
        CheckOutcome("c", False, "WARN", 4, 9, ("t/0@1", "t/0@2", "t/0@3", "t/0@4"))


def test_the_schema_hash_sees_names_types_and_order() -> None:
    columns = [("a", "bigint"), ("b", "string")]
    hashes = {
        output_schema_hash(c)
        for c in (columns, columns[::-1], [("a", "int"), columns[1]], columns[:1], [("abigint", "")])
    }
    assert len(hashes) == 5
    assert output_schema_hash(list(columns)) in hashes
