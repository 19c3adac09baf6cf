"""What all declarations share: partitions, finding each other, and mistakes told with file and line.

Belongs here: helpers of the component types. Does not belong here: any one type.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import dagster as dg

from lineage_assets.errors import ContractError, LineageError
from lineage_assets.lineage.slices import Grain

T = TypeVar("T", bound=dg.Component)


class DeclarationError(ContractError):
    """A mistake in what a user wrote under defs/, with its file and line."""


def partitions(grain: Grain, since: datetime) -> dg.TimeWindowPartitionsDefinition:
    """The slices of a topic as Dagster partitions, the running one included. All instants are UTC."""
    return dg.TimeWindowPartitionsDefinition(
        start=since.astimezone(UTC).strftime(grain.format),
        fmt=grain.format,
        cron_schedule=grain.cron,
        timezone="UTC",
        end_offset=1,
    )


def siblings(context: dg.ComponentLoadContext, kind: type[T]) -> list[T]:
    """All declarations of a type in this code location."""
    return context.component_tree.get_all_components(of_type=kind)


def nearest(wrong: str, known: Sequence[str]) -> str:
    """A remedy that names the nearest right name, or all of them."""
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(map(repr, sorted(known))) or 'none'}"


def known_type(types: Mapping[str, str], column: str) -> str:
    """A column's type as Spark spells it. Raises ContractError where the SQL does not tell it."""
    found = types.get(column, "unknown").lower()
    if found in ("unknown", "null", ""):
        raise ContractError(
            f"the type of column {column!r} cannot be told from the SQL", remedy="write CAST(… AS <type>)"
        )
    return found


def folder(context: dg.ComponentLoadContext) -> Path:
    """The folder of the defs.yaml that is being loaded."""
    path = Path(context.path)
    return path if path.is_dir() else path.parent


@contextmanager
def told_with_line(context: dg.ComponentLoadContext, field: str, value: object) -> Iterator[None]:
    """Name file, line and field of the attribute at fault in any of our errors that arise inside."""
    try:
        yield
    except DeclarationError:
        raise
    except LineageError as error:
        file = folder(context) / "defs.yaml"
        line = line_of(file, field, value, first_line(file, context.component_path.instance_key))
        raise DeclarationError(f"{file}:{line}: {field}: {error.message}", remedy=error.remedy) from error


def first_line(file: Path, number: object) -> int:
    """The first line of one of a file's documents, which are numbered from 0; the file's when it has no such document."""
    starts = [1]
    if file.is_file():
        starts += [n + 1 for n, line in enumerate(file.read_text().splitlines(), 1) if line.rstrip() == "---" and n > 1]
    return starts[number] if isinstance(number, int) and number < len(starts) else 1


def line_of(file: Path, field: str, value: object, first: int = 1) -> int:
    """From line `first` on: the line that sets a field to a value; else one that sets the field at all; else `first`."""
    lines = file.read_text().splitlines() if file.exists() else []
    setting = re.compile(rf"^\s*(- )?{re.escape(field)}\s*:")
    found = [number for number, line in enumerate(lines, 1) if number >= first and setting.match(line)]
    exact = [number for number in found if str(value) in lines[number - 1]]
    return (exact or found or [first])[0]
