"""What an invented click is meant to be, and the tally of it: the truth that the product's counts are held against.

Belongs here: the kinds of records and the counts by hour, made without any of the product's own code.
Does not belong here: how clicks are made (shop.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple


class Kind(StrEnum):
    """What a record is meant to be. It is exactly one of these."""

    OK = "ok"
    LATE = "late"
    DUPLICATE = "duplicate"
    TOMBSTONE = "tombstone"
    WRONG_MAGIC_BYTE = "wrong_magic_byte"
    UNKNOWN_SCHEMA_ID = "unknown_schema_id"
    TRUNCATED = "truncated"
    EMPTY_VALUE = "empty_value"
    PLAIN_JSON = "plain_json"
    USER_ID = "user_id"
    EVENT_TYPE = "event_type"
    EMAIL = "email"
    AMOUNT_CENTS = "amount_cents"

    @property
    def malformed(self) -> bool:
        """Its bytes cannot be decoded."""
        return self in _MALFORMED

    @property
    def contract_breaking(self) -> bool:
        """It can be decoded, but the field that the kind is named for breaks its rule."""
        return self in _CONTRACT_BREAKING

    @property
    def fate(self) -> str:
        """The fate that the product must give it; a late record is `ok`."""
        if self.malformed or self.contract_breaking:
            return "dead"
        return "ok" if self is Kind.LATE else self.value


_MALFORMED = frozenset(
    {Kind.WRONG_MAGIC_BYTE, Kind.UNKNOWN_SCHEMA_ID, Kind.TRUNCATED, Kind.EMPTY_VALUE, Kind.PLAIN_JSON}
)
_CONTRACT_BREAKING = frozenset({Kind.USER_ID, Kind.EVENT_TYPE, Kind.EMAIL, Kind.AMOUNT_CENTS})


class Click(NamedTuple):
    """The fields of clicks.avsc. `occurred_at_ms` is milliseconds since 1970, UTC."""

    event_id: str
    user_id: int
    session_id: str
    event_type: str
    page: str
    email: str | None
    amount_cents: int | None
    occurred_at_ms: int


@dataclass(frozen=True, slots=True)
class Event:
    """One record to produce. `position` is its offset in its partition if the topic was empty before."""

    partition: int
    position: int
    timestamp_ms: int
    key: bytes
    kind: Kind
    click: Click | None
    """None in a tombstone. In a malformed record: what it was before its bytes were spoilt."""


@dataclass(slots=True)
class HourTruth:
    """What the records stamped in one hour are: `records = ok + dead + duplicate + tombstone`.

    Late rows are among the ok ones, and counted in `late` as well.
    """

    records: int = 0
    ok: int = 0
    late: int = 0
    duplicate: int = 0
    tombstone: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    contract_breaking: dict[str, int] = field(default_factory=dict)
    """Field whose rule is broken -> records."""
    purchases: int = 0
    revenue_cents: int = 0
    """Purchases and their sum among the ok rows."""
    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition -> half-open range of positions: the offsets, if the topic was empty before."""

    @property
    def dead(self) -> int:
        return sum(self.malformed.values()) + sum(self.contract_breaking.values())

    @property
    def fates(self) -> dict[str, int]:
        """Fate -> records, as the commit record of raw must count them."""
        return {"ok": self.ok, "dead": self.dead, "duplicate": self.duplicate, "tombstone": self.tombstone}

    def blocked(self, max_share: float = 0.05) -> bool:
        """Whether one rule fails for more than this share of the records."""
        return any(count > max_share * self.records for count in self.contract_breaking.values())

    def add(self, event: Event) -> None:
        """Counts one event by what it is meant to be."""
        kind, click = event.kind, event.click
        self.records += 1
        start, _ = self.positions.get(event.partition, (event.position, 0))
        self.positions[event.partition] = (start, event.position + 1)
        if kind.malformed:
            self.malformed[kind.value] = self.malformed.get(kind.value, 0) + 1
        elif kind.contract_breaking:
            self.contract_breaking[kind.value] = self.contract_breaking.get(kind.value, 0) + 1
        elif kind is Kind.DUPLICATE:
            self.duplicate += 1
        elif kind is Kind.TOMBSTONE:
            self.tombstone += 1
        else:
            self.ok += 1
            self.late += kind is Kind.LATE
            if click is not None and click.amount_cents is not None:
                self.purchases += 1
                self.revenue_cents += click.amount_cents


@dataclass(frozen=True, slots=True)
class Truth:
    """What one call of `make_clicks` made, by slice key such as `2026-08-01-13`, in order of time."""

    seed: int
    until: datetime
    hours: Mapping[str, HourTruth]

    @property
    def records(self) -> int:
        return sum(hour.records for hour in self.hours.values())

    @property
    def fates(self) -> dict[str, int]:
        """Fate -> records over all hours."""
        total: Counter[str] = Counter()
        for hour in self.hours.values():
            total.update(hour.fates)
        return dict(total)

    @property
    def late(self) -> int:
        return sum(hour.late for hour in self.hours.values())

    @property
    def blocked(self) -> tuple[str, ...]:
        """Slice keys that must be blocked."""
        return tuple(key for key, hour in self.hours.items() if hour.blocked())

    def to_json(self) -> str:
        return json.dumps(
            {
                "seed": self.seed,
                "until": self.until.isoformat(),
                "hours": {key: asdict(hour) for key, hour in self.hours.items()},
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> Truth:
        """The inverse of `to_json`."""
        data = json.loads(text)
        hours = {key: HourTruth(**hour) for key, hour in data["hours"].items()}
        for hour in hours.values():
            hour.positions = {int(partition): (start, end) for partition, (start, end) in hour.positions.items()}
        return cls(data["seed"], datetime.fromisoformat(data["until"]), hours)


def as_avro(click: Click) -> dict[str, Any]:
    """The record as clicks.avsc names its fields."""
    record = click._asdict()
    record["occurred_at"] = record.pop("occurred_at_ms")
    return record
