"""The code location: everything under defs/, with sensors and resources."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from lineage_assets.spark.event_table import EventTable


def build_defs(defs_module: ModuleType | None = None) -> dg.Definitions:
    """Load a defs folder (ours, or a test's own) into a code location. Talks to no service."""
    return build(defs_module)[0]


def build(defs_module: ModuleType | None = None) -> tuple[dg.Definitions, dg.ComponentTree]:
    """The same, with the components that were declared."""
    import warnings
    from pathlib import Path

    import lineage_assets.defs
    from lineage_assets.components.mistakes import told_plainly
    from lineage_assets.components.resources import pyspark
    from lineage_assets.components.sensors import build_sensors
    from lineage_assets.components.streams import build_streams

    tree = dg.ComponentTree.from_module(
        defs_module=defs_module or lineage_assets.defs, project_root=Path(__file__).parents[1]
    )
    with warnings.catch_warnings(), told_plainly(tree.defs_module_path):
        # Partitioned checks and components are previews of Dagster's; that is our decision, not news for a user.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        loaded = tree.build_defs_at_path(tree.defs_module_path)
        own = dg.Definitions(resources={"pyspark": pyspark}, executor=dg.in_process_executor)
        sensors, streams = build_sensors(tree), build_streams(tree)
    return dg.Definitions.merge(loaded, own, sensors, streams), tree


def event_table(topic: str) -> EventTable:
    """The event table that is declared over a topic. Raises ContractError for a topic that has none."""
    from lineage_assets.components.declared import nearest
    from lineage_assets.components.streams import event_tables
    from lineage_assets.errors import ContractError

    known = event_tables(build()[1])
    if topic not in known:
        raise ContractError(f"no event table is declared over topic {topic!r}", remedy=nearest(topic, list(known)))
    return known[topic]


@dg.definitions
def defs() -> dg.Definitions:
    """What workspace.yaml points at."""
    return build_defs()
