"""``commonground demo``: the point of the project in a minute."""

from __future__ import annotations

import click

__all__ = ["demo"]


@click.command(short_help="See the point in a minute.", epilog="Example: commonground demo --seeds 1")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="number of seeds")
@click.option("--rounds", default=30, show_default=True, type=click.IntRange(1), help="number of rounds of training")
@click.option("--quiet", is_flag=True, help="print the table alone")
def demo(seeds: int, rounds: int, quiet: bool) -> None:
    """Local Only, FedAvg, FedPer and FedRep side by side on real handwritten digits."""
    from commonground.demo import run_demo

    run_demo(seeds, quiet, rounds)
