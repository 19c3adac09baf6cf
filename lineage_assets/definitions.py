"""The code location: everything under defs/, with sensors and resources."""

from __future__ import annotations

from types import ModuleType

import dagster as dg


def build_defs(defs_module: ModuleType | None = None) -> dg.Definitions:
    """Load a defs folder (ours, or a test's own) into a code location. Talks to no service."""
    import warnings
    from pathlib import Path

    import lineage_assets.defs
    from lineage_assets.components.mistakes import told_plainly
    from lineage_assets.components.resources import pyspark
    from lineage_assets.components.sensors import build_sensors

    tree = dg.ComponentTree.from_module(
        defs_module=defs_module or lineage_assets.defs, project_root=Path(__file__).parents[1]
    )
    with warnings.catch_warnings(), told_plainly(tree.defs_module_path):
        # Partitioned checks and components are previews of Dagster's; that is our decision, not news for a user.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        loaded = tree.build_defs_at_path(tree.defs_module_path)
        sensors = build_sensors(tree)
    return dg.Definitions.merge(
        loaded,
        dg.Definitions(sensors=sensors, resources={"pyspark": pyspark}, executor=dg.in_process_executor),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """What workspace.yaml points at."""
    return build_defs()
