"""Which marts of a finished dbt run are fit to be published, and publishing those.

Belongs here: the verdict by test results, the commit record of a mart. Does not belong here: dbt's types, the Delta write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lineage_assets.errors import LineageError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TableInput
from lineage_assets.marts.nodes import Project
from lineage_assets.marts.pins import Pin
from lineage_assets.marts.publish import Published, publish, schema_hash
from lineage_assets.settings import Settings

PASSED = "pass"
BUILT = "success"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a node of a run ended: dbt's status, failing rows of a test, and a test's severity (ERROR or WARN)."""

    status: str
    failures: int
    severity: str

    @property
    def blocks(self) -> bool:
        """Whether a test ended so that its mart may not be published; a test that could not run is no pass."""
        return self.status not in (PASSED, "warn")


def refused(project: Project, outcomes: Mapping[str, Outcome]) -> dict[str, list[str]]:
    """Per built mart that may not be published the names of the tests that say so."""
    said: dict[str, list[str]] = {}
    for uid, outcome in outcomes.items():
        if project.nodes.get(uid, {}).get("resource_type") == "test" and outcome.blocks:
            for mart in project.tested(uid):
                said.setdefault(mart, []).append(project.nodes[uid]["name"])
    return said


@dataclass(slots=True)
class Publisher:
    """Publishes the marts of one run. `report` says per asset what stands now, or why not; `failed` has the faults."""

    settings: Settings
    connection: Any
    project: Project
    pins: Mapping[str, Pin]
    run: str
    report: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _published: dict[str, Published] = field(default_factory=dict)

    def publish_all(self, outcomes: Mapping[str, Outcome]) -> None:
        """Publish every mart that was built and that no test refuses; one mart's fault does not keep another back."""
        said = refused(self.project, outcomes)
        for uid in self.project.in_order():
            if uid not in outcomes or outcomes[uid].status != BUILT:
                continue
            asset = self.project.asset(uid)
            if uid in said:
                self.report[asset] = {"refused": sorted(said[uid])}
                continue
            try:
                done = self._publish(uid, outcomes)
            except Exception as error:
                # Whatever it is, of Delta, DuckDB or the disk: it is this mart's, is told, and fails the run at the end.
                self.failed[asset] = str(error).partition("\n")[0]
                self.report[asset] = {"failed": self.failed[asset]}
            else:
                self._published[asset] = done
                self.report[asset] = {"version": done.version, "commit": records.to_json(done.record)}

    def _publish(self, uid: str, outcomes: Mapping[str, Outcome]) -> Published:
        relation = self.project.nodes[uid]["relation_name"]
        with self.connection.cursor() as cursor:
            rows = cursor.sql(f"SELECT * FROM {relation}")
            ((total,),) = cursor.sql(f"SELECT count(*) FROM {relation}").fetchall()
            record = self._record(uid, outcomes, total, schema_hash(rows.limit(0).to_arrow_table().schema))
            return publish(
                self.settings.lake_env, lambda: cursor.sql(f"SELECT * FROM {relation}").to_arrow_reader(), record
            )

    def _record(self, uid: str, outcomes: Mapping[str, Outcome], total: int, schema: str) -> CommitRecord:
        node = self.project.nodes[uid]
        checks = tuple(
            CheckOutcome(
                name=self.project.nodes[test]["name"],
                passed=outcome.status == PASSED,
                severity="WARN" if outcome.severity.upper() == "WARN" else "ERROR",
                failed=outcome.failures,
                total=total,
                blocking=outcome.severity.upper() != "WARN",
            )
            for test, outcome in sorted(outcomes.items())
            if self.project.nodes.get(test, {}).get("resource_type") == "test" and uid in self.project.tested(test)
        )
        return CommitRecord(
            asset=self.project.asset(uid),
            env=self.settings.env,
            kind="replace",
            slice=None,
            inputs=tuple(self._input(asset) for asset in self.project.inputs(uid)),
            counts={"rows": total},
            reasons={},
            schema=schema,
            contract=str((node.get("contract") or {}).get("checksum") or ""),
            code=self.project.code_version(uid),
            run=self.run,
            written_at=datetime.now(UTC),
            checks=checks,
        )

    def _input(self, asset: str) -> TableInput:
        if done := self._published.get(asset):
            return TableInput(asset, done.table_id, read_at=done.version)
        if asset in self.pins:
            return self.pins[asset].as_input(asset)
        raise LineageError(f"{asset}, which it was made of, was not published", remedy="see that mart's own error")
