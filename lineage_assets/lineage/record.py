"""The commit record: what every managed Delta commit carries in `userMetadata`.

Belongs here: the record's values, its JSON in both directions, the hash of an output schema. Does not belong here:
writing a commit, the ledger.

The JSON is one compact line with sorted keys; what is None or empty by default
is left out. When it is longer than 16 KB, each topic's `ranges` become `packed`: partitions, starts and spans as
unsigned LEB128 numbers (partition as the difference to the one before), zlib, base64. The record is whole in either
form, and `from_json` reads both.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, cast, get_args

from lineage_assets.errors import FatalError
from lineage_assets.lineage.offsets import OffsetRange, Ranges

VERSION = 1
TEXT_LIMIT = 16 * 1024

Kind = Literal["append", "replace", "compact", "delete", "erase", "create", "schema", "restore"]
Severity = Literal["ERROR", "WARN"]


class UnknownRecordVersion(FatalError):
    """A commit record that a later version of this package wrote."""


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A registered schema that records of this commit were written with."""

    subject: str
    id: int
    version: int | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class TopicInput:
    """The offsets of a topic that this commit holds."""

    topic: str
    cluster: str
    topic_id: str
    ranges: Ranges
    schemas: tuple[SchemaUse, ...] = ()


@dataclass(frozen=True, slots=True)
class TableInput:
    """A table that was read: `commits` (half open) says what was consumed, `read_at` which snapshot was read.

    `held` names the slices of it that a failing check kept out.
    """

    table: str
    table_id: str
    commits: tuple[int, int] | None = None
    read_at: int | None = None
    role: str | None = None
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of one rule on this commit's rows.

    Examples are at most three, as "topic/partition@offset", never values. `max_share` is the share of failing records
    above which a rule of severity ERROR is more than a warning; None for a rule without such a share.
    """

    name: str
    passed: bool
    severity: Severity
    failed: int
    total: int
    examples: tuple[str, ...] = ()
    blocking: bool = False
    max_share: float | None = None

    def __post_init__(self) -> None:
        if len(self.examples) > 3:
            raise ValueError(f"check {self.name} has {len(self.examples)} examples; three are the most")


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Where the rows of one commit came from and what became of the records that were read for it.

    `counts` holds fates and marks such as `late`; `stated` holds further numbers. `written_at` needs a time zone.
    """

    asset: str
    env: str
    kind: Kind
    slice: str | None
    inputs: tuple[TopicInput | TableInput, ...]
    counts: Mapping[str, int]
    reasons: Mapping[str, int]
    schema: str
    contract: str
    code: str
    run: str
    written_at: datetime
    attempt: int = 1
    batch: int | None = None
    checks: tuple[CheckOutcome, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"{self.kind!r} is no kind of commit; known: {', '.join(get_args(Kind))}")
        if self.written_at.tzinfo is None:
            raise ValueError("written_at needs a time zone")
        object.__setattr__(self, "written_at", self.written_at.astimezone(UTC))

    @property
    def topics(self) -> tuple[TopicInput, ...]:
        """The inputs that are topics."""
        return tuple(one for one in self.inputs if isinstance(one, TopicInput))

    @property
    def tables(self) -> tuple[TableInput, ...]:
        """The inputs that are tables."""
        return tuple(one for one in self.inputs if isinstance(one, TableInput))


def to_json(record: CommitRecord) -> str:
    """The record as one line of strict JSON; equal records give equal text.

    Numbers in `stated` that are not finite (the mean over no rows) become null.
    """
    text = _dumps(_document(record, packed=False))
    return text if len(text) <= TEXT_LIMIT else _dumps(_document(record, packed=True))


def from_json(text: str) -> CommitRecord:
    """The record of a text. Unknown fields are ignored at every level.

    UnknownRecordVersion when a later version wrote it; ValueError when it is no commit record.
    """
    document = json.loads(text, parse_constant=_no_constant)
    version = document.get("v") if isinstance(document, dict) else None
    if type(version) is not int or not {"asset", "env", "kind"} <= document.keys():
        raise ValueError("this text is no commit record")
    if version > VERSION:
        raise UnknownRecordVersion(
            f"a commit of {document['asset']} has a record of version {version}; this package reads up to {VERSION}",
            remedy="update lineage-assets here, or read with the version that wrote it",
        )
    try:
        return _record(document)
    except (KeyError, TypeError, AttributeError, zlib.error) as error:
        raise ValueError(f"this commit record is damaged: {type(error).__name__} {error}") from error


def read(text: str | None) -> CommitRecord | None:
    """The record of a commit's `userMetadata`, or None for a foreign commit. UnknownRecordVersion as in `from_json`."""
    if not text:
        return None
    try:
        return from_json(text)
    except (ValueError, RecursionError):
        return None


def finite(value: Any) -> Any:
    """The value with None for every number that JSON cannot hold (NaN and the infinities), at every depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def output_schema_hash(columns: Sequence[tuple[str, str]]) -> str:
    """SHA-256 (hex) of a table's columns, as (name, type) in their order."""
    return hashlib.sha256(json.dumps([list(column) for column in columns]).encode()).hexdigest()


def _dumps(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    # Spark replaces ${name} in values of its settings, and userMetadata can travel as one.
    return text.replace("${", "\\u0024{")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _document(record: CommitRecord, *, packed: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "v": VERSION,
        "inputs": [_topic(one, packed) if isinstance(one, TopicInput) else _table(one) for one in record.inputs],
        "counts": dict(record.counts),
        "reasons": dict(record.reasons),
        "written_at": record.written_at.isoformat().replace("+00:00", "Z"),
    }
    for name in ("asset", "env", "kind", "slice", "schema", "contract", "code", "run", "attempt", "batch"):
        document[name] = getattr(record, name)
    if record.checks:
        document["checks"] = [_without_defaults(asdict(one)) for one in record.checks]
    if record.stated:
        document["stated"] = finite(record.stated)
    return {name: value for name, value in document.items() if value is not None}


def _without_defaults(outcome: dict[str, Any]) -> dict[str, Any]:
    """A stream writes a record a second: what says nothing is left out of it."""
    return {
        name: value
        for name, value in outcome.items()
        if value not in (None, ()) and (name, value) != ("blocking", False)
    }


def _topic(one: TopicInput, packed: bool) -> dict[str, Any]:
    ranges = {str(partition): [held.start, held.end] for partition, held in one.ranges.items()}
    return {
        "topic": one.topic,
        "cluster": one.cluster,
        "topic_id": one.topic_id,
        "schemas": [asdict(use) for use in one.schemas],
        **({"packed": _pack(one.ranges)} if packed else {"ranges": ranges}),
    }


def _table(one: TableInput) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if value not in (None, ())}


def _record(document: Mapping[str, Any]) -> CommitRecord:
    return CommitRecord(
        asset=document["asset"],
        env=document["env"],
        kind=cast(Kind, document["kind"]),
        slice=document.get("slice"),
        inputs=tuple(_input(one) for one in document.get("inputs", ()) if "topic" in one or "table" in one),
        counts=dict(document.get("counts", {})),
        reasons=dict(document.get("reasons", {})),
        schema=document.get("schema", ""),
        contract=document.get("contract", ""),
        code=document.get("code", ""),
        run=document.get("run", ""),
        written_at=datetime.fromisoformat(document["written_at"]),
        attempt=document.get("attempt", 1),
        batch=document.get("batch"),
        checks=tuple(_outcome(one) for one in document.get("checks", ())),
        stated=dict(document.get("stated", {})),
    )


def _input(one: Mapping[str, Any]) -> TopicInput | TableInput:
    if "topic" in one:
        if "packed" in one:
            ranges = _unpack(one["packed"])
        else:
            ranges = {int(partition): OffsetRange(start, end) for partition, (start, end) in one["ranges"].items()}
        uses = tuple(
            SchemaUse(use["subject"], use["id"], use.get("version"), use["fingerprint"])
            for use in one.get("schemas", ())
        )
        return TopicInput(one["topic"], one["cluster"], one["topic_id"], ranges, uses)
    commits, held = one.get("commits"), tuple(one.get("held", ()))
    commits = (int(commits[0]), int(commits[1])) if commits else None
    return TableInput(one["table"], one["table_id"], commits, one.get("read_at"), one.get("role"), held)


def _outcome(one: Mapping[str, Any]) -> CheckOutcome:
    values = {name: one[name] for name in ("name", "passed", "severity", "failed", "total")}
    more = {"blocking": one.get("blocking", False), "max_share": one.get("max_share")}
    return CheckOutcome(**values, examples=tuple(one.get("examples", ())), **more)


def _pack(ranges: Ranges) -> str:
    numbers, before = bytearray(), 0
    for partition, held in sorted(ranges.items()):
        for number in (partition - before, held.start, held.span):
            while number > 0x7F:
                numbers.append(number & 0x7F | 0x80)
                number >>= 7
            numbers.append(number)
        before = partition
    return base64.b64encode(zlib.compress(bytes(numbers), 9)).decode("ascii")


def _unpack(packed: str) -> dict[int, OffsetRange]:
    numbers, ranges, partition = _numbers(zlib.decompress(base64.b64decode(packed, validate=True))), {}, 0
    for step in numbers:
        partition, start = partition + step, next(numbers)
        ranges[partition] = OffsetRange(start, start + next(numbers))
    return ranges


def _numbers(packed: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
