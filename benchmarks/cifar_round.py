"""How fast is a FedRep round, against what this machine can do at all?

The setting of FedRep's Table 1: CIFAR-10 over 100 clients of 2 classes, a tenth of them per round, batches of 10, ten
epochs on the head and one on the body. Prints seconds per round, the arithmetic done per second and its share of the
fp32 convolution peak, which is measured on all cores before and after every round, so that a noisy machine hits both.
Then the scaling of a round with the number of clients that exist, at 50 sampled.

    python -m benchmarks.cifar_round [--rounds 6] [--engine processes] [--data-dir DIR] [--out results/bench.json]

Without the CIFAR-10 files, random images of the same size are used: the arithmetic is the same.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import figures
from benchmarks.data import cifar, digit_like
from benchmarks.peak import PeakOfAllCores
from commonground.engine.backends.factory import make_engine
from commonground.engine.backends.processes import default_workers
from commonground.engine.loop import sample_clients
from commonground.engine.results import peak_rss
from commonground.engine.setup import Setup
from commonground.engine.training import prepared


def flops_of_a_row(setup: Setup) -> float:
    """Arithmetic that a round does for one training row, counted in a client's round in this process."""
    engine = make_engine("serial", setup)
    with FlopCounterMode(display=False) as counter:
        engine.train(1, [0], dict(setup.initial_shared))
    engine.close()
    return float(counter.get_total_flops()) / int(setup.data.train_sizes[0])


def bench_cifar(engine_name: str, rounds: int, data_dir: str | None) -> dict[str, Any]:
    """Rounds of FedRep on CIFAR-10 (100, 2), peak measured around each."""
    data = cifar(100, data_dir)
    setup = prepared("fedrep", data, model="cnn", participation=0.1, engine=engine_name, rounds=rounds + 1)
    per_row = flops_of_a_row(setup)
    meter = PeakOfAllCores(default_workers())
    engine = make_engine(engine_name, setup)
    shared = dict(setup.initial_shared)
    rows = []
    try:
        for number in range(1, rounds + 2):
            clients = sample_clients(setup.config, data.clients, number)
            before = meter.measure()
            began = time.perf_counter()
            reports = engine.train(number, clients, shared)
            seconds = time.perf_counter() - began
            peak = max(before, meter.measure())
            engine.commit(number, reports)
            if number == 1:  # the first round also compiles oneDNN's kernels
                continue
            rate = per_row * int(data.train_sizes[clients].sum()) / seconds / 1e9
            rows.append({"seconds": seconds, "gflops": rate, "peak": peak, "share": rate / peak})
            print(
                f"round {number - 1}: {seconds:.2f} s, {rate:.0f} GFLOP/s, {rate / peak:.0%} of the convolution peak "
                f"({peak:.0f} GFLOP/s)",
                flush=True,
            )
    finally:
        engine.close()
        meter.close()
    result = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(
        f"{data.name}, engine {engine_name}, median of {rounds} rounds: {result['seconds']:.2f} s per round, "
        f"{result['gflops']:.0f} GFLOP/s, {result['share']:.0%} of the fp32 convolution peak "
        f"({result['peak']:.0f} GFLOP/s on {default_workers()} cores)\n",
        flush=True,
    )
    return {"data": data.name, "engine": engine_name, "rounds": rounds, **result}


def bench_scaling(rounds: int = 40) -> list[dict[str, Any]]:
    """FedRep rounds with 50 sampled clients among 200 and among 10,000, each in a process of its own for its memory."""
    rows = []
    for clients in (200, 10_000):
        here, there = mp.Pipe()
        process = mp.get_context("spawn").Process(target=_scaling_worker, args=(there, clients, rounds))
        process.start()
        rows.append(here.recv())
        process.join()
        print(
            f"{clients:>6,} clients, 50 sampled: {1000 * rows[-1]['seconds']:.1f} ms per round (evaluation "
            f"{1000 * rows[-1]['eval_seconds']:.1f} ms), peak memory {rows[-1]['peak_rss_bytes'] / 1e6:.0f} MB",
            flush=True,
        )
    small, large = rows
    print(
        f"10,000 against 200 clients: {large['seconds'] / small['seconds']:.2f} times the seconds, "
        f"{large['peak_rss_bytes'] / small['peak_rss_bytes']:.2f} times the memory"
    )
    return rows


def _scaling_worker(pipe: Connection, clients: int, rounds: int) -> None:
    from commonground import train

    data = digit_like(clients)
    run = train("fedrep", data, participation=50 / clients, rounds=rounds, lr=0.05, engine="batched")
    settled = run.history[5:]
    pipe.send(
        {
            "clients": clients,
            "seconds": statistics.median(r["seconds"] for r in settled),
            "eval_seconds": statistics.median(r["eval_seconds"] for r in settled),
            "peak_rss_bytes": peak_rss(),
        }
    )


def main() -> None:
    """Parse the flags and run both benchmarks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--engine", default="processes", choices=["serial", "processes", "batched"])
    parser.add_argument("--data-dir", default=os.environ.get("COMMONGROUND_DATA"))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    words = f"python -m benchmarks.cifar_round --rounds {flags.rounds} --engine {flags.engine}"
    result = figures.of_this_machine(words) | {
        "cifar_round": bench_cifar(flags.engine, flags.rounds, flags.data_dir),
        "scaling": bench_scaling(),
    }
    figures.write(result, flags.out)


if __name__ == "__main__":
    main()
