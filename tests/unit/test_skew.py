"""Summaries of skew: exact for one commit, between true bounds for a sum of many.

Belongs here: lineage/skew.py. Does not belong here: the partitioner (test_partitioner.py).
"""

from __future__ import annotations

import doctest
import json
from collections import Counter
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_assets.lineage import skew as module
from lineage_assets.lineage.skew import KEYS, PARTITIONS, Heavy, heaviest_keys, imbalance, merge, skew

keys = st.one_of(st.none(), st.integers(0, 60).map(lambda n: b"%d" % n))
commit = st.lists(st.tuples(st.integers(0, 3), keys), max_size=120)


def summary(records: list[tuple[int, bytes | None]], partitions: int = 4, **how: object) -> dict[str, object]:
    by_partition = Counter({partition: 0 for partition in range(partitions)})
    by_partition.update(partition for partition, _ in records)
    return skew(by_partition, Counter(key for _, key in records), **how)  # type: ignore[arg-type]


def named(key: bytes | None) -> str | None:
    return None if key is None else key.decode()


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


def test_one_commit_is_exact_to_the_last_record() -> None:
    found = skew({0: 6, 1: 0, 2: 3}, {b"a": 5, b"b": 3, None: 1})

    assert heaviest_keys(found) == [Heavy("a", 5, 5), Heavy("b", 3, 3), Heavy(None, 1, 1)]
    assert found["keys"]["floor"] == 0
    assert imbalance(found) == 2.0


def test_the_floor_is_the_heaviest_of_what_is_left_out() -> None:
    counts = {b"%d" % n: 1_000 - n for n in range(KEYS + 5)}

    found = skew({0: sum(counts.values())}, counts)

    assert len(found["keys"]["top"]) == KEYS
    assert found["keys"]["floor"] == 1_000 - KEYS


def test_a_floor_of_the_caller_who_counted_the_heaviest_only_is_kept() -> None:
    assert skew({0: 10}, {b"a": 6}, floor=3)["keys"]["floor"] == 3


def test_a_key_that_no_commit_names_can_have_the_sum_of_their_floors() -> None:
    one = skew({0: 100 * KEYS + 5}, {**{b"%d" % n: 100 for n in range(KEYS)}, b"light": 5})

    assert one["keys"]["floor"] == 5
    assert merge(one, one)["keys"]["floor"] == 10


def test_nothing_has_no_imbalance() -> None:
    assert imbalance(skew({0: 0, 1: 0}, {})) is None
    assert imbalance(skew({}, {})) is None


def test_personal_keys_are_named_by_a_hash_that_depends_on_the_table() -> None:
    counts = {b"ann@example.com": 4, None: 2}
    one, same, other = (skew({0: 6}, counts, private=True, salt=salt) for salt in ("t1", "t1", "t2"))

    assert "ann" not in json.dumps(one)
    assert one == same != other
    assert [heavy.most for heavy in heaviest_keys(merge(one, same))] == [8, 4]


def test_long_and_binary_keys_stay_apart() -> None:
    counts = {b"x" * 100 + b"1": 4, b"x" * 100 + b"2": 3, b"\x00\xff": 2, b"0x00ff": 1}

    names = [heavy.name or "" for heavy in heaviest_keys(skew({0: 10}, counts))]

    assert len(set(names)) == 4 and max(map(len, names)) <= module.NAME_LENGTH


def test_of_many_partitions_the_heaviest_are_named_and_the_imbalance_is_exact() -> None:
    by_partition = {p: 100 for p in range(PARTITIONS * 3)} | {150: 700}

    found = skew(by_partition, {})

    assert len(found["partitions"]["top"]) == PARTITIONS
    assert imbalance(found) == 700 / (sum(by_partition.values()) / len(by_partition))


def test_partitions_that_were_added_count_in_the_mean() -> None:
    assert imbalance(merge(skew({0: 8}, {}), skew({0: 0, 1: 0}, {}))) == 2.0


@settings(max_examples=300, deadline=None)
@given(st.lists(commit, min_size=1, max_size=30))
def test_a_sum_bounds_every_key_and_gives_the_exact_imbalance(commits: list[list[tuple[int, bytes | None]]]) -> None:
    whole = reduce(merge, map(summary, commits))
    truth = Counter(key for records in commits for _, key in records)
    full = Counter(partition for records in commits for partition, _ in records)

    named_keys = {heavy.name: heavy for heavy in heaviest_keys(whole)}
    for key, count in truth.items():
        heavy = named_keys.get(named(key))
        if heavy is None:
            assert count <= whole["keys"]["floor"]
        else:
            assert heavy.least <= count <= heavy.most
    assert whole["records"] == sum(full.values())
    assert imbalance(whole) == (max(full.values()) * 4 / sum(full.values()) if full else None)
    assert len(whole["keys"]["top"]) <= KEYS


@settings(max_examples=100, deadline=None)
@given(commit, commit)
def test_the_order_of_a_sum_does_not_matter(
    a: list[tuple[int, bytes | None]], b: list[tuple[int, bytes | None]]
) -> None:
    assert merge(summary(a), summary(b)) == merge(summary(b), summary(a))


def test_a_heavy_key_of_every_commit_is_exact_in_an_hour_of_commits() -> None:
    """Zipf keys, 3,600 commits: what matters, the keys that are heavy all the time, has no error."""
    commits = [skew({0: 1_000}, {b"hot": 300, **{b"%d" % (n % 97): 5 for n in range(i, i + 40)}}) for i in range(3_600)]

    whole = reduce(merge, commits)

    assert heaviest_keys(whole)[0] == Heavy("hot", 1_080_000, 1_080_000)
    assert len(json.dumps(whole)) < 2_000
