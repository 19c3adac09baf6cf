"""The dbt manifest, and the column lineage that is parsed from its compiled SQL: made at set-up, read in milliseconds.

Belongs here: making the two files in `<project>/target`, telling whether they fit the project's files, reading them.
Does not belong here: what a manifest means (nodes.py).

`python -m lineage_assets.marts.manifest [PROJECT]` makes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage_assets.errors import FatalError
from lineage_assets.marts.nodes import Project

MANIFEST, COLUMNS, PARTIAL_PARSE = "manifest.json", "columns.json", "partial_parse.msgpack"
SOURCES = ("dbt_project.yml", "profiles.yml", "packages.yml", "models/**/*", "macros/**/*", "tests/**/*", "seeds/**/*")
TIMEOUT_S = 300

ColumnSources = Mapping[str, list[tuple[str, str]]]
"""Output column -> the (asset, column) pairs that its values come from."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A project as dbt compiled it. `columns` has the column lineage of each mart by unique id."""

    directory: Path
    manifest: Mapping[str, Any]
    columns: Mapping[str, ColumnSources]

    @property
    def project(self) -> Project:
        return Project.of(self.manifest)

    @property
    def partial_parse(self) -> Path:
        """What spares dbt the parsing of the project."""
        return self.directory / "target" / PARTIAL_PARSE


def load(directory: Path) -> Compiled:
    """The compiled project; made now, with a message, when it is missing or older than the project's files."""
    if not fits(directory):
        print(f"compiling the dbt project {directory} (its manifest is missing or out of date) ...", file=sys.stderr)
        make(directory)
    target = directory / "target"
    return Compiled(
        directory, json.loads((target / MANIFEST).read_bytes()), json.loads((target / COLUMNS).read_bytes())["columns"]
    )


def fits(directory: Path) -> bool:
    """Whether the stored manifest was made from the project's files as they are."""
    target = directory / "target"
    try:
        made_from = json.loads((target / COLUMNS).read_bytes())["project"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(made_from == digest(directory)) and (target / MANIFEST).exists()


def digest(directory: Path) -> str:
    """Hash of all files that dbt reads. Times say nothing: a checkout or a copy sets them anew."""
    found = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in directory.glob(pattern) if path.is_file()}):
        found.update(f"{path.relative_to(directory)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def make(directory: Path) -> None:
    """Compile the project with dbt, in a process of its own, and parse its columns. No table, no service is needed.

    Several processes may do so at once: each file appears whole. FatalError with dbt's words when dbt refuses.
    """
    if not (directory / "dbt_project.yml").exists():
        raise FatalError(
            f"{directory} is no dbt project: it has no dbt_project.yml", remedy="give the project's folder"
        )
    made_from = digest(directory)
    target = directory / "target"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target) as scratch:
        made = Path(scratch)
        _compile(directory, made)
        manifest = json.loads((made / MANIFEST).read_bytes())
        columns = {uid: lineage for uid, lineage in column_sources(manifest)}
        (made / COLUMNS).write_text(json.dumps({"project": made_from, "columns": columns}, sort_keys=True))
        for name in (MANIFEST, PARTIAL_PARSE, COLUMNS):
            with suppress(FileNotFoundError):
                os.replace(made / name, target / name)


def column_sources(manifest: Mapping[str, Any]) -> Iterator[tuple[str, ColumnSources]]:
    """Column lineage of each mart, from its compiled SQL and the declared columns of what it reads.

    FatalError when a column cannot be traced: a lineage that is guessed or silently short is worse than none.
    """
    from lineage_assets.lineage.columns import column_lineage

    project = Project.of(manifest)
    for uid, node in project.marts.items():
        parents = {_relation(project, parent): parent for parent in project.parents(uid)}
        schemas = {relation: _types(project, parent) for relation, parent in parents.items()}
        lineage = column_lineage(node["compiled_code"], "duckdb", schemas)
        lost = [*lineage.unresolved, *(name for name in node["columns"] if name not in lineage.columns)]
        if lost:
            raise FatalError(
                f"column lineage of {node['original_file_path']}: cannot tell where {', '.join(dict.fromkeys(lost))} comes from",
                remedy="declare all columns of the sources and models that it reads in their YAML files",
            )
        yield (
            uid,
            {
                column: [(project.asset(parents[one.table]), one.column) for one in sources]
                for column, sources in lineage.columns.items()
            },
        )


def _relation(project: Project, uid: str) -> str:
    return str((project.sources.get(uid) or project.nodes[uid])["relation_name"])


def _types(project: Project, uid: str) -> dict[str, str]:
    node = project.sources.get(uid) or project.nodes[uid]
    return {name: column.get("data_type") or "unknown" for name, column in node["columns"].items()}


def _compile(directory: Path, target: Path) -> None:
    database = target / "marts.duckdb"
    done = subprocess.run(
        [sys.executable, "-m", "dbt.cli.main", "compile", "--target-path", str(target), "--log-path", str(target)],
        cwd=directory,
        env={
            **os.environ,
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
            "DBT_PROFILES_DIR": str(directory),
            "LINEAGE_MARTS_SHAPES": "1",
            "LINEAGE_MARTS_DB": str(database),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise FatalError(
            f"dbt cannot compile {directory}:\n{(done.stdout + done.stderr)[-4000:]}",
            remedy="correct the project's files",
        )


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "dbt_project").absolute())
