"""The collector's sensor: what was committed goes to the ledger and shows in the graph. And the check that it keeps.

Belongs here: what Dagster calls around reporting/collector.py. Does not belong here: what it does in a tick.
"""

# No postponed annotations here: Dagster reads the type of `context` and does not resolve text.

import json
from collections.abc import Iterator, Sequence

import dagster as dg

from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.reporting import covered
from lineage_assets.reporting.collector import Managed, collect, foreign_check, foreign_metadata
from lineage_assets.settings import settings

LARGEST_LOG = 1_000_000
BUDGET_S = 40.0
"""Dagster ends a tick after 60 s: stop in time, the next tick goes on."""


def collector_sensor(tables: Sequence[Managed]) -> dg.SensorDefinition:
    """One sensor for all managed tables of the code location."""

    @dg.sensor(
        name="collector",
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reads the Delta logs of all managed tables: keeps every commit's record in the ledger, and reports "
        "what streams and failed runs committed. Each version is reported once.",
    )
    def collector(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        done = collect(
            context.instance, settings().lake_env, tables, json.loads(context.cursor or "{}"), budget_s=BUDGET_S
        )
        for gap in done.gaps:
            context.log.warning(gap)
        for error in done.problems:
            context.log.error(str(error))
        if done.problems and not done.events:
            raise done.problems[0]
        # The events are stored already, all of a table or none: Dagster's own way is one by one, and again after a crash.
        said = f"reported {done.events} events" if done.events else "no news"
        return dg.SensorResult(cursor=json.dumps(done.cursor), skip_reason=said)

    return collector


def foreign_checks(tables: Sequence[Managed]) -> dg.AssetChecksDefinition:
    """Of every managed table: each commit carries its lineage. The collector reports it when it changes, a run when it runs."""

    @dg.multi_asset_check(name="no_foreign_commits", specs=[foreign_check(one.key) for one in tables], can_subset=True)
    def no_foreign_commits(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        lake = settings().lake_env
        for one in tables:
            if one.foreign_check not in context.selected_asset_check_keys:
                continue
            log = ledger.read_log(lake, one.asset, at_most=LARGEST_LOG)
            found = covered.foreign([] if log is None else log.entries)
            yield dg.AssetCheckResult(
                passed=not found.entries,
                asset_key=one.key,
                check_name=one.foreign_check.name,
                severity=dg.AssetCheckSeverity.WARN,
                metadata=foreign_metadata("" if log is None else log.table_id, found),
            )

    return no_foreign_commits
