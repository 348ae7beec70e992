"""`fdl hf`: models for HuggingFace's transformers, by `flodl.hf` in the project's Python."""

from __future__ import annotations

import click

from flodl_cli.library import run_library, words_of

__all__ = ["hf"]


@click.group()
def hf() -> None:
    """Export, check and convert models for HuggingFace's transformers."""


@hf.command()
@click.argument("source")
@click.argument("folder")
@click.pass_context
def export(context: click.Context, /, **_: object) -> int:
    """Write the model of SOURCE, a run's folder or a checkpoint, to FOLDER for `from_pretrained`."""
    return run_library(context.obj, "flodl.hf.cli", ["export", *words_of(context)])


@hf.command()
@click.argument("folder")
@click.option("--against", metavar="SOURCE", help="A run, checkpoint or folder whose logits it must have.")
@click.option("--tolerance", type=float, default=1e-5, show_default=True, help="The largest difference let pass.")
@click.option("--json", is_flag=True, help="For scripts.")
@click.pass_context
def verify(context: click.Context, /, **_: object) -> int:
    """Check names, ties and logits of an exported FOLDER; exit code 1 where something is wrong."""
    return run_library(context.obj, "flodl.hf.cli", ["verify", *words_of(context)])


@hf.command()
@click.argument("folder")
@click.option("--output", metavar="FOLDER", help="Another folder, to leave this one as it is.")
@click.pass_context
def convert(context: click.Context, /, **_: object) -> int:
    """Write `pytorch_model.bin` in FOLDER, read without running code, as safetensors."""
    return run_library(context.obj, "flodl.hf.cli", ["convert", *words_of(context)])
