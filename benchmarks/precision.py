"""Does bf16 cost accuracy? FedRep and FedAvg on CIFAR-10 in both precisions, paired by seed, and the CPU seconds.

    python -m benchmarks.precision --data-dir DIR --out results/benchmarks/precision.json

Goes on where it was stopped: a run that is in the file is not repeated, also where several processes fill one file,
each with other seeds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

import commonground as cg
from commonground.statistics import student_interval

METHODS = ("fedrep", "fedavg")
CLASSES = (2, 5)
PRECISIONS = ("fp32", "bf16")
LAST = 10  # rounds whose accuracy, over all clients, is averaged


def measured(method: str, classes: int, seed: int, precision: str, rounds: int, data_dir: str | None) -> dict[str, Any]:
    """One run in the setting of FedRep's Table 1."""
    data = cg.load_data("cifar10", 100, classes_per_client=classes, seed=seed, data_dir=data_dir, download=False)
    began = time.process_time()
    run = cg.train(
        method, data, seed=seed, precision=precision, rounds=rounds, participation=0.1, batch_size=10, local_epochs=1,
        lr=0.01, momentum=0.5, engine="serial", device="cpu", eval_every=rounds, eval_last=LAST,
    )  # fmt: skip
    tested = [row["personal_accuracy"] for row in run.history if row.get("personal_accuracy") is not None]
    return {
        "method": method,
        "classes": classes,
        "seed": seed,
        "precision": precision,
        "rounds": rounds,
        "accuracy": statistics.mean(tested),
        "cpu_seconds": round(time.process_time() - began, 1),
        "seconds_of_a_round": round(min(row["seconds"] for row in run.history), 3),
        "weights_sha256": run.summary["weights_sha256"],
    }


def compared(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """bf16 minus fp32 in points, by method and column: mean over the seeds that have both, with its 95 % interval."""
    found = {(run["method"], run["classes"], run["seed"], run["precision"]): run for run in runs}
    rows = []
    for method in METHODS:
        for classes in CLASSES:
            seeds = [s for m, c, s, p in found if (m, c, p) == (method, classes, "bf16") and (m, c, s, "fp32") in found]
            pairs = [[found[method, classes, seed, precision] for precision in PRECISIONS] for seed in sorted(seeds)]
            if not pairs:
                continue
            differences = np.array([100 * (half["accuracy"] - full["accuracy"]) for full, half in pairs])
            mean, low, high = (float(value) for value in student_interval(differences))
            faster = statistics.median(full["cpu_seconds"] / half["cpu_seconds"] for full, half in pairs)
            rows.append(
                {"method": method, "classes": classes, "seeds": len(pairs), "points": mean, "low": low, "high": high,
                 "fp32": float(np.mean([100 * full["accuracy"] for full, _ in pairs])), "times_faster": faster}
            )  # fmt: skip
    return rows


@click.command()
@click.option("--data-dir", default=os.environ.get("COMMONGROUND_DATA"), help="Folder with CIFAR-10's files.")
@click.option("--rounds", default=50, show_default=True)
@click.option("--seed", "first", default=0, show_default=True, help="First seed.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The JSON file; it is added to.")
def main(data_dir: str | None, rounds: int, first: int, seeds: int, out: Path) -> None:
    """Run what is missing, and compare."""
    cells = product(range(first, first + seeds), CLASSES, METHODS, PRECISIONS)
    for seed, classes, method, precision in cells:
        if (method, classes, seed, precision, rounds) in _read(out):
            continue
        run = measured(method, classes, seed, precision, rounds, data_dir)
        click.echo(json.dumps(run))
        _write(out, {**_read(out), _key(run): run})
    for row in compared(list(_read(out).values())):
        click.echo(json.dumps(row))


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(run[name] for name in ("method", "classes", "seed", "precision", "rounds"))


def _read(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {_key(run): run for run in json.loads(out.read_text("utf-8"))["runs"]} if out.is_file() else {}


def _write(out: Path, found: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    runs = sorted(found.values(), key=lambda run: (run["seed"], run["classes"], run["method"], run["precision"]))
    whole = {
        "command": f"python -m benchmarks.precision --rounds {runs[-1]['rounds']} --data-dir DIR --out {out.name}",
        "machine": platform.machine(),
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("commonground", "torch", "numpy")},
        "compared": compared(runs),
        "runs": runs,
    }
    out.write_text(json.dumps(whole, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
