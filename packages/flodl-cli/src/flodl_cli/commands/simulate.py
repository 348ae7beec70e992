"""`fdl simulate`: handed over to flodl in the project's Python."""

from __future__ import annotations

import click

from flodl_cli.library import run_library, words_of

__all__ = ["simulate"]


@click.command()
@click.option(
    "--devices", required=True, metavar="LIST", help='Such as "4x3090, 2x1060", or relative speeds: "1, 0.4".'
)
@click.option("--step-ms", type=float, required=True, help="Of a batch on a device of speed 1, which is a 3090's.")
@click.option("--parameters", required=True, metavar="NUMBER", help="Of the model: 25M, 1.3B.")
@click.option(
    "--network", default="1GbE", show_default=True, help="Between them: loopback, 1GbE, 10GbE, PCIe, NVLink, ..."
)
@click.option("--policy", multiple=True, metavar="NAME", help="Only this one (can be repeated); without it all.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Samples a batch.")
@click.option("--overhead-target", type=float, default=0.05, show_default=True, help="Of the time, for meetings.")
@click.option(
    "--failures", type=click.IntRange(0), default=0, show_default=True, help="Devices that are lost on the way."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated chances.")
@click.option("--json", is_flag=True, help="For scripts.")
@click.pass_context
def simulate(context: click.Context, /, **_: object) -> int:
    """Predict how well devices that are not here would train together, by the planner that trains."""
    return run_library(context.obj, "flodl.distributed.cli", list(words_of(context)))
