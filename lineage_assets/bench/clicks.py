"""Clicks for a load: the shop's contract as ready-made bytes, so that one process can send very many a second.

Belongs here: what the records are. Does not belong here: when they are sent (load.py).

A record is put together from a template: only the event's id and its time differ from one use of it to the next.
"""

from __future__ import annotations

import io
import json
import random
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.resources import files
from itertools import accumulate
from typing import Any

TEMPLATES = 20_011
"""Prime, so that users do not come round in step with anything else."""
USERS = 20_000
DUPLICATES, DEAD = 0.005, 0.002
RESENT_WITHIN_MS = 8 * 60_000
"""Safely inside the ten minutes in which a repeated id is a duplicate."""

_ID_BYTES = 24
_STAMP_BYTES = 6
"""Milliseconds since 1970 are a zigzag number of six bytes from 1987 to 2039."""
_TYPES = {"view": 62, "search": 15, "add_to_cart": 12, "checkout": 5, "purchase": 6}


class Kind(IntEnum):
    """What a record is meant to be."""

    ok = 0
    dead = 1
    duplicate = 2


@dataclass(frozen=True, slots=True)
class Template:
    """A record but for its id and time: `head`, id, `body`, time."""

    key: bytes
    head: bytes
    body: bytes
    kind: Kind


def schema() -> str:
    """The Avro schema of a click."""
    return files("lineage_assets").joinpath("defs/clicks/clicks.avsc").read_text()


def templates(seed: int, schema_id: int, count: int = TEMPLATES) -> list[Template]:
    """Clicks of users by Zipf's law, in random order, with the shares of dead records and duplicates."""
    rng = random.Random(seed)
    weights = list(accumulate(1 / rank**1.05 for rank in range(1, USERS + 1)))
    users = rng.choices(range(1, USERS + 1), cum_weights=weights, k=count)
    types = rng.choices(list(_TYPES), weights=list(_TYPES.values()), k=count)
    kinds = [Kind.duplicate] * round(count * DUPLICATES) + [Kind.dead] * round(count * DEAD)
    kinds += [Kind.ok] * (count - len(kinds))
    rng.shuffle(kinds)
    encode = _Encoder(schema_id)
    return [encode(rng, *made) for made in zip(users, types, kinds, strict=True)]


class _Encoder:
    def __init__(self, schema_id: int) -> None:
        from fastavro import parse_schema, schemaless_writer

        self._write, self._schema = schemaless_writer, parse_schema(json.loads(schema()))
        self._id = schema_id.to_bytes(4, "big")

    def __call__(self, rng: random.Random, user: int, event_type: str, kind: Kind) -> Template:
        amount = rng.randrange(100, 50_000) if event_type == "purchase" else None
        record: dict[str, Any] = {
            "event_id": "x" * _ID_BYTES,
            "user_id": user,
            "session_id": f"s-{user}-{rng.randrange(4)}",
            "event_type": event_type,
            "page": f"/product/{rng.randrange(300)}" if event_type in ("view", "add_to_cart") else f"/{event_type}",
            "email": f"user{user}@example.com" if user % 3 else None,
            "amount_cents": amount,
            "occurred_at": 1_800_000_000_000,
        }
        magic = b"\0"
        if kind is Kind.dead:
            match rng.randrange(3):
                case 0:
                    magic = b"\1"
                case 1:
                    record["event_type"] = "veiw"
                case _:
                    record["amount_cents"] = -5
        buffer = io.BytesIO()
        self._write(buffer, self._schema, record)
        whole = buffer.getvalue()
        return Template(b"%d" % user, magic + self._id + whole[:1], whole[1 + _ID_BYTES : -_STAMP_BYTES], kind)


def stamp_bytes(stamp_ms: int) -> bytes:
    """A time as Avro writes it.

    >>> stamp_bytes(1_800_000_000_000).hex()
    '80c0e285e368'
    """
    number, found = stamp_ms << 1, bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


@dataclass(slots=True)
class Clicks:
    """An endless row of records, numbered from 0; `run` (12 hex digits) keeps their ids apart from other rows'.

    A record's content follows from its number and the time at which it was first sent, so nothing but those times has
    to be kept to send one again.
    """

    run: str
    templates: list[Template]
    rng: random.Random
    sent: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _firsts: list[int] = field(default_factory=list)
    _stamps: list[int] = field(default_factory=list)

    def take(self, count: int, stamp_ms: int) -> list[tuple[bytes, bytes]]:
        """The next records as (key, value), which happen and are sent at `stamp_ms`. Stamps must not fall."""
        ready, of, run, stamp = self.templates, len(self.templates), self.run.encode(), stamp_bytes(stamp_ms)
        made: list[tuple[bytes, bytes]] = []
        special = {Kind.dead: 0, Kind.duplicate: 0}
        for number in range(self.sent, self.sent + count):
            template = ready[number % of]
            if template.kind:
                again = self._earlier(number, stamp_ms) if template.kind is Kind.duplicate else None
                if again is not None:
                    made.append(again)
                    special[Kind.duplicate] += 1
                    continue
                special[Kind.dead] += template.kind is Kind.dead
            made.append((template.key, b"%b%b%012d%b%b" % (template.head, run, number, template.body, stamp)))
        self._firsts.append(self.sent)
        self._stamps.append(stamp_ms)
        self.sent += count
        for kind, found in special.items():
            self.counts[kind] += found
        self.counts[Kind.ok] += count - sum(special.values())
        return made

    def _earlier(self, number: int, stamp_ms: int) -> tuple[bytes, bytes] | None:
        """An ok record of an earlier call within the window, as it was sent; None if there is none."""
        oldest = bisect_left(self._stamps, stamp_ms - RESENT_WITHIN_MS)
        first = self._firsts[oldest] if oldest < len(self._firsts) else self.sent
        if first >= self.sent:
            return None
        for _ in range(20):
            other = self.rng.randrange(first, self.sent)
            template = self.templates[other % len(self.templates)]
            if template.kind is Kind.ok:
                stamp = stamp_bytes(self._stamps[bisect_right(self._firsts, other) - 1])
                return template.key, b"%b%b%012d%b%b" % (
                    template.head, self.run.encode(), other, template.body, stamp,
                )  # fmt: skip
        return None


def clicks(seed: int, schema_id: int, run: str) -> Clicks:
    """A new row of records."""
    return Clicks(run, templates(seed, schema_id), random.Random(seed))
