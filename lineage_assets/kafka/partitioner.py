"""Which partition a producer puts a key in: Kafka's own rule, and one that spreads a hot key over several.

Belongs here: the arithmetic, for use with any producer that names the partition itself. Does not belong here:
finding out which keys are hot (lineage/skew.py), producing.

With confluent-kafka, whose Python producer takes no partitioner function:

    spread = Spread(partitions=50, hot={b"42": 4})
    producer.produce(topic, value, key, partition=spread.partition(key, event_id))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

PARTITION_UA = -1
"""What librdkafka and confluent-kafka take for "choose one yourself"."""

_SEED, _M, _R, _MASK = 0x9747B28C, 0x5BD1E995, 24, 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash by which Kafka's Java client, and librdkafka's `murmur2_random`, place a key, as an unsigned number.

    >>> murmur2(b"21"), murmur2(b"foobar")
    (3321034988, 3504634814)
    """
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        k ^= k >> _R
        value = (value * _M & _MASK) ^ (k * _M & _MASK)
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = value * _M & _MASK
    value ^= value >> 13
    value = value * _M & _MASK
    return value ^ value >> 15


@lru_cache(maxsize=65_536)
def default_partition(key: bytes, partitions: int) -> int:
    """Where Kafka's default partitioner puts a key that is not null."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@dataclass(frozen=True, slots=True)
class Spread:
    """Puts each key where Kafka's default partitioner puts it, except those of `hot`: key -> over how many partitions.

    A hot key's records go to its default partition and the next ones (all of them, if it is to be spread over more than
    there are). Which one is told by `by`, a property of the record such as its event id: so the same record sent again
    lands where it was, and is found as a duplicate.

    What it costs: the order among the hot key's records is lost, and two records that share the table's dedupe key but
    not `by` can lie in different partitions: such duplicates are only counted by a check, as a fate depends on the
    record's own partition alone.
    """

    partitions: int
    hot: Mapping[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ValueError(f"a topic has at least one partition, not {self.partitions}")
        if wrong := [key for key, over in self.hot.items() if over < 1]:
            raise ValueError(f"{len(wrong)} hot keys are spread over less than one partition")

    @classmethod
    def over(cls, partitions: int, counts: Mapping[bytes, int], records: int, room: float = 0.5) -> Spread:
        """A spread by measured counts: a key that alone exceeds `room` of a mean partition is spread until it does not.

        >>> Spread.over(10, {b"big": 300, b"small": 40}, 1000).hot
        {b'big': 6}
        """
        if records < 1:
            return cls(partitions)
        most = records / partitions * room
        return cls(
            partitions, {key: min(partitions, -int(-count // most)) for key, count in counts.items() if count > most}
        )

    def partition(self, key: bytes | None, by: bytes) -> int:
        """The partition of a record. PARTITION_UA for a null key: the client distributes those evenly."""
        if key is None:
            return PARTITION_UA
        home = default_partition(key, self.partitions)
        over = min(self.hot.get(key, 1), self.partitions)
        if over == 1:
            return home
        return (home + (murmur2(by) & 0x7FFFFFFF) % over) % self.partitions
