"""What a dbt project's manifest says of its marts: asset keys, inputs, tests, code.

Belongs here: pure reading of a manifest, as dbt writes it or as it lives in dbt's process. Does not belong here: running dbt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Project:
    """The parts of a manifest that matter here: `nodes`, `sources` and `macros` by unique id."""

    nodes: Mapping[str, Node]
    sources: Mapping[str, Node]
    macros: Mapping[str, Node]
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Project:
        """From the JSON of `manifest.json`."""
        return cls(manifest["nodes"], manifest["sources"], manifest["macros"], manifest["metadata"]["project_name"])

    @property
    def marts(self) -> dict[str, Node]:
        """The models that are published: all but the ephemeral ones, which are part of who refers to them."""
        return {uid: node for uid, node in self.nodes.items() if is_mart(node)}

    def asset(self, unique_id: str) -> str:
        """`silver/clicks` of a source, `marts/user_value` of a model."""
        source = self.sources.get(unique_id)
        return f"{source['schema']}/{source['identifier']}" if source else f"marts/{self.nodes[unique_id]['name']}"

    def parents(self, unique_id: str) -> list[str]:
        """Sources and marts that a model or test reads, those behind its ephemeral models included, in order of name."""
        found: set[str] = set()
        for uid in self.nodes[unique_id]["depends_on"]["nodes"]:
            if uid in self.sources or is_mart(self.nodes.get(uid, {})):
                found.add(uid)
            elif uid in self.nodes:
                found.update(self.parents(uid))
        return sorted(found)

    def inputs(self, unique_id: str) -> list[str]:
        """The assets that a model reads."""
        return [self.asset(uid) for uid in self.parents(unique_id)]

    def in_order(self) -> list[str]:
        """The marts, each after those that it reads."""
        done: dict[str, None] = {}

        def visit(uid: str) -> None:
            for parent in self.parents(uid):
                if parent in self.nodes:
                    visit(parent)
            done.setdefault(uid)

        for uid in sorted(self.marts):
            visit(uid)
        return list(done)

    def tested(self, unique_id: str) -> list[str]:
        """The marts whose publication a test guards: the one that it is attached to, or else all that it reads."""
        test = self.nodes[unique_id]
        named = (_meta(test).get("dagster", {}).get("ref") or {}).get("name")
        if named:
            return [uid for uid, node in self.marts.items() if node["name"] == named]
        attached = test.get("attached_node")
        return [attached] if attached in self.marts else [uid for uid in self.parents(unique_id) if uid in self.nodes]

    def code_version(self, unique_id: str) -> str:
        """Hash of a model's SQL, of its ephemeral models' SQL, and of the project's macros that they call."""
        parts = sorted({self.nodes[uid]["raw_code"] for uid in self._written(unique_id)})
        return hashlib.sha256("\0".join([*parts, *sorted(self._macros(unique_id))]).encode()).hexdigest()[:16]

    def _written(self, unique_id: str) -> Iterator[str]:
        yield unique_id
        for uid in self.nodes[unique_id]["depends_on"]["nodes"]:
            if uid in self.nodes and not is_mart(self.nodes[uid]):
                yield from self._written(uid)

    def _macros(self, unique_id: str) -> set[str]:
        """The SQL of macros; dbt's own and the adapter's are left out: the locked requirements name those."""
        seen: set[str] = set()
        ahead = [macro for uid in self._written(unique_id) for macro in self.nodes[uid]["depends_on"]["macros"]]
        while ahead:
            macro = ahead.pop()
            if macro not in seen and macro in self.macros and self.macros[macro]["package_name"] == self.name:
                seen.add(macro)
                ahead.extend(self.macros[macro]["depends_on"]["macros"])
        return {self.macros[macro]["macro_sql"] for macro in seen}


def is_mart(node: Node) -> bool:
    """Whether a node is a model that is published."""
    return node.get("resource_type") == "model" and node["config"]["materialized"] != "ephemeral"


def _meta(node: Node) -> Mapping[str, Any]:
    meta: Mapping[str, Any] = node.get("meta") or node.get("config", {}).get("meta") or {}
    return meta
