"""Maintenance as a Dagster job on a schedule: what `lineage maintain` does, with its log in the UI.

Belongs here: the job around maintenance/run.py. Does not belong here: what it does.
"""

# No postponed annotations here: Dagster reads the type of `context` and does not resolve text.

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lineage_assets.settings import settings

if TYPE_CHECKING:
    from lineage_assets.reporting.collector import Managed

EVERY = "10 * * * *"
"""Ten minutes after the turn of an hour its slice is passed: the stream and what follows it have had their time."""


def build_maintenance(tables: "Sequence[Managed]") -> dg.Definitions:
    """A job over these tables, and the schedule that starts it, on by default."""

    @dg.op(name="maintain_tables", description="Compacts, checkpoints, vacuums, and shortens what grew too long.")
    def tend(context: dg.OpExecutionContext) -> None:
        from lineage_assets.maintenance.policy import policy
        from lineage_assets.maintenance.run import maintain

        config = settings()
        done = maintain(config, context.instance, tables, policy(config), say=context.log.info)
        context.log.info(f"{done.told()}")
        if done.problems:
            raise dg.Failure("; ".join(done.problems))

    @dg.job(
        name="maintain",
        executor_def=dg.in_process_executor,
        # Two at once do no harm, and no good either: the next hour's run does what this one left.
        tags={"dagster/max_retries": "0", "dagster/max_runtime": str(2 * 3600)},
        description="What `lineage maintain` does: compacts closed slices, writes checkpoints, removes what nobody needs.",
    )
    def job() -> None:
        tend()

    schedule = dg.ScheduleDefinition(
        name="maintain_hourly", job=job, cron_schedule=EVERY, default_status=dg.DefaultScheduleStatus.RUNNING
    )
    return dg.Definitions(jobs=[job], schedules=[schedule])
