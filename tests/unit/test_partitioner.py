"""Partitions of keys: Kafka's own, and a hot key's.

Belongs here: kafka/partitioner.py by itself. Does not belong here: what a broker's client does
(tests/integration/test_partitioner_client.py).
"""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.kafka import partitioner
from lineage_assets.kafka.partitioner import PARTITION_UA, Spread, default_partition, murmur2

# From Kafka's own UtilsTest.testMurmur2, as signed numbers.
OF_KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
partitions = st.integers(1, 200)


def test_the_examples_hold() -> None:
    assert doctest.testmod(partitioner).failed == 0


@pytest.mark.parametrize(("key", "hash_"), OF_KAFKA.items())
def test_the_hash_is_kafkas(key: bytes, hash_: int) -> None:
    assert murmur2(key) == hash_ % 2**32


@given(st.binary(max_size=40), st.binary(max_size=40), partitions)
def test_a_key_that_is_not_hot_stays_where_kafka_puts_it(key: bytes, by: bytes, n: int) -> None:
    assert Spread(n, {b"\0hot": 5}).partition(key, by) == default_partition(key, n) or key == b"\0hot"


@given(st.integers(1, 12), partitions, st.lists(st.binary(max_size=12), unique=True, min_size=1, max_size=50))
def test_a_hot_key_lies_in_its_own_partition_and_the_next_ones_only(over: int, n: int, ids: list[bytes]) -> None:
    spread = Spread(n, {b"42": over})
    home = default_partition(b"42", n)
    allowed = {(home + step) % n for step in range(over)}

    assert {spread.partition(b"42", by) for by in ids} <= allowed


def test_a_hot_key_fills_all_its_partitions_evenly() -> None:
    spread = Spread(50, {b"42": 4})
    placed = [spread.partition(b"42", b"event-%d" % n) for n in range(4_000)]

    counts = {partition: placed.count(partition) for partition in set(placed)}

    assert len(counts) == 4
    assert all(900 < count < 1_100 for count in counts.values())


def test_the_same_record_sent_again_lands_where_it_was() -> None:
    one, other = Spread(50, {b"42": 8}), Spread(50, {b"42": 8})

    assert all(one.partition(b"42", b"%d" % n) == other.partition(b"42", b"%d" % n) for n in range(500))


def test_a_null_key_is_left_to_the_client() -> None:
    assert Spread(50, {b"42": 8}).partition(None, b"1") == PARTITION_UA


def test_measured_counts_spread_only_what_is_too_heavy_and_never_over_more_than_there_is() -> None:
    assert Spread.over(4, {b"all": 1_000, b"few": 100}, 1_100).hot == {b"all": 4}
    assert Spread.over(4, {}, 0).hot == {}


def test_a_spread_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        Spread(0)
    with pytest.raises(ValueError, match="1 hot keys"):
        Spread(3, {b"a": 0})
