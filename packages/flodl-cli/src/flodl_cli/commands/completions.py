"""`fdl completions SHELL`, `fdl autocomplete`."""

from __future__ import annotations

import click

__all__ = ["autocomplete", "completions"]


@click.command()
def completions() -> None:
    """Print the completion script of a shell."""


@click.command()
def autocomplete() -> None:
    """Install completion for your shell."""
