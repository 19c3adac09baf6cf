"""`lineage dev`: run the Dagster UI and daemon of this LINEAGE_HOME in the foreground."""

from __future__ import annotations

import os
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def dev(
    port: Annotated[int | None, typer.Option(help="Port of the UI. Default: the setting ui_port, 3000.")] = None,
) -> None:
    """Run the Dagster UI and daemon of this LINEAGE_HOME in the foreground. Ctrl-C ends them."""
    from lineage_assets.errors import ContractError
    from lineage_assets.settings import settings
    from lineage_assets.stack import dagster, ports, process

    config = settings()
    running = process.read(config.stack_dir, dagster.NAME)
    if running is not None and process.leader(running):
        raise ContractError(
            f"the UI of {config.home} runs already, at {running.address}",
            remedy="open it, or end it with `lineage down`",
        )
    wanted = config.ui_port if port is None else port
    dagster.ensure_instance(config)
    ports.require_free(dagster.NAME, wanted, "LINEAGE_UI_PORT")
    argv = dagster.command(config, dagster.workspace_file(), wanted)
    os.execvpe(argv[0], argv, {**os.environ, **dagster.environment(config)})
