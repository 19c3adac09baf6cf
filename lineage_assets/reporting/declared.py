"""Which tables, topics and sources an asset graph declares, as the collector, `verify` and `rebuild` need them.

Belongs here: reading Dagster's asset graph. Does not belong here: declarations (components/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting.collector import VIEWS, Managed
from lineage_assets.reporting.conservation import Source

if TYPE_CHECKING:
    from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

TOPICS = "kafka"


@dataclass(frozen=True, slots=True)
class Declared:
    """What commands work on, whatever components declared it."""

    tables: list[Managed]
    sources: list[Source]
    topics: dict[dg.AssetKey, Grain]


def declared(graph: AssetGraph) -> Declared:
    """All of a code location."""
    tables, sources, topics = [], [], {}
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        grain = _grain(node.partitions_def)
        if key.path[0] == TOPICS and grain is not None:
            topics[key] = grain
        elif node.is_materializable and key.path[0] not in VIEWS.values():
            tables.append(Managed(key.to_user_string(), grain))
        if key.path[0] == "raw" and grain is not None:
            name = "/".join(key.path[1:])
            parents = [one for one in sorted(node.parent_keys) if one.path[0] == TOPICS]
            sources += [Source("/".join(one.path[2:]), name, grain) for one in parents]
    return Declared(tables, sources, topics)


def _grain(partitions: dg.PartitionsDefinition[Any] | None) -> Grain | None:
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return None
    return {grain.format: grain for grain in Grain}[partitions.fmt]
