"""The frame of the `lineage` command: lazy commands, exit codes, output for scripts.

Belongs here: cli.py. Does not belong here: what single commands do.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lineage_assets import cli

ECHO = '''"""`lineage say-it`: says it. Belongs here: that."""

import typer

app = typer.Typer()


@app.command()
def say_it(word: str) -> None:
    print(word)
'''
BROKEN = '"""`lineage broken`: cannot even be imported."""\nraise RuntimeError("imported")\n'


def lineage(*arguments: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "lineage_assets.cli", *arguments]
    environment = {"LINEAGE_HOME": str(home), "PATH": "/usr/bin:/bin", "COLUMNS": "200", **env}
    return subprocess.run(program, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two command modules beside the real ones' place."""
    import lineage_assets.commands

    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "say_it.py").write_text(ECHO)
    (folder / "broken.py").write_text(BROKEN)
    monkeypatch.setattr(cli, "COMMANDS", folder)
    monkeypatch.setattr(lineage_assets.commands, "__path__", [str(folder)])
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        cli.app(list(arguments))
    return int(caught.value.code or 0), capsys.readouterr().out


def test_help_lists_the_commands_of_the_folder_without_importing_them(
    commands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = call(capsys, "--help")
    assert code == 0
    assert "say-it" in out and "Says it." in out and "broken" in out
    assert "lineage_assets.commands.say_it" not in sys.modules


def test_a_command_is_imported_when_it_is_called(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "say-it", "hello") == (0, "hello\n")
    sys.modules.pop("lineage_assets.commands.say_it")


def test_a_wrong_call_ends_with_2(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "nonsense")[0] == 2
    assert call(capsys, "up", "--nonsense")[0] == 2


def test_help_takes_less_than_half_a_second_of_work(tmp_path: Path) -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert lineage("--help", home=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # CPU, and the best of three: on a busy machine the clock tells of the others.
    assert min(cpu_s() for _ in range(3)) < 0.5


def test_status_of_nothing_is_json_for_scripts_and_exit_code_1(tmp_path: Path) -> None:
    done = lineage("status", "--json", home=tmp_path)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(part["part"], part["state"]) for part in told["parts"]] == [
        ("kafka", "stopped"),
        ("registry", "stopped"),
        ("spark", "stopped"),
    ]
    assert told["memory_mb"] == 0


def test_parts_that_are_all_yours_need_no_stack_and_show_no_secret(tmp_path: Path) -> None:
    yours = {
        "LINEAGE_KAFKA_BOOTSTRAP": "broker.example:9092",
        "LINEAGE_REGISTRY_URL": "https://me:hidden@registry.example",
        "SPARK_REMOTE": "sc://spark.example:443/;token=hidden",
    }
    done = lineage("status", "--json", home=tmp_path, **yours)
    assert done.returncode == 0
    assert [part["address"] for part in json.loads(done.stdout)["parts"]] == [
        "broker.example:9092",
        "https://registry.example",
        "sc://spark.example:443",
    ]
    assert "hidden" not in done.stdout + lineage("status", home=tmp_path, **yours).stdout
    assert "yours" in lineage("up", home=tmp_path, **yours).stdout


def test_an_error_is_one_line_on_stderr_with_the_remedy_and_exit_code_1(tmp_path: Path) -> None:
    done = lineage("up", home=tmp_path, LINEAGE_CACHE=str(tmp_path / "empty"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "make setup" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.pid"))


def test_down_of_nothing_says_so(tmp_path: Path) -> None:
    done = lineage("down", home=tmp_path)
    assert done.returncode == 0
    assert "nothing was running" in done.stdout
