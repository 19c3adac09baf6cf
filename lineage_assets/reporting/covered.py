"""What the commits of a table have in store for Dagster: which slice each one changed, and which are reported already.

Belongs here: from ledger entries and stored materializations to what is pending, and to the record of a whole slice.
Does not belong here: when something is reported and how (collector.py), Dagster's storage (instance.py, store.py).

A materialization that no run reported covers every version of its slice up to its own (`delta/version`), for the
collector leaves none behind. A run's covers the versions that it names, if they are that run's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.content import DATA_KINDS, by_slice, standing, summary
from lineage_assets.lineage.ledger.commit_records import Entry, parse_spans
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.reporting.instance import Materialized

Key = str | None
"""A slice, or None for a table without slices."""

Kept = Callable[[int, int, Key], Sequence[Entry]]
"""Entries of a table from one version to another, both included: of all slices, or of one and the RESTOREs."""

HOUSEKEEPING = frozenset({"VACUUM START", "VACUUM END"})
"""Commits that Delta itself makes and that change nothing in the table."""


def changes(entries: Iterable[Entry], undone: Mapping[int, Sequence[Entry]]) -> dict[Key, list[Entry]]:
    """Per slice the commits that changed its rows, oldest first. A RESTORE changed the slices of what it has undone."""
    found: dict[Key, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.kind in DATA_KINDS:
            found[entry.slice].append(entry)
        elif entry.restored_to is not None:
            for key in dict.fromkeys(one.slice for one in undone[entry.version] if one.kind in DATA_KINDS):
                found[key].append(entry)
    return dict(found)


def pending(table_id: str, of_slice: Sequence[Entry], stored: Iterator[Materialized]) -> list[Entry]:
    """Those of a slice's commits that none of its stored materializations (newest first) covers."""
    left = list(of_slice)
    for one in stored:
        if not left:
            break
        left = [entry for entry in left if not covers(one, table_id, entry)]
        if not one.run_id:
            break
    return left


def covers(one: Materialized, table_id: str, entry: Entry) -> bool:
    """Whether a stored materialization stands for a commit of this table."""
    if not one.run_id:
        version = whole_at(one, table_id)
        return version is not None and entry.version <= version
    spans = parse_spans(str(one.metadata.get("delta/versions", "")))
    return entry.run == one.run_id and any(start <= entry.version < end for start, end in spans)


def whole_at(one: Materialized, table_id: str) -> int | None:
    """The version whose state a runless materialization tells; None when it tells of another table of that name."""
    if one.run_id or one.metadata.get("delta/table_id") != table_id:
        return None
    return int(one.metadata["delta/version"])


@dataclass(frozen=True, slots=True)
class Whole:
    """All that a slice holds, in one record: None when nothing of it stands. `gap` says what the record cannot know."""

    record: CommitRecord | None
    gap: str = ""


def whole(key: Key, history: Sequence[Commit]) -> Whole:
    """The record of a slice from its commits and the RESTOREs, newest first."""
    found = by_slice(history).get(key, [])
    return _summed(found) if found else Whole(None)


def grown(key: Key, new: Sequence[Entry], base: CommitRecord | None, base_version: int) -> Whole:
    """The record of a slice from its new commits (oldest first, no RESTORE) and the record of what was before them."""
    history = [entry.commit() for entry in reversed(new) if entry.version > base_version]
    found = by_slice(history).get(key, [])
    if base is not None and (not found or found[-1][1].kind != "replace"):
        found = [*found, (Commit(base_version, 0, "", base), base)]
    return _summed(found) if found else Whole(None)


def base_of(one: Materialized) -> CommitRecord | None:
    """The record that a materialization tells."""
    return records.read(str(one.metadata.get("lineage/commit", "")))


def _summed(found: Sequence[tuple[Commit, CommitRecord]]) -> Whole:
    try:
        return Whole(summary(found))
    except ValueError as error:
        # Ranges with a hole between them: records of commits in between are gone. What came after is still known.
        kept = list(found)
        while len(kept) > 1:
            kept = kept[: len(kept) // 2]
            try:
                summary(kept)
            except ValueError:
                continue
            break
        for entry in found[len(kept) :]:
            try:
                summary([*kept, entry])
            except ValueError:
                break
            kept.append(entry)
        return Whole(summary(kept), f"counts and ranges begin at version {kept[-1][0].version}: {error}")


@dataclass(frozen=True, slots=True)
class Foreign:
    """Commits without a record that no RESTORE has undone."""

    entries: tuple[Entry, ...]

    @property
    def versions(self) -> list[int]:
        return [one.version for one in self.entries]


def foreign(entries: Sequence[Entry]) -> Foreign:
    """The foreign commits among entries (oldest first) whose work still stands."""
    stands = {commit.version for commit in standing([_bare(one) for one in reversed(entries)])}
    return Foreign(
        tuple(one for one in entries if one.foreign and one.operation not in HOUSEKEEPING and one.version in stands)
    )


def _bare(entry: Entry) -> Commit:
    return Commit(entry.version, entry.timestamp_ms, entry.operation, None, entry.restored_to)


@dataclass(frozen=True, slots=True)
class State:
    """A slice as of some version: the newest that changed it, when, and the record of all that it holds."""

    newest: Entry
    whole: Whole


class Slices:
    """What every slice of one table holds, by entries that are given oldest first, in pieces of any length.

    `kept` answers what was committed before, for a RESTORE: all entries of the table between two versions.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.states: dict[Key, State] = {}

    def take(self, entries: Sequence[Entry]) -> dict[Key, list[Entry]]:
        """Take in the next entries; returns which of them changed which slice."""
        undone = {
            one.version: self._kept(one.restored_to + 1, one.version - 1, None)
            for one in entries
            if one.restored_to is not None
        }
        found = changes(entries, undone)
        for key, new in found.items():
            before = self.states.get(key)
            if any(one.restored_to is not None for one in new):
                history = [one.commit() for one in reversed(self._kept(0, new[-1].version, key))]
                result = whole(key, history)
            elif before is None or before.whole.record is None:
                result = grown(key, new, None, -1)
            else:
                result = grown(key, new, before.whole.record, before.newest.version)
            gap = result.gap or (before.whole.gap if before is not None and new[0].kind != "replace" else "")
            self.states[key] = State(new[-1], Whole(result.record, gap))
        return found
