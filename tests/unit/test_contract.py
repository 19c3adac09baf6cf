"""Contracts: what is understood of a pandera model, what is refused with which words, and the cache."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lineage_assets.errors import ContractError
from lineage_assets.quality.contract import Contract
from lineage_assets.quality.load import cache_folder, load_contract

HEAD = """\
from datetime import date, datetime
from decimal import Decimal
from typing import Optional

import numpy as np
import pandera.pandas as pa


"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LINEAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "contracts"


def declare(folder: Path, body: str, name: str = "M", head: str = HEAD) -> Contract:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contract.py").write_text(f"{head}class {name}(pa.DataFrameModel):\n{body}")
    return load_contract(folder / "contract.py", name)


def test_every_type_has_its_spark_type(tmp_path: Path) -> None:
    contract = declare(
        tmp_path,
        """
    a: str
    b: int
    c: np.int32
    d: float
    e: np.float32
    f: bool
    g: datetime
    h: date
    i: pa.Decimal = pa.Field(dtype_kwargs={"precision": 10, "scale": 2})
    j: bytes
    k: Optional[int]
    l: int = pa.Field(nullable=True)
""",
    )
    assert [(one.field, one.type, one.nullable) for one in contract.columns] == [
        ("a", "string", False),
        ("b", "bigint", False),
        ("c", "int", False),
        ("d", "double", False),
        ("e", "float", False),
        ("f", "boolean", False),
        ("g", "timestamp", False),
        ("h", "date", False),
        ("i", "decimal(10,2)", False),
        ("j", "binary", False),
        ("k", "bigint", True),
        ("l", "bigint", True),
    ]


def test_rules_come_from_the_type_the_checks_and_the_metadata(tmp_path: Path) -> None:
    contract = declare(
        tmp_path,
        """
    id: int = pa.Field(gt=0, metadata={"max_share": 0.02})
    email: str = pa.Field(nullable=True, metadata={"format": "email", "pii": True, "severity": "WARN"})
    price: float = pa.Field(ge=0, raise_warning=True, description="What it costs.")
""",
    )
    assert [(rule.message, rule.severity, rule.max_share) for rule in contract.rules] == [
        ("id: required", "ERROR", 0.02),
        ("id: expected bigint", "ERROR", 0.02),
        ("id: gt(0)", "ERROR", 0.02),
        ("email: expected string", "ERROR", 0.05),
        ("email: format(email)", "WARN", 0.05),
        ("price: required", "ERROR", 0.05),
        ("price: expected double", "ERROR", 0.05),
        ("price: finite", "ERROR", 0.05),
        ("price: ge(0)", "WARN", 0.05),
    ]
    assert contract.columns[1].tags == ("pii",)
    assert contract.columns[2].description == "What it costs."
    assert len({rule.name for rule in contract.rules}) == len(contract.rules)


def test_odd_and_colliding_field_names_get_columns_of_their_own(tmp_path: Path) -> None:
    contract = declare(
        tmp_path,
        """
    userId: int
    other: int = pa.Field(alias="UserID")
    order: int = pa.Field(alias="order id")
    price: float = pa.Field(alias="price.eur")
""",
    )
    assert [one.field for one in contract.columns] == ["userId", "UserID", "order id", "price.eur"]
    assert len({one.column.lower() for one in contract.columns}) == 4
    assert all(one.column.isidentifier() for one in contract.columns)


def test_a_contract_survives_json(tmp_path: Path) -> None:
    contract = declare(tmp_path, '    a: str = pa.Field(isin=["x", "y"], metadata={"tags": ["t"]})\n')
    assert Contract.from_json(contract.to_json()) == contract
    json.loads(contract.to_json())


def test_only_what_decides_fates_changes_the_hash(tmp_path: Path) -> None:
    first = declare(tmp_path / "a", "    a: int = pa.Field(gt=0)\n").hash
    same = declare(
        tmp_path / "b",
        '    """Told."""\n    a: int = pa.Field(gt=0, description="d", metadata={"pii": True, "max_share": 0.1})\n',
    )
    assert same.hash == first
    for number, other in enumerate(
        ["gt=1", "ge=0", "gt=0, nullable=True", 'gt=0, metadata={"severity": "WARN"}', "gt=0, raise_warning=True"]
    ):
        assert declare(tmp_path / f"c{number}", f"    a: int = pa.Field({other})\n").hash != first
    assert declare(tmp_path / "d", "    a: np.int32 = pa.Field(gt=0)\n").hash != first


def test_a_reason_is_traced_to_its_rule(tmp_path: Path) -> None:
    contract = declare(tmp_path, "    a: int = pa.Field(gt=0)\n    b: int\n")
    for reason, name in {
        "a: gt(0)": "a__gt",
        "a: expected bigint, got STRING": "a__type",
        "a: expected bigint": "a__type",
        "b: required": "b__required",
    }.items():
        rule = contract.rule_of(reason)
        assert rule is not None and rule.name == name
    assert contract.rule_of("decode: empty value") is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    a: object\n", ["M.a", "the type object is not supported", "use one of str, int"]),
        ("    a: Decimal\n", ["M.a", "the type Decimal is not supported", "precision"]),
        ("    a: np.uint8\n", ["M.a", "is not supported"]),
        ("    a: int = pa.Field(unique=True)\n", ["M.a", "unique", "unique_by"]),
        ("    a: int = pa.Field(coerce=True)\n", ["M.a", "coerce"]),
        ("    a: int = pa.Field(default=3)\n", ["M.a", "default"]),
        ("    a: int = pa.Field(str_matches='x')\n", ["M.a", "str_matches needs a column of type string"]),
        ("    a: int = pa.Field(gt='x')\n", ["M.a", "gt", "cannot be compared"]),
        ("    a: str = pa.Field(str_matches='(?P<x>a)')\n", ["M.a", "named groups"]),
        ("    a: str = pa.Field(metadata={'format': 'emial'})\n", ["M.a", "emial", "did you mean 'email'?"]),
        ("    a: str = pa.Field(metadata={'max_shar': 1})\n", ["M.a", "max_shar", "did you mean 'max_share'?"]),
        ("    a: str = pa.Field(metadata={'max_share': 2})\n", ["M.a", "max_share is 2"]),
        ("    a: int = pa.Field(metadata={'format': 'email'})\n", ["M.a", "needs the type str"]),
        ("    a: int = pa.Field(metadata={'epoch': 'ms'})\n", ["M.a", "needs the type datetime"]),
        ("    a: datetime = pa.Field(metadata={'epoch': 'ns'})\n", ["M.a", "s, ms or us"]),
        (
            "    a: int\n    @pa.check('a')\n    def own(cls, s):\n        return s > 0\n",
            ["M.a", "the check own cannot run in Spark", "supported are gt"],
        ),
        (
            "    a: int\n    @pa.dataframe_check\n    def whole(cls, df):\n        return df.a > 0\n",
            ["M: ", "whole", "one record"],
        ),
        ("    a: int\n    class Config:\n        strict = True\n", ["M: ", "Config.strict"]),
        ("    a: int\n    class Config:\n        unique = ['a']\n", ["M: ", "Config.unique", "unique_by"]),
        ("    pass\n", ["M: ", "no fields"]),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_place(tmp_path: Path, body: str, said: list[str]) -> None:
    with pytest.raises(ContractError) as raised:
        declare(tmp_path, body)
    text = str(raised.value)
    assert f"{tmp_path / 'contract.py'}:" in text
    for part in said:
        assert part in text


def test_the_line_of_a_mistaken_field_is_told(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"contract\.py:12: M\.second"):
        declare(
            tmp_path, '    first: int\n\n    second: int = pa.Field(\n        alias="second",\n        unique=True)\n'
        )


def test_a_missing_file_class_or_base_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    declare(tmp_path, "    a: int\n", name="Click")
    for path, name, said in [
        ("contrct.py", "Click", "did you mean contract.py?"),
        ("contract.py", "Clik", "did you mean Click?"),
        ("contract.py", "datetime", "not a pandera DataFrameModel"),
    ]:
        with pytest.raises(ContractError, match=said.replace("?", r"\?")):
            load_contract(tmp_path / path, name)


def test_python_errors_are_told_with_their_line(tmp_path: Path) -> None:
    for text, said in [("class A(:\n", r"contract\.py:1: invalid syntax"), ("\nimport nothing_there\n", r":2: Module")]:
        (tmp_path / "contract.py").write_text(text)
        with pytest.raises(ContractError, match=said):
            load_contract(tmp_path / "contract.py", "A")


def test_folders_with_files_of_the_same_names_do_not_mix(tmp_path: Path) -> None:
    for folder, limit in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "limits.py").write_text(f"LIMIT = {limit}\n")
        contract = declare(
            tmp_path / folder, "    a: int = pa.Field(gt=LIMIT)\n", head=HEAD + "from limits import LIMIT\n"
        )
        assert contract.rules[-1].message == f"a: gt({limit})"
    assert "limits" not in sys.modules


def test_a_file_beside_the_contract_is_part_of_the_cache_key(tmp_path: Path, own_cache: Path) -> None:
    assert cache_folder() == own_cache
    head = HEAD + "from limits import LIMIT\n"
    for limit in (1, 2):
        (tmp_path / "limits.py").write_text(f"LIMIT = {limit}\n")
        contract = declare(tmp_path, "    a: int = pa.Field(gt=LIMIT)\n", head=head)
        assert contract.rules[-1].message == f"a: gt({limit})"
    assert len(list(own_cache.glob("*.json"))) == 2


def test_a_broken_cache_is_compiled_again(tmp_path: Path, own_cache: Path) -> None:
    contract = declare(tmp_path, "    a: int\n")
    for text in ("", "{", "[]", '{"name": "x"}'):
        (cached,) = own_cache.glob("*.json")
        cached.write_text(text)
        assert load_contract(tmp_path / "contract.py", "M") == contract


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LINEAGE_CACHE", str(tmp_path / "file"))
    assert declare(tmp_path / "c", "    a: int\n").name == "M"


def test_a_cached_contract_loads_quickly_and_without_pandera(tmp_path: Path, own_cache: Path) -> None:
    contract = declare(tmp_path, "    a: int\n")
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom lineage_assets.quality.load import load_contract\n"
        f"before = time.perf_counter()\ncontract = load_contract(Path({str(tmp_path / 'contract.py')!r}), 'M')\n"
        "spent = time.perf_counter() - before\n"
        "print(contract.hash, spent, [m for m in ('pandera', 'pandas', 'pyspark') if m in sys.modules])"
    )
    environment = {**os.environ, "LINEAGE_CACHE": str(own_cache.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    hash_, spent, modules = done.stdout.split(maxsplit=2)
    assert hash_ == contract.hash
    assert modules.strip() == "[]"
    assert float(spent) < 0.5


def test_a_contract_is_a_value(tmp_path: Path) -> None:
    contract = declare(tmp_path, "    a: int\n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        contract.name = "other"  # type: ignore[misc]
