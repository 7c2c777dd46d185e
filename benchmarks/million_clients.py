"""A million registered clients, a thousand of them sampled a round: seconds, memory and bytes on disk.

    python benchmarks/million_clients.py [--clients N] [--sampled K] [--rounds T] [--out FOLDER]

Every client has one training and one test sample of eight numbers, and its own copy of a small network (Ditto).
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from commonground import FederatedDataset, train


def drawn(clients: int) -> FederatedDataset:
    """One training and one test sample per client, with labels that a linear rule nearly decides."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * clients, 8)).astype(np.float32)
    y = (x @ rng.normal(size=8).astype(np.float32) + rng.normal(size=2 * clients) > 0).astype(np.int64)
    whole = np.arange(clients + 1)
    return FederatedDataset(
        name="drawn",
        x_train=x[:clients],
        y_train=y[:clients],
        x_test=x[clients:],
        y_test=y[clients:],
        classes=2,
        class_names=("0", "1"),
        train_index=np.arange(clients),
        train_offsets=whole,
        test_index=np.arange(clients),
        test_offsets=whole,
    )


class Timer:
    """Prints when a run starts its rounds, and each of them."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def _say(self, text: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{time.perf_counter() - self.began:7.1f} s  {peak:5.2f} GB  {text}", flush=True)

    def begin(self, setup: Any, engine: str, done: int) -> None:
        self._say(f"prepared for the engine {engine}")

    def round(self, row: Mapping[str, Any]) -> None:
        seconds = row["seconds"] + row["eval_seconds"]
        self._say(f"round {row['round']} done, in {seconds:.1f} s")

    def note(self, text: str) -> None:
        self._say(text)

    def end(self) -> None:
        self._say("everything is tested and written")


def main() -> None:
    """Parse the flags, run, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--sampled", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the run (default: a temporary one)")
    flags = parser.parse_args()
    timer = Timer()
    data = drawn(flags.clients)
    timer._say(f"{flags.clients:,} clients made")
    with tempfile.TemporaryDirectory() as temporary:
        out = flags.out or Path(temporary) / "run"
        run = train(
            "ditto", data, model="mlp", model_options={"hidden": [16]}, participation=flags.sampled / flags.clients,
            rounds=flags.rounds, lr=0.05, engine="batched", out=out, observer=timer,
        )  # fmt: skip
        files = {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}
    timer._say("done")
    result = {
        "clients": flags.clients,
        "sampled": flags.sampled,
        "rounds": flags.rounds,
        "seconds": round(time.perf_counter() - timer.began, 1),
        "seconds_per_round": [round(row["seconds"] + row["eval_seconds"], 2) for row in run.history],
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "files": files,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
