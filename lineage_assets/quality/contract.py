"""A contract as plain data: columns, and the rules that decide each record's fate.

Belongs here: the values, their hash, their JSON form. Does not belong here: pandera (compiler.py), Spark (spark/decode.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ERROR", "WARN"]
Encoding = Literal["", "epoch_s", "epoch_ms", "epoch_us", "json"]

REQUIRED, TYPE, FINITE, FORMAT = "required", "type", "finite", "format"
DECIDED_BY_DECODING = "true"
"""The SQL of rules that cannot be asked of a decoded column: its value was lost when it could not be decoded, or the
answer comes from a library."""

SEMANTICS = 1
"""Part of every contract's hash: raise it when the same contract begins to decide fates otherwise."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold for every record.

    `sql` is a Spark SQL boolean expression over the contract's columns, true where the rule holds; an absent value
    holds. `message` is the reason in raw; a broken type rule adds `, got <what was there>` to it. `max_share` (0 to 1)
    is the share of a slice's records that may break the rule before the slice is held.
    """

    name: str
    column: str
    kind: str
    message: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = "ERROR"
    max_share: float = 0.05
    sql: str = DECIDED_BY_DECODING

    def gave(self, reason: str) -> bool:
        """Whether a reason in raw came from this rule."""
        return reason == self.message or (self.kind == TYPE and reason.startswith(self.message + ", got "))


@dataclass(frozen=True, slots=True)
class Column:
    """One field of the record: `field` in the event, `column` in our tables.

    `type` is Spark's name: string, bigint, int, double, float, boolean, timestamp, date, decimal(p,s) or binary.
    `encoding` says how the event writes it where the type leaves a choice: an epoch number, or any JSON kept as text.
    """

    field: str
    column: str
    type: str
    nullable: bool = False
    description: str = ""
    tags: tuple[str, ...] = ()
    encoding: Encoding = ""
    rules: tuple[Rule, ...] = ()

    def rule(self, kind: str) -> Rule | None:
        """The column's rule of a kind, if it has one."""
        return next((rule for rule in self.rules if rule.kind == kind), None)


@dataclass(frozen=True, slots=True)
class Contract:
    """What a record of an event table must look like. Made by `load.load_contract`."""

    name: str
    columns: tuple[Column, ...]
    doc: str = ""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, column by column: required, type, finite, then the declared ones."""
        return tuple(rule for column in self.columns for rule in column.rules)

    @property
    def hash(self) -> str:
        """sha256 of all that decides fates. Descriptions, tags and tolerated shares decide none."""
        deciding = [
            [one.field, one.column, one.type, one.nullable, one.encoding]
            + [[rule.kind, dict(rule.arguments), rule.severity, rule.sql, rule.message] for rule in one.rules]
            for one in self.columns
        ]
        text = json.dumps([SEMANTICS, deciding], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def rule_of(self, reason: str) -> Rule | None:
        """The rule that gave a reason; None for `decode: …` and for reasons of another contract."""
        return next((rule for rule in self.rules if rule.gave(reason)), None)

    def to_json(self) -> str:
        """The contract as JSON text, which `from_json` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Contract:
        """Inverse of `to_json`. ValueError, KeyError or TypeError when the text is no contract's."""
        plain = json.loads(text)
        columns = tuple(
            Column(**{**one, "tags": tuple(one["tags"]), "rules": tuple(Rule(**rule) for rule in one["rules"])})
            for one in plain["columns"]
        )
        return cls(name=plain["name"], columns=columns, doc=plain["doc"])


def shown(name: str) -> str:
    """A field's name in messages: control characters, which would break lists of reasons, are escaped."""
    return re.sub(r"[^ -~\u00a1-\U0010ffff]", lambda found: f"\\u{ord(found.group()):04x}", name)
