"""What the tally of a slice means: one outcome for each rule of the contract and of the table.

Belongs here: verdicts, from numbers alone. Does not belong here: counting (spark/tally.py), Dagster's events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lineage_assets.lineage.content import Lost
from lineage_assets.lineage.fates import Balance, Fate
from lineage_assets.lineage.offsets import Ranges
from lineage_assets.lineage.record import CheckOutcome, Severity
from lineage_assets.quality.contract import Contract

DECODABLE = "decodable"
CONSERVATION = "conservation"
UNIQUE_OFFSETS = "unique_offsets"
KNOWN_SCHEMAS = "known_schemas"
ONE_PARTITION_A_KEY = "one_partition_a_key"
TABLE_RULES = {
    DECODABLE: "Every record could be read in its declared format.",
    CONSERVATION: "Offsets read = ok + dead + duplicate + tombstone + control + erased + measured gaps, in every partition.",
    UNIQUE_OFFSETS: "No offset of a partition stands twice.",
    KNOWN_SCHEMAS: "Every schema that records were written with is registered under the topic's subject.",
    ONE_PARTITION_A_KEY: "No key stands in two partitions, where its duplicates would not be seen.",
}
DECODE = "decode: "
"""How the reasons of a record that could not be decoded begin."""

DECODE_MAX_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Declared:
    """A check that every slice of a table gets."""

    name: str
    description: str
    blocking: bool


def declared(contract: Contract, unique_by: Sequence[str]) -> list[Declared]:
    """All checks of a table, in the order of their outcomes."""
    rules = [
        Declared(rule.name, f"{rule.message}. Dead letters up to {rule.max_share:.0%} of a slice are tolerated.", True)
        for rule in contract.rules
    ]
    table_rules = [
        Declared(name, description, name != ONE_PARTITION_A_KEY)
        for name, description in TABLE_RULES.items()
        if name != ONE_PARTITION_A_KEY or unique_by
    ]
    return rules + table_rules


@dataclass(frozen=True, slots=True)
class Failing:
    """Records that one rule found at fault: how many, and the first few as `topic/partition@offset`."""

    count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted in a slice, once, before it was committed."""

    ranges: Ranges
    fates: Mapping[int, Mapping[Fate, int]]
    reasons: Mapping[str, Failing]
    balance: Balance
    gaps: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    lost: Lost = field(default_factory=dict)
    late: int = 0
    outside: int = 0
    repeated_offsets: Failing = Failing(0)
    foreign_schemas: tuple[int, ...] = ()
    keys_in_two_partitions: int = 0

    def fate(self, fate: Fate) -> int:
        """Records of one fate, over all partitions."""
        return sum(counts.get(fate, 0) for counts in self.fates.values())

    def failing(self, gave: Callable[[str], bool]) -> Failing:
        """Records with a reason that `gave` accepts. One record has at most one reason of a rule."""
        found = [failing for reason, failing in self.reasons.items() if gave(reason)]
        return Failing(
            sum(failing.count for failing in found),
            tuple(sorted((one for failing in found for one in failing.examples), key=_place)[:3]),
        )

    @property
    def rows(self) -> int:
        """Records of all fates."""
        return sum(sum(counts.values()) for counts in self.fates.values())

    @property
    def with_value(self) -> int:
        """Records that the contract was asked about."""
        return self.fate(Fate.ok) + self.fate(Fate.dead) + self.fate(Fate.duplicate)


def _place(example: str) -> list[int]:
    """Partition and offset of `topic/partition@offset`, as numbers: 9 comes before 10."""
    return [int(number) for number in example.rpartition("/")[2].split("@")]


def outcomes(contract: Contract, tally: Tally, unique_by: Sequence[str]) -> tuple[CheckOutcome, ...]:
    """Every check of a slice. A record rule warns above zero and is an error above its `max_share`."""
    total = tally.with_value
    found = [
        _share(rule.name, tally.failing(rule.gave), total, rule.max_share, rule.severity) for rule in contract.rules
    ]
    undecodable = tally.failing(lambda reason: reason.startswith(DECODE))
    found.append(_share(DECODABLE, undecodable, total, DECODE_MAX_SHARE, "ERROR"))
    found += table_outcomes(tally)
    if unique_by:
        spread = tally.keys_in_two_partitions
        found.append(CheckOutcome(ONE_PARTITION_A_KEY, spread == 0, "WARN", spread, tally.fate(Fate.ok)))
    return tuple(found)


def table_outcomes(tally: Tally) -> list[CheckOutcome]:
    """The rules of the table: they block at the first failure."""
    offsets = sum(span.span for span in tally.ranges.values())
    lost = sum(one.span for spans in tally.lost.values() for one in spans)
    missing = sum(abs(count) for count in tally.balance.missing.values()) + lost + tally.outside
    repeated, foreign = tally.repeated_offsets, len(tally.foreign_schemas)
    return [
        CheckOutcome(CONSERVATION, missing == 0, "ERROR", missing, offsets, blocking=True),
        CheckOutcome(
            UNIQUE_OFFSETS, repeated.count == 0, "ERROR", repeated.count, offsets, repeated.examples, blocking=True
        ),
        CheckOutcome(KNOWN_SCHEMAS, foreign == 0, "ERROR", foreign, foreign, blocking=True),
    ]


def _share(name: str, failing: Failing, total: int, max_share: float, severity: Severity) -> CheckOutcome:
    """A rule over records: they are dead letters, so below `max_share` the slice is still good."""
    too_many = total > 0 and failing.count / total > max_share
    level: Severity = "ERROR" if too_many and severity == "ERROR" else "WARN"
    passed = failing.count == 0
    return CheckOutcome(
        name,
        passed,
        "ERROR" if passed and severity == "ERROR" else level,
        failing.count,
        total,
        failing.examples,
        blocking=True,
        max_share=max_share if severity == "ERROR" else None,
    )
