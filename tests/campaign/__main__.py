"""Trying to break it: ``python -m tests.campaign --seed S [--short] --out FILE`` (``make campaign``)."""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch

from tests.campaign.common import Tally

# Parts, and how many of each are tried at most: in long and in short.
PARTS: dict[str, tuple[int, int]] = {
    "kills": (200, 8),
    "damage": (560, 14),
    "commands": (500, 10),
    "tables": (150, 4),
    "messages": (600, 8),
    "models": (200, 6),
}
MINUTES = 30.0  # of one part, at most


@click.command()
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of all draws")
@click.option("--short", is_flag=True, help="a few of each, in seconds")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="leave out the other parts")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="a JSON file with the counts")
def run(seed: int, short: bool, only: tuple[str, ...], out: Path | None) -> None:
    """Try to break it, and count."""
    torch.set_num_threads(1)
    began, found = time.monotonic(), dict[str, Any]()
    for name in only or PARTS:
        part_began = time.monotonic()
        tally: Tally = import_module(f"tests.campaign.{name}").campaign(seed, PARTS[name][short], MINUTES)
        minutes = round((time.monotonic() - part_began) / 60, 1)
        found[name] = {
            "tried": tally.tried,
            "held": tally.held,
            "findings": list(tally.findings),
            "minutes": minutes,
        }
        print(f"{name}: {tally.held} of {tally.tried} held, {minutes} min", file=sys.stderr)
        for finding in tally.findings:
            print(f"  {finding}", file=sys.stderr)
    about = {
        "command": " ".join(["python -m tests.campaign", *sys.argv[1:]]),
        "seed": seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "versions": {name: version(name) for name in ("commonground", "torch", "numpy", "safetensors")}
        | {"python": platform.python_version()},
        "parts": found,
    }
    if out is not None:
        out.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    sys.exit(any(part["held"] < part["tried"] for part in found.values()))


if __name__ == "__main__":
    run()
