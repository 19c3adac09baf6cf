"""Cuts of a topic: where one slice ends and the next begins, found once and then read from the ledger.

Belongs here: asking the broker for what the pure rules of lineage/slices.py need, and inserting the answer.
Does not belong here: the arithmetic, the ledger's storage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lineage_assets.errors import ContractError
from lineage_assets.kafka import client
from lineage_assets.kafka.client import Topic
from lineage_assets.lineage import lease, ledger
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.offsets import OffsetRange, Ranges
from lineage_assets.lineage.slices import Cut, Grain, Slice, first_cuts, next_cut, ranges_between, slices_between
from lineage_assets.settings import Settings

ARRIVAL_SLACK = timedelta(minutes=2)
"""How late after the turn of a slice the end offsets of "now" still count as the offsets of that turn."""


@dataclass(frozen=True, slots=True)
class SlicedTopic:
    """A topic as of now: its cuts, and the log's begin and end (last stable offsets) per partition."""

    topic: Topic
    grain: Grain
    cuts: Sequence[Cut]
    begin: dict[int, int]
    end: dict[int, int]

    @property
    def open_slice(self) -> Slice:
        """The slice that still grows."""
        return Slice(self.cuts[-1].at, self.grain)

    def ranges(self, piece: Slice) -> dict[int, OffsetRange]:
        """What a slice covers. Empty before the first cut and after the open slice; up to the log's end in the open one."""
        opening = self._cut(piece.start)
        if opening is None:
            return {}
        # Never below the opening cut: another process may have taken that one since the ends were asked for.
        closing = self._cut(piece.end) or next_cut(opening, piece.end, self.end)
        return ranges_between(opening, closing)

    def _cut(self, at: datetime) -> Cut | None:
        place = bisect_left(self.cuts, at, key=lambda cut: cut.at)
        return self.cuts[place] if place < len(self.cuts) and self.cuts[place].at == at else None

    def slices(self) -> list[tuple[Slice, Ranges]]:
        """Every slice since the first cut with what it covers, oldest first; the last one is open."""
        return [(Slice(cut.at, self.grain), self.ranges(Slice(cut.at, self.grain))) for cut in self.cuts]

    def split(self, ranges: Ranges) -> list[tuple[Slice, Ranges]]:
        """Ranges by the slices that they arrived in, oldest first. What is beyond the log's known end is the open slice's."""
        opened = self.cuts[-1].offsets
        if all(held.start >= opened.get(p, 0) for p, held in ranges.items()):
            return [(self.open_slice, ranges)]
        found: list[tuple[Slice, Ranges]] = []
        for piece, covered in self.slices():
            if piece == self.open_slice:
                covered = {
                    p: OffsetRange(opened.get(p, 0), max(held.end, opened.get(p, 0))) for p, held in ranges.items()
                }
            inside = {
                p: OffsetRange(max(held.start, covered[p].start), min(held.end, covered[p].end))
                for p, held in ranges.items()
                if p in covered and max(held.start, covered[p].start) < min(held.end, covered[p].end)
            }
            if inside:
                found.append((piece, inside))
        return found


def slice_topic(
    settings: Settings,
    lake: Lake,
    name: str,
    grain: Grain,
    since: datetime,
    now: datetime | None = None,
    owner: str = "",
) -> SlicedTopic:
    """Read a topic's offsets and make sure that every slice up to now has its cut.

    `since` is the start of the first slice that the topic's partitions know; what is older belongs to that slice. While a
    stream holds the topic's lease, it alone takes the cuts of slices that turn (`owner` is the stream that asks); for
    everybody else the open slice stays open until it has.
    Raises ContractError for a topic that does not exist, TransientError when the broker does not answer.
    """
    now = now or datetime.now(UTC)
    topic = client.describe(settings, name)
    begin, end = client.begin_offsets(settings, topic), client.end_offsets(settings, topic)
    ref = TopicRef(settings.kafka_alias, name, topic.id)
    standing = ledger.cuts(lake, ref)
    opening = Slice.containing(now, grain).start
    if not standing:
        standing = ledger.add_cuts(lake, ref, _history(settings, topic, grain, since, opening, begin, end), "index")
    elif standing[-1].at < opening and lease.live(lake, name, owner) is None:
        for cuts, how in _missed(settings, topic, grain, standing[-1], now, end):
            standing = ledger.add_cuts(lake, ref, cuts, how)
    for cut in standing:
        if grain.floor(cut.at) != cut.at:
            raise ContractError(
                f"topic {name} was cut at {cut.at:%Y-%m-%d %H:%M}, which begins no {grain.value}: its slices had another length",
                remedy="declare the length that it had; slices are written once and never cut anew",
            )
    return SlicedTopic(topic, grain, standing, dict(begin), dict(end))


def _history(
    settings: Settings,
    topic: Topic,
    grain: Grain,
    since: datetime,
    opening: datetime,
    begin: dict[int, int],
    end: dict[int, int],
) -> list[Cut]:
    """Cuts of what was in the topic before we first saw it, by the broker's timestamp index: nothing else places it."""
    earliest_ms = client.earliest_timestamp(settings, topic)
    # Clamped as numbers: a producer's stamp can be any, also one that is no date.
    since_ms, opening_ms = since.timestamp() * 1000, opening.timestamp() * 1000
    first_ms = min(max(opening_ms if earliest_ms is None else earliest_ms, since_ms), opening_ms)
    first = Slice.containing(datetime.fromtimestamp(first_ms / 1000, UTC), grain)
    boundaries = [piece.start for piece in slices_between(first, Slice(opening, grain))]
    answers = client.offsets_for_times(settings, topic, boundaries[1:])
    later = first_cuts(boundaries[1:], answers, begin, end) if boundaries[1:] else []
    return [Cut(first.start, begin), *later]


def _missed(
    settings: Settings, topic: Topic, grain: Grain, last: Cut, now: datetime, end: dict[int, int]
) -> list[tuple[list[Cut], str]]:
    """Cuts since the last one: by arrival where we were there at the turn, else by the index within what arrived since."""
    current = Slice.containing(now, grain)
    boundaries = [piece.start for piece in slices_between(Slice(last.at, grain), current)][1:]
    found: list[tuple[list[Cut], str]] = []
    by_arrival = boundaries[-1] if now - boundaries[-1] <= ARRIVAL_SLACK else None
    by_index = [at for at in boundaries if at != by_arrival]
    if by_index:
        answers = client.offsets_for_times(settings, topic, by_index)
        begin = {partition: last.offsets.get(partition, 0) for partition in topic.partitions}
        found.append((first_cuts(by_index, answers, begin, end), "index"))
    if by_arrival:
        found.append(([next_cut(found[-1][0][-1] if found else last, by_arrival, end)], "arrival"))
    return found
