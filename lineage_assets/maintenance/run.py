"""All maintenance, in the order in which one part makes the next one cheaper.

Belongs here: the order, and what a run tells. Does not belong here: the parts (one module each).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lineage_assets.errors import ContractError, LineageError
from lineage_assets.maintenance import compaction, events, ledger, logs, vacuum
from lineage_assets.maintenance.policy import Policy
from lineage_assets.reporting.collector import Managed
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

PARTS = ("compact", "checkpoint", "vacuum", "shorten", "ledger", "events")


@dataclass(slots=True)
class Maintained:
    """What was done, part by part, and what could not be: the fault of one table keeps no other waiting."""

    compact: list[compaction.Compacted] = field(default_factory=list)
    checkpoint: list[logs.Checkpointed] = field(default_factory=list)
    vacuum: list[vacuum.Vacuumed] = field(default_factory=list)
    shorten: list[logs.Shortened] = field(default_factory=list)
    ledger: list[ledger.Tidied] = field(default_factory=list)
    events: events.Thinned | None = None
    problems: list[str] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def chosen(only: Sequence[str]) -> list[str]:
    """The parts to do, in order; all, if none is named. Raises ContractError for a name that is none."""
    for one in only:
        if one not in PARTS:
            raise ContractError(f"no part {one!r} of maintenance", remedy=f"known: {', '.join(PARTS)}")
    return [part for part in PARTS if not only or part in only]


def maintain(
    settings: Settings,
    instance: dg.DagsterInstance,
    tables: Sequence[Managed],
    policy: Policy,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Maintained:
    """Do what is to be done. Safe beside streams, runs and another maintenance, and to be killed anywhere."""
    done, lake = Maintained(), settings.lake_env
    for part in chosen(only):
        say(part)
        if part == "compact":
            _kept(done, lambda: done.compact.extend(_compacted(settings, tables, policy, say)))
        elif part == "ledger":
            _kept(done, lambda: done.ledger.extend(ledger.tidy(lake, policy)))
        elif part == "events":
            _kept(done, lambda: setattr(done, "events", events.thin(instance, policy, say)))
        else:
            for table in tables:
                _kept(done, lambda part=part, asset=table.asset: _of_table(done, lake, part, asset, policy))  # type: ignore[misc]
    return done


def _compacted(
    settings: Settings, tables: Sequence[Managed], policy: Policy, say: Callable[[str], None]
) -> list[compaction.Compacted]:
    return compaction.compact(settings, list(compaction.wanted(settings.lake_env, tables, policy)), policy, say)


def _of_table(done: Maintained, lake: Any, part: str, asset: str, policy: Policy) -> None:
    if part == "checkpoint" and (written := logs.checkpoint(lake, asset, policy)) is not None:
        done.checkpoint.append(written)
    elif part == "vacuum" and (cleared := vacuum.vacuum(lake, asset, policy)) is not None and cleared.files:
        done.vacuum.append(cleared)
    elif part == "shorten" and (shorter := logs.shorten(lake, asset, policy)) is not None:
        done.shorten.append(shorter)


def _kept(done: Maintained, step: Callable[[], None]) -> None:
    from deltalake.exceptions import DeltaError

    try:
        step()
    except (LineageError, DeltaError, OSError) as error:
        done.problems.append(str(error))
