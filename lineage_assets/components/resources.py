"""Resources of the code location: today the Spark Connect session.

Belongs here: what a step gets from Dagster. Does not belong here: what a step does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from lineage_assets.settings import settings

if TYPE_CHECKING:
    from dagster_pyspark import PySparkResource


@dg.resource(description="A session on the Spark Connect server of the settings, opened when a step needs it.")
def pyspark(_: dg.InitResourceContext) -> Iterator[PySparkResource]:
    """dagster-pyspark's resource, imported late: a code location that is only loaded needs no pyspark."""
    from dagster_pyspark import PySparkResource

    from lineage_assets.spark.session import require_answer, translated

    config = settings()
    require_answer(config)
    resource = PySparkResource(spark_config={"spark.remote": config.spark})
    with translated(config), resource.process_config_and_initialize_cm() as ready:
        ready.spark_session.conf.set("spark.sql.session.timeZone", "UTC")
        yield ready
        ready.spark_session.stop()
