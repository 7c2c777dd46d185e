"""Trying to break it: ``python -m tests.campaign --seed S [--short] --out FILE`` (``make campaign``)."""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click
import torch

from tests.campaign.common import Tally

# Parts, and how many of each are tried at most: in long and in short (0: not at all, tests/network has a few).
PARTS: dict[str, tuple[int, int]] = {
    "kills": (200, 8),
    "damage": (560, 14),
    "commands": (500, 10),
    "tables": (150, 4),
    "messages": (600, 8),
    "models": (200, 6),
    "network_lies": (1000, 8),
    "network_kills": (20, 0),
}
MINUTES = 30.0  # of one part, at most


@click.command()
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="of all draws")
@click.option("--short", is_flag=True, help="a few of each, in seconds")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="these parts; others stay in --out")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="a JSON file with the counts")
def run(seed: int, short: bool, only: tuple[str, ...], out: Path | None) -> None:
    """Try to break it, and count."""
    torch.set_num_threads(1)
    all_held = True
    for name in only or PARTS:
        began = time.monotonic()
        tally: Tally = import_module(f"tests.campaign.{name}").campaign(seed, PARTS[name][short], MINUTES)
        minutes = (time.monotonic() - began) / 60
        print(f"{name}: {tally.held} of {tally.tried} held, {minutes:.1f} min", file=sys.stderr)
        for finding in tally.findings:
            print(f"  {finding}", file=sys.stderr)
        all_held &= tally.held == tally.tried
        if out is not None:
            _write(out, name, seed, tally, minutes)
    sys.exit(not all_held)


def _write(out: Path, name: str, seed: int, tally: Tally, minutes: float) -> None:
    """Put a part's counts into the file, beside those of the other parts."""
    whole = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    libraries = ("commonground", "torch", "numpy", "safetensors")
    whole[name] = {
        "command": " ".join(["python -m tests.campaign", *sys.argv[1:]]),
        "seed": seed,
        "tried": tally.tried,
        "held": tally.held,
        "findings": list(tally.findings),
        "minutes": round(minutes, 1),
        "versions": {"python": platform.python_version()} | {each: version(each) for each in libraries},
    }
    out.write_text(json.dumps({part: whole[part] for part in PARTS if part in whole}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    run()
