"""A mistake in a defs.yaml as one plain message: file, line, field, what was expected, and the nearest right name.

Belongs here: finding ours in what Dagster wraps around it, and wording what Dagster or pydantic found themselves.
Does not belong here: looking for mistakes (the component types do).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import ValidationError

from lineage_assets.components.declared import DeclarationError, first_line, line_of, nearest
from lineage_assets.errors import LineageError

_PLACED = re.compile(r"`attributes\.(?P<field>\S+) at (?P<file>.+):(?P<line>\d+)`")
_COMPONENT = re.compile(r"^Error while .*?(?P<folder>[^\s\[]+)\[(?P<index>\d+)\]:", re.MULTILINE)
_NO_TYPE = re.compile(r"Module `(?P<module>\S+)` (has no attribute `(?P<name>\w+)`|not found)")


@contextmanager
def told_plainly(defs: Path) -> Iterator[None]:
    """Turn whatever arises while the folder `defs` is loaded into a DeclarationError that says where it is."""
    try:
        yield
    except Exception as error:
        told = _told(error, defs)
        if told is None:
            raise
        raise told from _origin(error)


def _told(error: Exception, defs: Path) -> DeclarationError | None:
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, LineageError):
            return DeclarationError(one.message, remedy=one.remedy)
    if found := _NO_TYPE.search(str(error)):
        return _unknown_type(found, defs)
    # An error of PyYAML, by what it carries: the package comes with Dagster and is no dependency of ours.
    if (mark := getattr(error, "problem_mark", None)) is not None:
        return DeclarationError(f"{mark.name}:{mark.line + 1}: no valid YAML: {getattr(error, 'problem', error)}")
    at = _COMPONENT.search(str(error))
    if at is None:
        return None
    file = defs / at["folder"] / "defs.yaml"
    first = first_line(file, int(at["index"]))
    for one in chain:
        if isinstance(one, ValidationError):
            return _invalid(one, file, first)
    said = " ".join(str(chain[-1]).split()) or type(chain[-1]).__name__
    return DeclarationError(f"{file}:{first}: {said}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def _origin(error: Exception) -> BaseException | None:
    """What is behind our own message, such as the exception that a user's contract raised; else the error as it came."""
    for one in _chain(error):
        if isinstance(one, LineageError):
            return one.__cause__
    return error


def _unknown_type(found: re.Match[str], defs: Path) -> DeclarationError:
    wrong = found["module"] + (f".{found['name']}" if found["name"] else "")
    stands = re.compile(rf"^\s*type:\s*['\"]?{re.escape(wrong)}\b")
    for file in sorted(defs.rglob("*.yaml")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if stands.match(line):
                written = line.split(":", 1)[1].strip().strip("'\"")
                known = [f"lineage_assets.components.{name}" for name in _kinds()]
                return DeclarationError(
                    f"{file}:{number}: type: there is no component type {written!r}", remedy=nearest(written, known)
                )
    return DeclarationError(f"{defs}: there is no component type {wrong!r}", remedy=nearest(wrong, _kinds()))


def _kinds() -> list[str]:
    import lineage_assets.components as components

    return [name for name, one in vars(components).items() if isinstance(one, type) and issubclass(one, dg.Component)]


def _invalid(error: ValidationError, file: Path, first: int) -> DeclarationError:
    """The first of pydantic's findings; it gives no place for a value that has the wrong type."""
    import lineage_assets.components as components

    finding: dict[str, Any] = dict(error.errors()[0])
    parts = [str(part) for part in finding["loc"]]
    placed = _PLACED.search(str(error))
    if placed is not None:
        field, file, line = placed["field"], Path(placed["file"]), int(placed["line"])
    else:
        field = parts[0] if parts else ""
        line = line_of(file, field, finding["input"], first)
    at = f"{file}:{line}: {field}"
    kind: Any = getattr(components, error.title.removesuffix("Model"), None)
    match finding["type"]:
        case "extra_forbidden":
            known = list(kind.model_fields) if kind is not None else []
            return DeclarationError(f"{at}: there is no such attribute", remedy=nearest(field, known))
        case "missing":
            return DeclarationError(f"{at} is missing", remedy=f"add it: {_described(kind, field)}")
        case "literal_error":
            allowed = re.findall(r"'([^']*)'", finding["ctx"]["expected"])
            remedy = nearest(str(finding["input"]), allowed)
            return DeclarationError(
                f"{at}: {finding['input']!r} is not allowed; expected {finding['ctx']['expected']}", remedy=remedy
            )
    return DeclarationError(f"{at}: {finding['msg']}, not {finding['input']!r}", remedy=_described(kind, field))


def _described(kind: Any, field: str) -> str:
    info = kind.model_fields.get(field) if kind is not None else None
    return info.description or "" if info is not None else ""
