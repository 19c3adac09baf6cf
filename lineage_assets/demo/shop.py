"""The shop's clicks, made from a seed: visitors, their sessions, and all that goes wrong on the way.

Belongs here: invented events. Does not belong here: the tally of them (truth.py); bytes, schemas, brokers (produce.py).

The story: for one hour a release of the shop books returned goods as purchases with a negative amount. That is far
above the 5 % of a slice that a rule tolerates, so that hour is blocked; all else that is broken stays well below.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from lineage_assets.demo.truth import Click, Event, Kind
from lineage_assets.demo.truth import HourTruth as HourTruth
from lineage_assets.demo.truth import Truth as Truth

HOUR_MS = 3_600_000
USERS = 2_000
PRODUCTS = 300
SESSION_GAP_MS = 30 * 60_000
LATE_AFTER_MS = HOUR_MS
"""The grace of design law 3: a later arrival marks the row as late."""
RESENT_WITHIN_MS = 8 * 60_000
"""Safely inside the ten minutes in which a repeated key is a duplicate."""
EDGE_MS = 1_000
"""No event is stamped this close to an hour's edge, so no reading of "hour" can move one."""
SLICE_KEY = "%Y-%m-%d-%H"


_SHARES = {
    Kind.LATE: 0.015,
    Kind.DUPLICATE: 0.01,
    Kind.TOMBSTONE: 0.0005,
    Kind.WRONG_MAGIC_BYTE: 0.001,
    Kind.UNKNOWN_SCHEMA_ID: 0.001,
    Kind.TRUNCATED: 0.001,
    Kind.EMPTY_VALUE: 0.0005,
    Kind.PLAIN_JSON: 0.001,
    Kind.USER_ID: 0.002,
    Kind.EVENT_TYPE: 0.001,
    Kind.EMAIL: 0.002,
    Kind.AMOUNT_CENTS: 0.001,
}
_RELEASE_SHARE = 0.08
_EVENT_TYPES = {"view": 62, "search": 15, "add_to_cart": 12, "checkout": 5, "purchase": 6}
_PAGES = {"search": "/search", "add_to_cart": "/cart", "checkout": "/checkout", "purchase": "/thanks"}
_BAD_TYPES = ("veiw", "PURCHASE", "")
_BAD_EMAILS = ("user{}(at)example.com", "user{}@", "@example.com", "user {}@example.com")


class Clicks(NamedTuple):
    """Events in the order in which to produce them, and what they are."""

    events: list[Event]
    truth: Truth


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that this producer puts a key in: its own rule, the same in every version of every client."""
    return crc32(key) % partitions


def make_clicks(
    seed: int = 7,
    events: int = 60_000,
    hours: int = 6,
    *,
    until: datetime,
    partitions: int = 3,
    blocked_hour: int | None = 3,
) -> Clicks:
    """Clicks of the last `hours` full hours before `until`; the same arguments give the same clicks.

    `until` is aware, and rounded down to its hour, so nothing is stamped in the hour that is running. Every hour gets
    `events / hours`, the first ones one more where that leaves a remainder. Kafka timestamps rise over all events, so
    they rise in every partition. `blocked_hour` counts from 0; None, or a number that is no hour, leaves the story out.

    Raises ValueError if `until` is naive or a number is below one.
    """
    if until.tzinfo is None:
        raise ValueError("until has no time zone: give an aware datetime, such as datetime.now(UTC)")
    if min(events, hours, partitions) < 1:
        raise ValueError(f"events ({events}), hours ({hours}) and partitions ({partitions}) must be at least 1")
    until = until.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    shop = _Shop(random.Random(seed), partitions)
    made: list[Event] = []
    truth: dict[str, HourTruth] = {}
    for index in range(hours):
        start = until - timedelta(hours=hours - index)
        count = events // hours + (index < events % hours)
        hour = truth[start.strftime(SLICE_KEY)] = HourTruth()
        for event in shop.hour(int(start.timestamp()) * 1000, count, release=index == blocked_hour):
            made.append(event)
            hour.add(event)
    return Clicks(made, Truth(seed, until, truth))


class _Shop:
    """The visitors and what is under way while time goes by."""

    def __init__(self, rng: random.Random, partitions: int) -> None:
        self._rng = rng
        self._partitions = partitions
        self._next_position = [0] * partitions
        self._cumulative = list(accumulate(1 / rank**1.05 for rank in range(1, USERS + 1)))
        self._sessions: dict[int, tuple[str, int]] = {}
        self._recent: deque[Event] = deque()

    def hour(self, start_ms: int, count: int, *, release: bool) -> Iterator[Event]:
        """`count` events stamped inside the hour, in order of time."""
        rng = self._rng
        stamps = sorted(rng.choices(range(start_ms + EDGE_MS, start_ms + HOUR_MS - EDGE_MS), k=count))
        kinds = self._kinds(count, release)
        users = rng.choices(range(1, USERS + 1), cum_weights=self._cumulative, k=count)
        types = rng.choices(list(_EVENT_TYPES), weights=list(_EVENT_TYPES.values()), k=count)
        for stamp, kind, user, event_type in zip(stamps, kinds, users, types, strict=True):
            yield self._event(stamp, kind, user, event_type)

    def _kinds(self, count: int, release: bool) -> list[Kind]:
        """One kind a record, shuffled. Each share varies from hour to hour by up to a third."""
        rng, kinds = self._rng, []
        for kind, share in _SHARES.items():
            number = int(share * count * rng.uniform(0.7, 1.3) + 0.5)
            if release and kind is Kind.AMOUNT_CENTS:
                number = max(int(_RELEASE_SHARE * count * rng.uniform(0.8, 1.2)), count // 20 + 1)
            kinds += [kind] * number
        kinds = kinds[:count] + [Kind.OK] * (count - len(kinds))
        rng.shuffle(kinds)
        return kinds

    def _event(self, stamp: int, kind: Kind, user: int, event_type: str) -> Event:
        while self._recent and self._recent[0].timestamp_ms < stamp - RESENT_WITHIN_MS:
            self._recent.popleft()
        if kind is Kind.DUPLICATE:
            if not self._recent:
                return self._event(stamp, Kind.OK, user, event_type)
            first = self._recent[int(self._rng.random() * len(self._recent))]
            return self._place(stamp, kind, first.key, first.click)
        if kind is Kind.TOMBSTONE:
            return self._place(stamp, kind, b"%d" % user, None)
        click = self._click(stamp, kind, user, event_type)
        event = self._place(stamp, kind, b"%d" % click.user_id, click)
        if kind is Kind.OK:
            self._recent.append(event)
        return event

    def _place(self, stamp: int, kind: Kind, key: bytes, click: Click | None) -> Event:
        partition = partition_of(key, self._partitions)
        position = self._next_position[partition]
        self._next_position[partition] += 1
        return Event(partition, position, stamp, key, kind, click)

    def _click(self, stamp: int, kind: Kind, user: int, event_type: str) -> Click:
        rng = self._rng
        if kind is Kind.AMOUNT_CENTS:
            event_type = "purchase"
        amount = int(rng.lognormvariate(8, 0.8)) + 99 if event_type == "purchase" else None
        click = Click(
            event_id=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            user_id=user,
            session_id=self._session(user, stamp),
            event_type=event_type,
            page=_PAGES.get(event_type) or f"/products/{int(rng.random() * PRODUCTS) + 1}",
            email=f"user{user}@example.com" if user % 3 == 0 else None,
            amount_cents=amount,
            occurred_at_ms=stamp - self._delay_ms(kind),
        )
        if kind is Kind.USER_ID:
            return click._replace(user_id=rng.choice((0, -user)), email=None)
        if kind is Kind.EVENT_TYPE:
            return click._replace(event_type=rng.choice(_BAD_TYPES), amount_cents=None)
        if kind is Kind.EMAIL:
            return click._replace(email=rng.choice(_BAD_EMAILS).format(user))
        if kind is Kind.AMOUNT_CENTS and amount is not None:
            return click._replace(amount_cents=-amount)
        return click

    def _delay_ms(self, kind: Kind) -> int:
        """Between the click and its arrival: mostly a moment; a phone without a network takes up to half an hour."""
        rng = self._rng
        if kind is Kind.LATE:
            return LATE_AFTER_MS + int(rng.uniform(60_000, 4 * HOUR_MS))
        return int(rng.uniform(60_000, 30 * 60_000) if rng.random() < 0.03 else rng.uniform(20, 3_000))

    def _session(self, user: int, stamp: int) -> str:
        """The visit that goes on, or a new one after a gap. One event in thirty begins one: the busiest never pause."""
        session, last = self._sessions.get(user, ("", 0))
        if stamp - last > SESSION_GAP_MS or self._rng.random() < 1 / 30:
            session = f"{user}-{self._rng.getrandbits(40):010x}"
        self._sessions[user] = (session, stamp)
        return session
