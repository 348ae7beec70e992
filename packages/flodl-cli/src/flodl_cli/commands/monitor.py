"""`fdl dash`, `fdl runs`: handed over to flodl in the project's Python, which fdl itself does not import."""

from __future__ import annotations

from pathlib import Path

import click

from flodl_cli.call import Call
from flodl_cli.library import run_library, words_of

__all__ = ["dash", "runs"]

_ID = click.argument("id")
_FOLDER = click.option("--folder", metavar="FOLDER", help="Where the runs are; `runs` here or in the project.")
_JSON = click.option("--json", is_flag=True, help="For scripts.")


@click.command()
@click.argument("folder", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=3000, show_default=True, help="Or the next free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another than this machine needs a token.")
@click.option("--open", is_flag=True, help="Open it in a browser.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="A further name that it may be called by.")
@click.option("--token", help="What every call must know; made when it is needed.")
@click.pass_context
def dash(context: click.Context, /, **_: object) -> int:
    """Show the runs in FOLDER in a browser, live and finished ones."""
    return _hand_over(context, "dash")


@click.group()
def runs() -> None:
    """List, compare, export, stop and delete runs. An ID may be shortened to what is unique."""


@runs.command("list")
@_FOLDER
@_JSON
@click.pass_context
def list_(context: click.Context, /, **_: object) -> int:
    """List the runs, oldest first."""
    return _hand_over(context, "runs", "list")


@runs.command()
@_ID
@_FOLDER
@_JSON
@click.pass_context
def show(context: click.Context, /, **_: object) -> int:
    """Show a run: its state, metrics and configuration."""
    return _hand_over(context, "runs", "show")


@runs.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_FOLDER
@_JSON
@click.pass_context
def compare(context: click.Context, /, **_: object) -> int:
    """Compare runs: their metrics, and what differs in their configurations."""
    return _hand_over(context, "runs", "compare")


@runs.command()
@_ID
@click.option("--format", type=click.Choice(["html", "csv", "log", "tensorboard"]), default="html", show_default=True)
@click.option("--output", metavar="PATH", help="By default named after the run, in the current folder.")
@_FOLDER
@_JSON
@click.pass_context
def export(context: click.Context, /, **_: object) -> int:
    """Write a run as one HTML page, every point as CSV, a log, or TensorBoard's files."""
    return _hand_over(context, "runs", "export")


@runs.command()
@_ID
@_FOLDER
@_JSON
@click.pass_context
def stop(context: click.Context, /, **_: object) -> int:
    """Ask a live run to save and stop after its step."""
    return _hand_over(context, "runs", "stop")


@runs.command()
@_ID
@_FOLDER
@_JSON
@click.pass_context
def save(context: click.Context, /, **_: object) -> int:
    """Ask a live run to save a checkpoint."""
    return _hand_over(context, "runs", "save")


@runs.command()
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Not the newest N.")
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="Only those that started so long ago.")
@click.option(
    "--state",
    type=click.Choice(["finished", "stopped", "failed", "stale"]),
    multiple=True,
    help="Only those in this state (repeatable).",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_FOLDER
@_JSON
@click.pass_context
def prune(context: click.Context, /, **_: object) -> int:
    """Delete runs with their checkpoints, never a running one. All conditions must be met."""
    return _hand_over(context, "runs", "prune")


def _hand_over(context: click.Context, *command: str) -> int:
    """Carries out the call in the project's Python."""
    call: Call = context.obj
    if context.params["folder"] is None:
        here = Path("runs")
        inside = here if call.root is None or here.is_dir() else call.root / here
        if command != ("dash",) or inside != here:
            context.params["folder"] = str(inside)
    return run_library(call, "flodl.monitor.cli", [*command, *words_of(context)])
