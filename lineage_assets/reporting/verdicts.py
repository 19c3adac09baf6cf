"""Outcomes of a slice's checks as Dagster's check evaluations, one for each check and slice.

Belongs here: the one place that touches Dagster's private target type. Does not belong here: deciding an outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import dagster as dg

from lineage_assets.lineage.record import CheckOutcome


def verdicts(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, outcomes: Mapping[str, Sequence[CheckOutcome]]
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    """Outcomes by slice, to yield after the asset's MaterializeResult.

    A run of one slice gives plain results, to which Dagster adds slice and materialization. A result knows one verdict
    for a run, not one for each slice of a run, so for several slices the evaluations are built here.
    """
    selected = {check.name for check in context.selected_asset_check_keys if check.asset_key == asset}
    if len(outcomes) > 1:
        yield from _evaluations(context, asset, outcomes, selected)
        return
    for results in outcomes.values():
        for outcome in results:
            if outcome.name in selected:
                yield dg.AssetCheckResult(
                    passed=outcome.passed,
                    asset_key=asset,
                    check_name=outcome.name,
                    severity=dg.AssetCheckSeverity[outcome.severity],
                    metadata=describe(outcome),
                )


def _evaluations(
    context: dg.AssetExecutionContext,
    asset: dg.AssetKey,
    outcomes: Mapping[str, Sequence[CheckOutcome]],
    selected: Set[str],
) -> Iterator[dg.AssetCheckEvaluation]:
    """Each verdict points at the materialization that it is about: without its target it counts as not done."""
    from dagster._core.definitions.asset_checks.asset_check_evaluation import (
        AssetCheckEvaluationTargetMaterializationData as Target,
    )

    keys = list(outcomes)
    stored = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset, asset_partitions=keys), limit=4 * len(keys) + 4
    ).records
    targets: dict[str | None, Target] = {}
    for one in stored:
        if one.run_id == context.run_id:
            targets.setdefault(
                one.partition_key, Target(storage_id=one.storage_id, run_id=one.run_id, timestamp=one.timestamp)
            )
    for key, results in outcomes.items():
        for outcome in results:
            if outcome.name in selected:
                yield dg.AssetCheckEvaluation(
                    asset_key=asset,
                    check_name=outcome.name,
                    passed=outcome.passed,
                    severity=dg.AssetCheckSeverity[outcome.severity],
                    partition=key,
                    blocking=outcome.blocking,
                    target_materialization_data=targets.get(key),
                    metadata=describe(outcome),
                )


def describe(outcome: CheckOutcome) -> dict[str, dg.MetadataValue]:
    """Number and share of failing records, and up to three of them by place, never by value."""
    share = outcome.failed / outcome.total if outcome.total else 0.0
    found: dict[str, dg.MetadataValue] = {
        "failing": dg.MetadataValue.int(outcome.failed),
        "of": dg.MetadataValue.int(outcome.total),
        "share": dg.MetadataValue.float(share),
    }
    if outcome.examples:
        found["examples"] = dg.MetadataValue.text(", ".join(outcome.examples))
    return found
