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
@click.option("--max-anchor", type=click.IntRange(1), default=64, show_default=True, help="As in the section ddp:.")
@click.option("--jitter", type=click.FloatRange(0), default=0.1, show_default=True, help="Spread of a batch's time.")
@click.option("--stall", type=click.FloatRange(0, 1), default=1e-4, show_default=True, help="Chance of 1 s in a batch.")
@click.option(
    "--throttle", type=click.FloatRange(0, 1), default=2e-5, show_default=True, help="That of 30 s at half speed."
)
@click.option("--per-host", type=click.IntRange(1), default=8, show_default=True, help="Devices, in hierarchical.")
@click.option("--within-host", default="PCIe", show_default=True, help="What joins them there.")
@click.option(
    "--failures", type=click.IntRange(0), default=0, show_default=True, help="Devices that are lost on the way."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated chances.")
@click.option("--json", is_flag=True, help="For scripts.")
@click.pass_context
def simulate(context: click.Context, /, **_: object) -> int:
    """Predict how well devices that are not here would train together, by the planner that trains."""
    return run_library(context.obj, "flodl.distributed.cli", list(words_of(context)))
