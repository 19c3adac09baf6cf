"""The shop's clicks are what their truth says, judged from the records alone.

Belongs here: the generator and its bytes, without a broker. Does not belong here: the product's reading of them.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_assets.demo.produce import UNKNOWN_SCHEMA_ID, Encoder, clicks_schema
from lineage_assets.demo.shop import Clicks, make_clicks, partition_of
from lineage_assets.demo.truth import Event, HourTruth, Kind, Truth

UNTIL = datetime(2026, 8, 1, 15, 42, 7, tzinfo=UTC)
SCHEMA_ID = 3
WINDOW_MS = 600_000
GRACE_MS = 3_600_000
EMAIL = re.compile(r"[^@\s()]+@[^@\s()]+\.[a-z]+")
TYPES = {"view", "search", "add_to_cart", "checkout", "purchase"}
SCHEMA = parse_schema(json.loads(clicks_schema()))


@pytest.fixture(scope="module")
def clicks() -> Clicks:
    return make_clicks(events=60_000, until=UNTIL)


def broken_rule(click: dict[str, object]) -> str | None:
    """The contract, written down a second time and with other means."""
    amount = click["amount_cents"]
    if not isinstance(click["user_id"], int) or click["user_id"] <= 0:
        return "user_id"
    if click["event_type"] not in TYPES:
        return "event_type"
    if click["email"] is not None and not EMAIL.fullmatch(str(click["email"])):
        return "email"
    if isinstance(amount, int) and amount < 0:
        return "amount_cents"
    return None


def decoded(value: bytes) -> dict[str, object] | None:
    """The Avro record of a value, None if it is malformed."""
    if len(value) < 5 or value[0] != 0 or int.from_bytes(value[1:5], "big") != SCHEMA_ID:
        return None
    body = io.BytesIO(value[5:])
    try:
        click = schemaless_reader(body, SCHEMA, None)
    except (EOFError, IndexError, UnicodeDecodeError):
        return None
    assert isinstance(click, dict) and not body.read(), "bytes are left over"
    return click


def judged(events: Iterable[Event]) -> dict[str, Counter[str]]:
    """Hour -> fate, late or broken rule -> records, from bytes, timestamps and order alone: design law 3, naively."""
    encode = Encoder(clicks_schema(), SCHEMA_ID)
    hours: dict[str, Counter[str]] = defaultdict(Counter)
    seen: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        hour = hours[datetime.fromtimestamp(event.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d-%H")]
        value = encode(event)
        if value is None:
            hour["tombstone"] += 1
            continue
        click = decoded(value)
        rule = broken_rule(click) if click else "malformed"
        if click is None or rule:
            hour["dead"] += 1
            hour[f"rule {rule}"] += 1
            continue
        earlier = seen[event.partition, str(click["event_id"])]
        if any(stamp >= event.timestamp_ms - WINDOW_MS for stamp in earlier):
            hour["duplicate"] += 1
        else:
            hour["ok"] += 1
            occurred = click["occurred_at"]
            assert isinstance(occurred, datetime)
            hour["late"] += event.timestamp_ms - occurred.timestamp() * 1000 > GRACE_MS
        earlier.append(event.timestamp_ms)
    return hours


def stated(truth: Truth) -> dict[str, Counter[str]]:
    hours = {}
    for key, hour in truth.hours.items():
        rules = {f"rule {rule}": count for rule, count in hour.contract_breaking.items()}
        malformed = {"rule malformed": sum(hour.malformed.values())}
        hours[key] = Counter({**hour.fates, **rules, **malformed, "late": hour.late})
    return hours


def test_the_truth_is_what_a_second_reading_of_the_bytes_finds(clicks: Clicks) -> None:
    assert {key: +count for key, count in judged(clicks.events).items()} == {
        key: +count for key, count in stated(clicks.truth).items()
    }


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    events=st.integers(1, 700),
    hours=st.integers(1, 8),
    partitions=st.integers(1, 7),
    blocked_hour=st.none() | st.integers(0, 9),
)
def test_any_shop_tells_the_truth(
    seed: int, events: int, hours: int, partitions: int, blocked_hour: int | None
) -> None:
    made, truth = make_clicks(seed, events, hours, until=UNTIL, partitions=partitions, blocked_hour=blocked_hour)

    found = judged(made)
    assert {key: +found.get(key, Counter()) for key in truth.hours} == {k: +v for k, v in stated(truth).items()}
    assert truth.records == events == len(made)
    assert Truth.from_json(truth.to_json()) == truth


def test_the_same_arguments_give_the_same_clicks_and_another_seed_gives_others() -> None:
    first = make_clicks(3, 500, 2, until=UNTIL)

    assert make_clicks(3, 500, 2, until=UNTIL) == first
    assert make_clicks(4, 500, 2, until=UNTIL).events != first.events


def test_another_process_makes_the_same_clicks() -> None:
    assert [partition_of(b"%d" % user, 3) for user in range(1, 9)] == [2, 1, 1, 1, 1, 1, 0, 2]
    first = make_clicks(7, 100, 1, until=UNTIL).events[0]
    assert first.click is not None
    assert (first.key, first.click.event_id) == (b"15", "8bc08311-7eb8-4c57-a811-00a16ea330a1")


def test_all_records_are_in_the_full_hours_before_until_and_none_near_an_edge(clicks: Clicks) -> None:
    assert list(clicks.truth.hours) == [f"2026-08-01-{hour:02}" for hour in range(9, 15)]
    assert {hour.records for hour in clicks.truth.hours.values()} == {10_000}
    offsets = [event.timestamp_ms % 3_600_000 for event in clicks.events]
    assert min(offsets) >= 1_000 and max(offsets) < 3_599_000


def test_until_is_an_instant_whatever_its_time_zone() -> None:
    elsewhere = UNTIL.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert make_clicks(1, 50, 1, until=elsewhere) == make_clicks(1, 50, 1, until=UNTIL)


def test_positions_count_up_and_timestamps_never_fall_in_a_partition(clicks: Clicks) -> None:
    by_partition: dict[int, list[Event]] = defaultdict(list)
    for event in clicks.events:
        by_partition[event.partition].append(event)

    assert set(by_partition) == {0, 1, 2}
    for events in by_partition.values():
        assert [event.position for event in events] == list(range(len(events)))
        stamps = [event.timestamp_ms for event in events]
        assert stamps == sorted(stamps)


def test_the_positions_of_the_hours_join_up_and_hold_all_records(clicks: Clicks) -> None:
    next_position = {0: 0, 1: 0, 2: 0}
    for hour in clicks.truth.hours.values():
        assert sum(end - start for start, end in hour.positions.values()) == hour.records
        for partition, (start, end) in hour.positions.items():
            assert start == next_position[partition]
            next_position[partition] = end


def test_one_hour_is_blocked_by_negative_amounts_and_no_other_rule_comes_near_its_limit(clicks: Clicks) -> None:
    assert clicks.truth.blocked == ("2026-08-01-12",)
    blocked = clicks.truth.hours["2026-08-01-12"]
    assert blocked.contract_breaking["amount_cents"] > 0.06 * blocked.records
    for key, hour in clicks.truth.hours.items():
        shares = {rule: count / hour.records for rule, count in (hour.contract_breaking | hour.malformed).items()}
        if key in clicks.truth.blocked:
            del shares["amount_cents"]
        assert max(shares.values()) < 0.01


def test_every_hour_has_every_kind_of_record(clicks: Clicks) -> None:
    for hour in clicks.truth.hours.values():
        assert set(hour.malformed) == {kind.value for kind in Kind if kind.malformed}
        assert set(hour.contract_breaking) == {"user_id", "event_type", "email", "amount_cents"}
        assert min(hour.late, hour.duplicate, hour.tombstone) > 0


def test_some_duplicates_repeat_a_record_of_the_hour_before(clicks: Clicks) -> None:
    first_hour: dict[str, int] = {}
    across = 0
    for event in clicks.events:
        if event.click and event.kind in (Kind.OK, Kind.DUPLICATE):
            hour = event.timestamp_ms // 3_600_000
            across += first_hour.setdefault(event.click.event_id, hour) != hour
    assert across > 5


def test_the_key_is_the_user_and_one_user_has_one_partition(clicks: Clicks) -> None:
    partitions = defaultdict(set)
    for event in clicks.events:
        assert event.click is None or event.key == str(event.click.user_id).encode()
        partitions[event.key].add(event.partition)
    assert all(len(found) == 1 for found in partitions.values())


def test_a_few_users_make_most_clicks_and_only_purchases_have_amounts(clicks: Clicks) -> None:
    made = [event.click for event in clicks.events if event.click]
    users = Counter(click.user_id for click in made)
    assert sum(count for _, count in users.most_common(200)) > len(made) / 2
    assert len(users) > 1_500
    assert all((click.amount_cents is None) == (click.event_type != "purchase") for click in made)
    assert {click.email is None for click in made} == {True, False}


def test_each_kind_of_malformed_record_is_what_its_name_says(clicks: Clicks) -> None:
    encode = Encoder(clicks_schema(), SCHEMA_ID)
    values = defaultdict(list)
    for event in clicks.events:
        if event.kind.malformed:
            values[event.kind].append(encode(event) or b"")

    assert {value[0] for value in values[Kind.WRONG_MAGIC_BYTE]} == {1}
    assert {int.from_bytes(value[1:5], "big") for value in values[Kind.UNKNOWN_SCHEMA_ID]} == {UNKNOWN_SCHEMA_ID}
    assert {value[0] for value in values[Kind.UNKNOWN_SCHEMA_ID]} == {0}
    assert {value[0] for value in values[Kind.TRUNCATED]} == {0}
    assert {len(value) < 5 for value in values[Kind.TRUNCATED]} == {True, False}
    assert set(values[Kind.EMPTY_VALUE]) == {b""}
    assert all("event_id" in json.loads(value) for value in values[Kind.PLAIN_JSON])


def test_sixty_thousand_clicks_take_less_than_two_seconds() -> None:
    start = time.process_time()
    make_clicks(until=UNTIL)
    assert time.process_time() - start < 2


def test_an_hour_without_the_story_is_not_blocked() -> None:
    assert make_clicks(events=10_000, hours=1, until=UNTIL).truth.blocked == ()
    assert make_clicks(until=UNTIL, blocked_hour=None).truth.blocked == ()


def test_an_hour_without_records_is_not_blocked() -> None:
    assert not HourTruth().blocked()


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        make_clicks(until=UNTIL.replace(tzinfo=None))
    with pytest.raises(ValueError, match="at least 1"):
        make_clicks(events=0, until=UNTIL)


def test_the_contract_names_the_fields_of_the_schema_in_its_order() -> None:
    from lineage_assets.defs.clicks.contract import EVENT_TYPES, Click

    assert list(Click.to_schema().columns) == [field["name"] for field in json.loads(clicks_schema())["fields"]]
    assert set(EVENT_TYPES) == TYPES
    assert all(column.description for column in Click.to_schema().columns.values())
