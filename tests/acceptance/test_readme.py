"""The README's own steps, run word for word in a copy of what is checked in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def steps(heading: str) -> list[str]:
    """The shell blocks of a section, in order."""
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)


@pytest.fixture
def clone(tmp_path):
    """A copy of the checked-in files as they are now, and of nothing else."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    yield tmp_path
    subprocess.run([tmp_path / ".venv/bin/lineage", "down"], cwd=tmp_path, env=environment(), check=False)


def environment() -> dict[str, str]:
    """A user's: nothing of this test's home or stack."""
    python = f"PYTHON={sys.base_prefix}/bin/python3.11"
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("LINEAGE_", "SPARK_", "DAGSTER_"))
    }
    return {
        **kept,
        "MAKEFLAGS": python,
        "LINEAGE_CACHE": os.environ.get("LINEAGE_CACHE", str(Path.home() / ".cache/lineage_assets")),
    }


@pytest.mark.timeout(900)
def test_the_steps_for_a_topic_of_your_own_give_its_tables(clone):
    script = "set -euo pipefail\n" + "\n".join([*steps("A topic of your own"), *steps("A stream")])
    done = subprocess.run(
        ["bash"], input=script, cwd=clone, env=environment(), capture_output=True, text=True, timeout=800
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    assert "a check holds the slice: one record of four is wrong" in said
    rows = [line for line in done.stdout.splitlines() if line.startswith("{'")]
    fates = sorted(line.split("'fate': ")[1].split("'")[1] for line in rows if "'fate'" in line)
    orders = sorted(line.split("'order_id': ")[1].split("'")[1] for line in rows if "'order_id'" in line)
    assert fates == ["dead", "duplicate", "ok", "ok"]
    assert orders == ["o-1", "o-3"]
    assert "amount_cents: gt(0)" in done.stdout
    streamed = DeltaTable(clone / ".lineage/lake/dev/silver/orders").to_pyarrow_table(columns=["order_id"])
    assert sorted(streamed["order_id"].to_pylist()) == ["o-1", "o-3", "o-4"]
    assert "append" in done.stdout, "the record of the stream's commit"


def test_every_command_of_the_readme_exists():
    shown = subprocess.run(
        [sys.executable, "-m", "lineage_assets.cli", "--help"], capture_output=True, text=True, check=True
    )
    named = set(re.findall(r"`lineage ([a-z]+)", README)) | set(
        re.findall(r"^lineage ([a-z]+)", README, flags=re.MULTILINE)
    )
    missing = {name for name in named if not re.search(rf"\b{name}\b", shown.stdout)}
    assert named and not missing


def test_every_setting_of_the_readme_exists():
    from lineage_assets.settings import Settings

    outside = {"LINEAGE_SPARK_CLASSPATH", "LINEAGE_HOME"}
    named = set(re.findall(r"`(LINEAGE_[A-Z_]+)`", README)) - outside
    known = {f"LINEAGE_{name.upper()}" for name in Settings.model_fields}
    assert named and named <= known


def test_every_picture_of_the_readme_is_there():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert pictures and all((ROOT / name).stat().st_size > 10_000 for name in pictures)
