"""Slices of a topic and the cuts between them.

Belongs here: slice keys and their times (UTC), cuts, and which offsets a slice holds. Does not belong here: asking a
broker, storing cuts. Cuts are taken by arrival; the broker's timestamp index places only the history that was there
before the first cut (`first_cuts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from lineage_assets.errors import ContractError
from lineage_assets.lineage.offsets import OffsetRange


class BadSliceKey(ContractError, ValueError):
    """A text that is no slice of this grain."""


class Grain(StrEnum):
    """How long a slice is."""

    hour = "hour"
    day = "day"
    month = "month"

    @property
    def format(self) -> str:  # type: ignore[override]  # str.format has no use on a grain
        """The strftime format of a slice's key."""
        return {"hour": "%Y-%m-%d-%H", "day": "%Y-%m-%d", "month": "%Y-%m"}[self.value]

    @property
    def cron(self) -> str:
        """When slices of this grain begin, as a cron schedule."""
        return {"hour": "0 * * * *", "day": "0 0 * * *", "month": "0 0 1 * *"}[self.value]

    def floor(self, instant: datetime) -> datetime:
        """The start of the slice that holds `instant`, in UTC. ValueError without a time zone."""
        if instant.tzinfo is None:
            raise ValueError(f"{instant.isoformat()} has no time zone; slices are in UTC")
        hour = instant.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if self is Grain.hour:
            return hour
        return hour.replace(hour=0) if self is Grain.day else hour.replace(hour=0, day=1)


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """One streaming partition of a topic: what arrived from `start` until `end`.

    >>> Slice.of("2026-08-01-13", Grain.hour).next().key
    '2026-08-01-14'
    """

    start: datetime
    grain: Grain

    def __post_init__(self) -> None:
        if self.grain.floor(self.start) != self.start:
            raise ValueError(f"{self.start.isoformat()} is not the start of a {self.grain}")
        object.__setattr__(self, "start", self.start.astimezone(UTC))

    @classmethod
    def of(cls, key: str, grain: Grain) -> Slice:
        """The slice of a key, which must be written exactly as `Slice.key` writes it."""
        try:
            start = datetime.strptime(key, grain.format).replace(tzinfo=UTC)
        except ValueError:
            start = None
        if start is None or start.strftime(grain.format) != key:
            example = datetime(2026, 8, 1, 13, tzinfo=UTC).strftime(grain.format)
            raise BadSliceKey(
                f"{key!r} is no slice of one {grain}", remedy=f"write it as {grain.format}, for example {example}"
            )
        return cls(start, grain)

    @classmethod
    def containing(cls, instant: datetime, grain: Grain) -> Slice:
        """The slice in whose time `instant` lies. ValueError without a time zone."""
        return cls(grain.floor(instant), grain)

    @property
    def key(self) -> str:
        """The partition key of this slice in Dagster, and its value of `_slice`."""
        return self.start.strftime(self.grain.format)

    @property
    def end(self) -> datetime:
        """The start of the following slice."""
        longest = {Grain.hour: timedelta(hours=1), Grain.day: timedelta(days=1), Grain.month: timedelta(days=31)}
        return self.grain.floor(self.start + longest[self.grain])

    def next(self) -> Slice:
        """The following slice."""
        return Slice(self.end, self.grain)

    def previous(self) -> Slice:
        """The slice before this one."""
        return Slice.containing(self.start - timedelta(microseconds=1), self.grain)

    def __str__(self) -> str:
        return self.key


def slices_between(first: Slice, last: Slice) -> Iterator[Slice]:
    """All slices from `first` to `last`, both included; none when `last` is earlier. ValueError for two grains."""
    if first.grain != last.grain:
        raise ValueError(f"{first} is one {first.grain}, {last} one {last.grain}")
    current = first
    while current <= last:
        yield current
        current = current.next()


@dataclass(frozen=True, slots=True)
class Cut:
    """The offsets at which the slice that begins at `at` begins. A partition that is absent did not exist yet."""

    at: datetime
    offsets: Mapping[int, int]


def ranges_between(opening: Cut | None, closing: Cut) -> dict[int, OffsetRange]:
    """What a slice holds: every partition of `closing`, empty ranges included.

    A partition that `opening` lacks begins at 0, so nothing that came before its discovery is left out. With no
    `opening` (None) the result is all that lies before `closing`. ValueError when `closing` lies below `opening`:
    then one of them is not of this topic.
    """
    opened = opening.offsets if opening else {}
    for partition, start in sorted(opened.items()):
        end = closing.offsets.get(partition, 0)
        if end < start:
            raise ValueError(
                f"partition {partition}: the cut at {closing.at.isoformat()} is at {end}, below {start} before it"
            )
    return {partition: OffsetRange(opened.get(partition, 0), end) for partition, end in sorted(closing.offsets.items())}


def first_cuts(
    boundaries: Sequence[datetime],
    answers: Mapping[int, Sequence[int]],
    begin: Mapping[int, int],
    end: Mapping[int, int],
) -> list[Cut]:
    """One cut per boundary for the history of a topic that has no cut yet.

    `answers` holds, per partition and boundary, the first offset whose timestamp is at or after the boundary, and a
    negative number when there is none (ListOffsets, offsets_for_times): that means the end, never the beginning.
    Answers outside `[begin, end]` are held to it, and a cut is never below the one before. Offsets below the first
    cut lie before the first boundary: `ranges_between(None, cuts[0])` names them.
    """
    if list(boundaries) != sorted(set(boundaries)):
        raise ValueError("the boundaries of first cuts must rise")
    columns = {
        partition: _rising(answers[partition], begin.get(partition, 0), end[partition]) for partition in sorted(answers)
    }
    for partition, column in columns.items():
        if len(column) != len(boundaries):
            raise ValueError(f"partition {partition}: {len(column)} answers for {len(boundaries)} boundaries")
    return [
        Cut(at, {partition: column[index] for partition, column in columns.items()})
        for index, at in enumerate(boundaries)
    ]


def _rising(answers: Sequence[int], begin: int, end: int) -> list[int]:
    floor, column = begin, []
    for answer in answers:
        floor = max(floor, end if answer < 0 else min(answer, end))
        column.append(floor)
    return column


def next_cut(previous: Cut, at: datetime, ends: Mapping[int, int]) -> Cut:
    """The cut after `previous`, by arrival: the broker's last stable offsets when `at` passed.

    Never below `previous`, also when an answer is old or lacks a partition; partitions that came since are added.
    """
    if at <= previous.at:
        raise ValueError(f"the next cut is at {at.isoformat()}, not after {previous.at.isoformat()}")
    partitions = sorted(previous.offsets.keys() | ends.keys())
    return Cut(
        at, {partition: max(previous.offsets.get(partition, 0), ends.get(partition, 0)) for partition in partitions}
    )
