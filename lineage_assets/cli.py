"""The `lineage` command: its frame, and `up`, `down`, `status`.

Belongs here: how commands are found, and how errors and exit codes reach a script.
Does not belong here: other commands. Each is a module of lineage_assets/commands, named as the command (`root_cause.py`
is `lineage root-cause`), with a Typer `app` of one command or of several (`lineage stream run`). It is loaded only when
it is called: `lineage --help` reads the first line of its docstring, "`lineage root-cause`: what it does."
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from lineage_assets.stack.state import PartState

COMMANDS = Path(__file__).with_name("commands")

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


class _Commands(TyperGroup):
    """The commands of this module and those found in `COMMANDS`, of which only the one that is called is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(map(_command_name, COMMANDS.glob("[a-z]*.py")))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and (source := _source(cmd_name)).is_file():
            return TyperCommand(cmd_name, help=summary(source), callback=lambda: None)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and _source(args[0]).is_file():
            module = importlib.import_module(f"lineage_assets.commands.{_source(args[0]).stem}")
            command = typer.main.get_command(module.app)
            command.name = args[0]
            self.commands[args[0]] = command
        return super().resolve_command(ctx, args)


def summary(source: Path) -> str:
    """The first line of a command module's docstring, without the command's name, read from its source."""
    first = (ast.get_docstring(ast.parse(source.read_text())) or "").split("\n", 1)[0]
    text = first.split("`: ", 1)[-1] if first.startswith("`lineage ") else first
    return text[:1].upper() + text[1:]


def _source(command: str) -> Path:
    return COMMANDS / f"{command.replace('-', '_')}.py"


def _command_name(source: Path) -> str:
    return source.stem.replace("_", "-")


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Dagster assets for Kafka, Spark, Delta Lake and dbt that carry their exact lineage in every commit. "
    "Exit codes: 0 done, 1 something is wrong (said on stderr), 2 the call was wrong.",
)


@app.callback()
def _frame() -> None:
    """Options of all commands would stand here; having this keeps `lineage` a group."""


@app.command()
def up(as_json: Json = False) -> None:
    """Start the embedded Kafka, schema registry and Spark, as far as the settings do not name yours."""
    from lineage_assets.settings import settings
    from lineage_assets.stack import control

    done = control.up(settings(), _say)
    if as_json:
        print(json.dumps([asdict(d) for d in done]))
        return
    for d in done:
        print(f"{d.part:<9} {d.what:<8} {d.address}")


@app.command()
def down(as_json: Json = False) -> None:
    """Stop what was started under this LINEAGE_HOME. Data stays."""
    from lineage_assets.settings import settings
    from lineage_assets.stack import control

    done = control.down(settings(), _say)
    if as_json:
        print(json.dumps([{"part": part, "what": how} for part, how in done]))
    elif not done:
        print(f"nothing was running under {settings().home}")


@app.command()
def status(as_json: Json = False) -> None:
    """Show what runs under this LINEAGE_HOME, and its memory. Exit code 1 if a part is stopped, dead or not ready."""
    from lineage_assets.settings import settings
    from lineage_assets.stack import state

    rows = state.states(settings())
    total_mb = state.total_memory_mb(rows)
    if as_json:
        print(json.dumps({"home": str(settings().home), "memory_mb": total_mb, "parts": [asdict(row) for row in rows]}))
    else:
        _print_status(rows, total_mb, str(settings().home))
    if any(row.state not in ("running", "yours") for row in rows):
        raise typer.Exit(1)


def _print_status(rows: list[PartState], total_mb: int, home: str) -> None:
    from rich.console import Console
    from rich.table import Table

    colours = {"running": "green", "yours": "cyan", "starting": "yellow", "dead": "red", "stopped": "dim"}
    table = Table(title=f"Under {home}", title_justify="left", box=None, pad_edge=False)
    for heading in ("part", "state", "address", "pid", "up", "MB", "log"):
        table.add_column(heading, justify="right" if heading in ("pid", "up", "MB") else "left", overflow="fold")
    for row in rows:
        state = f"[{colours[row.state]}]{row.state}[/]" + (f" ({row.note})" if row.note else "")
        uptime = "" if row.uptime_s is None else _duration(row.uptime_s)
        memory = f"{row.memory_mb:,}" if row.pid else ""
        table.add_row(
            row.part, state, row.address, str(row.pid or ""), uptime, memory, row.log.removeprefix(f"{home}/")
        )
    Console().print(table)
    print(f"Memory together: {total_mb:,} MB")


def _duration(seconds: int) -> str:
    """
    >>> _duration(59), _duration(3725), _duration(90000)
    ('59s', '1h02m', '1d01h')
    """
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s" if seconds >= 60 else f"{seconds}s"
    hours = seconds // 3600
    return f"{hours // 24}d{hours % 24:02}h" if hours >= 24 else f"{hours}h{seconds % 3600 // 60:02}m"


def _say(part: str, text: str) -> None:
    print(f"{part}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """The entry point: turns our errors into a line on stderr and exit code 1."""
    from lineage_assets.errors import LineageError

    try:
        app()
    except LineageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
