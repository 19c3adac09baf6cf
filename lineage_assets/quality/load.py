"""Contracts from a user's files, compiled once.

Belongs here: finding the class, the cache, errors about the file. Does not belong here: what pandera means (compiler.py).
A code location loads contracts at every start, and importing pandera takes seconds: a contract that was compiled before
comes from the user's cache folder, without pandera.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from lineage_assets.errors import ContractError
from lineage_assets.quality.contract import Contract


def load_contract(path: Path, class_name: str) -> Contract:
    """The contract of a pandera DataFrameModel in a user's file.

    ContractError says file, line and field, what was expected, and the nearest right name.
    """
    path = path.absolute()
    if not path.is_file():
        names = [one.name for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ContractError(f"{path}: there is no such file", remedy=_nearest(path.name, names) or "write the contract")
    cached = cache_folder() / f"{_key(path, class_name)}.json"
    try:
        return Contract.from_json(cached.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        contract = _compile(path, class_name)
    _write(cached, contract.to_json())
    return contract


def cache_folder() -> Path:
    """Where compiled contracts are kept: below $LINEAGE_CACHE, by default ~/.cache/lineage_assets."""
    base = os.environ.get("LINEAGE_CACHE") or Path.home() / ".cache" / "lineage_assets"
    return Path(base).expanduser() / "contracts"


def _key(path: Path, class_name: str) -> str:
    """All that a compiled contract depends on: the folder's code, which it may import, this package's, and pandera."""
    digest = hashlib.sha256(f"{path}\0{class_name}\0{importlib.metadata.version('pandera')}".encode())
    package = Path(__file__).parent
    sources = [
        package.parent / "lineage" / "names.py",
        *sorted(package.glob("*.py")),
        *sorted(path.parent.glob("*.py")),
    ]
    for source in sources:
        content = source.read_bytes()
        digest.update(f"\0{source.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _write(target: Path, text: str) -> None:
    """Whole or not at all: several processes load at once. A cache that cannot be written is only slow."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            file.write(text)
        Path(file.name).replace(target)
    except OSError:
        return


def _compile(path: Path, class_name: str) -> Contract:
    lines = _lines(path)
    module = _import(path)
    import pandera.pandas as pa

    from lineage_assets.quality.compiler import compile_model

    def where(field: str | None) -> str:
        line = lines.get((class_name, field)) or lines.get((class_name, None))
        place = f"{path}:{line}" if line else str(path)
        return f"{place}: {class_name}" + (f".{field}" if field else "")

    model = getattr(module, class_name, None)
    models = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, pa.DataFrameModel)]
    if model is None:
        remedy = _nearest(class_name, [n for n in models if n != "DataFrameModel"])
        raise ContractError(
            f"{path}: it has no class {class_name}", remedy=remedy or "declare a pandera DataFrameModel"
        )
    if class_name not in models:
        raise ContractError(
            f"{where(None)} is not a pandera DataFrameModel",
            remedy=f"write class {class_name}(pa.DataFrameModel), with import pandera.pandas as pa",
        )
    try:
        return compile_model(model, where)
    except ContractError:
        raise
    except Exception as error:
        # pandera raises errors of its own, TypeError and others for a declaration that it cannot read.
        said = " ".join(str(error).split())
        raise ContractError(f"{where(None)}: pandera cannot read the model: {said}", remedy="correct it") from error


def _lines(path: Path) -> dict[tuple[str, str | None], int]:
    """Where each class and field stands; by its alias too."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ContractError(
            f"{path}:{line}: {getattr(error, 'msg', error)}", remedy="correct the Python there"
        ) from error
    found: dict[tuple[str, str | None], int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        found[node.name, None] = node.lineno
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[node.name, statement.target.id] = statement.lineno
                for keyword in getattr(statement.value, "keywords", []):
                    if keyword.arg == "alias" and isinstance(keyword.value, ast.Constant):
                        found[node.name, str(keyword.value.value)] = statement.lineno
    return found


def _import(path: Path) -> ModuleType:
    """Runs a user's file. Files beside it can be imported by name, and are forgotten afterwards: every folder may have
    a contract.py of its own."""
    name = f"lineage_contract_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ContractError(f"{path} is not a Python file", remedy="give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    with _importable(path.parent):
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            # Whatever a user's module raises when it runs is told with its line in that file.
            frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
            place = f"{path}:{frames[-1]}" if frames else str(path)
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ContractError(f"{place}: {said}", remedy="correct the contract's file") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent == folder:
                del sys.modules[name]


def _nearest(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are {', '.join(sorted(known))}" if known else ""
