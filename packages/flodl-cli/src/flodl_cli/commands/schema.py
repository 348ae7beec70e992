"""`fdl schema list|refresh|clear`."""

from __future__ import annotations

import click

__all__ = ["schema"]


@click.group()
def schema() -> None:
    """What is known of the arguments of entries."""
