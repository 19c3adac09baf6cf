"""Outcomes of a slice's checks as Dagster's check results.

Belongs here: what a verdict says to people. Does not belong here: deciding an outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dagster as dg

from lineage_assets.lineage.record import CheckOutcome


def results(asset: dg.AssetKey, outcomes: Sequence[CheckOutcome]) -> Iterator[dg.AssetCheckResult]:
    """One result for each outcome, to yield after the asset's own: Dagster adds the run's slice and materialization."""
    for outcome in outcomes:
        yield dg.AssetCheckResult(
            passed=outcome.passed,
            asset_key=asset,
            check_name=outcome.name,
            severity=dg.AssetCheckSeverity[outcome.severity],
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
