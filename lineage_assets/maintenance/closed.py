"""Which slices are over: their time is past, and what is written into them from now on is somebody's repair.

Belongs here: the rule, from ledger and commit records alone. Does not belong here: what is done with a closed slice.
"""

from __future__ import annotations

from collections.abc import Sequence

from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Commit, Lake, commits
from lineage_assets.lineage.content import Entries, by_slice, summary
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.record import CommitRecord, TopicInput
from lineage_assets.lineage.slices import Cut, Grain, Slice
from lineage_assets.reporting.behind import consumed


class Closed:
    """Tables as they were when they were first asked for."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._entries: dict[str, dict[str | None, Entries]] = {}
        self._whole: dict[tuple[str, str], tuple[Commit, CommitRecord]] = {}
        self._cuts: dict[TopicRef, Sequence[Cut]] = {}
        self._ends: dict[tuple[str, str], dict[int, int]] = {}

    def slices(self, asset: str, grain: Grain) -> list[str]:
        """A table's closed slices, oldest first."""
        return sorted(key for key in self._of(asset) if key is not None and self.closed(asset, key, grain))

    def whole(self, asset: str, key: str) -> tuple[Commit, CommitRecord] | None:
        """The newest commit of a slice with the record of all that it holds."""
        entries = self._of(asset).get(key)
        if entries and (asset, key) not in self._whole:
            self._whole[asset, key] = (entries[0][0], summary(entries))
        return self._whole.get((asset, key))

    def closed(self, asset: str, key: str, grain: Grain) -> bool:
        """Whether every topic is cut at the slice's end and the table is past it, and so is every table that it reads."""
        entry = self.whole(asset, key)
        if entry is None:
            return False
        for topic in entry[1].topics:
            if not self._passed(asset, Slice.of(key, grain), topic):
                return False
        for one in entry[1].tables:
            if one.commits is None:
                continue
            source = self.whole(one.table, key)
            if source is None or not consumed(entry, source) or not self.closed(one.table, key, grain):
                return False
        return True

    def forget(self, asset: str) -> None:
        """Look at a table anew the next time: it was written."""
        self._entries.pop(asset, None)
        for place in [place for place in self._whole if place[0] == asset]:
            del self._whole[place]

    def _of(self, asset: str) -> dict[str | None, Entries]:
        if asset not in self._entries:
            self._entries[asset] = dict(by_slice(commits(self._lake, asset)))
        return self._entries[asset]

    def _passed(self, asset: str, piece: Slice, topic: TopicInput) -> bool:
        ref = TopicRef(topic.cluster, topic.topic, topic.topic_id)
        if ref not in self._cuts:
            self._cuts[ref] = ledger.cuts(self._lake, ref)
        closing = next((cut for cut in self._cuts[ref] if cut.at == piece.end), None)
        if closing is None:
            return False
        ends = self._ends_of(asset, topic.topic_id)
        return all(ends.get(partition, 0) >= offset for partition, offset in closing.offsets.items())

    def _ends_of(self, asset: str, topic_id: str) -> dict[int, int]:
        """Where what a table holds of a topic ends; by single records, which is cheap while a slice grows."""
        if (asset, topic_id) not in self._ends:
            ends: dict[int, int] = {}
            for entries in self._of(asset).values():
                for _, record in entries:
                    for topic in record.topics:
                        if topic.topic_id == topic_id:
                            for partition, held in topic.ranges.items():
                                ends[partition] = max(ends.get(partition, 0), held.end)
            self._ends[asset, topic_id] = ends
        return self._ends[asset, topic_id]
