"""How fast is a FedRep round, against what this machine can do at all?

The setting of FedRep's Table 1: CIFAR-10 over 100 clients of 2 classes, a tenth of them per round, batches of 10, ten
epochs on the head and one on the body. Prints seconds per round, the arithmetic done per second and its share of the
fp32 convolution peak, which is measured in the same process before and after every round, so that a noisy machine
hits both. Then the scaling of a round with the number of clients that exist, at 50 sampled.

    python benchmarks/cifar_round.py [--rounds 6] [--engine processes] [--data-dir DIR] [--out results/bench.json]

Without the CIFAR-10 files, random images of the same size are used: the arithmetic is the same.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from commonground.config import RunConfig
from commonground.data import FederatedDataset, Shards, Source, deal, load_data
from commonground.engine.backends.factory import make_engine
from commonground.engine.backends.processes import default_workers
from commonground.engine.loop import sample_clients
from commonground.engine.prepare import prepare_setup
from commonground.engine.setup import Setup
from commonground.errors import DataError

# (batch, channels in, channels out, side, kernel): shapes on which oneDNN comes closest to the machine's limit.
PEAK_SHAPES = [(64, 64, 64, 14, 5), (32, 256, 256, 14, 3), (64, 64, 64, 28, 3)]


def one_core_peak() -> float:
    """Best fp32 convolution rate of one thread, in GFLOP/s."""
    torch.set_num_threads(1)
    best = 0.0
    for batch, c_in, c_out, side, kernel in PEAK_SHAPES:
        # What PyTorch says of the types of `to` leaves a memory format by itself out.
        layer = nn.Conv2d(c_in, c_out, kernel).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = torch.randn(batch, c_in, side, side).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            for _ in range(3):
                began = time.perf_counter()
                out = layer(x)
                rate = 2 * out.numel() * c_in * kernel**2 / (time.perf_counter() - began) / 1e9
                best = max(best, rate)
    return best


def _serve_peak(pipe: Any) -> None:
    while pipe.recv():
        pipe.send(one_core_peak())


class PeakMeter:
    """All cores at once, one thread each: what the machine gives when every core convolves."""

    def __init__(self, cores: int) -> None:
        self.pipes = []
        for _ in range(cores):
            here, there = mp.Pipe()
            mp.Process(target=_serve_peak, args=(there,), daemon=True).start()
            self.pipes.append(here)

    def measure(self) -> float:
        """Sum over the cores, in GFLOP/s."""
        for pipe in self.pipes:
            pipe.send(True)
        return sum(pipe.recv() for pipe in self.pipes)


def cifar_like(seed: int = 0, clients: int = 100) -> FederatedDataset:
    """Random images in CIFAR-10's shape and split."""
    rng = np.random.default_rng(seed)
    x = [rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (50_000, 10_000)]
    y = [np.arange(n) % 10 for n in (50_000, 10_000)]
    source = Source("cifar10-like", x[0], y[0], x[1], y[1], 10, tuple("0123456789"))
    return deal(source, Shards(2), clients, seed)


def digit_like(clients: int, seed: int = 0) -> FederatedDataset:
    """Real digits with noise added, 12 training and 4 test samples for each of any number of clients."""
    digits = load_digits()
    rng = np.random.default_rng(seed)
    parts = []
    for per_client in (12, 4):
        pick = rng.integers(0, len(digits.target), clients * per_client)
        noise = rng.normal(0, 1, (len(pick), 64))
        x = np.clip(digits.data[pick] + noise, 0, 16).round().astype(np.uint8).reshape(-1, 8, 8, 1)
        parts += [x, digits.target[pick].astype(np.int64)]
    offsets = [np.arange(clients + 1) * per_client for per_client in (12, 4)]
    return FederatedDataset(
        name="digit-like",
        x_train=parts[0],
        y_train=parts[1],
        x_test=parts[2],
        y_test=parts[3],
        classes=10,
        class_names=tuple("0123456789"),
        train_index=np.arange(offsets[0][-1]),
        train_offsets=offsets[0],
        test_index=np.arange(offsets[1][-1]),
        test_offsets=offsets[1],
    )


def flops_of_round(setup: Setup, clients: list[int]) -> float:
    """Arithmetic a round needs: the features once, ten epochs of the head on them, one epoch of the body."""

    def count(module: nn.Module, x: Tensor, train: bool) -> float:
        with FlopCounterMode(display=False) as counter:
            out = module(x)
            if train:
                out.sum().backward()
        return counter.get_total_flops() / len(x)

    model = setup.model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("head"))
    x = setup.samples.arrange(setup.samples.rows("train", np.arange(10))[0])
    split = setup.split(frozenset(setup.groups.trainable("head")))
    assert split is not None
    with torch.no_grad():
        features = split.first(x)
        forward = count(split.first, x, train=False)
    body = count(model, x, train=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    head = count(split.rest, features.detach(), train=True)
    samples = int(setup.data.train_sizes[clients].sum())
    return samples * (forward + 10 * head + body)


def bench_cifar(engine_name: str, rounds: int, data_dir: str | None) -> dict[str, Any]:
    """Rounds of FedRep on CIFAR-10 (100, 2), peak measured around each."""
    data: FederatedDataset | None = None
    try:
        data = load_data("cifar10", 100, classes_per_client=2, data_dir=data_dir, download=False)
    except DataError:
        data = cifar_like()
    config = RunConfig.make(
        {"algorithm": "fedrep", "data": "cifar10", "participation": 0.1, "model": "cnn", "engine": engine_name}
    )
    setup = prepare_setup(config, data)
    meter = PeakMeter(default_workers())
    engine = make_engine(engine_name, setup)
    shared = dict(setup.initial_shared)
    rows = []
    try:
        for number in range(1, rounds + 2):
            clients = sample_clients(setup.config, 100, number)
            before = meter.measure()
            began = time.perf_counter()
            reports = engine.train(number, clients, shared)
            seconds = time.perf_counter() - began
            peak = max(before, meter.measure())
            engine.commit(number, reports)
            if number == 1:  # the first round also compiles oneDNN's kernels
                continue
            rate = flops_of_round(setup, clients) / seconds / 1e9
            rows.append({"seconds": seconds, "gflops": rate, "peak": peak, "share": rate / peak})
            print(
                f"round {number - 1}: {seconds:.2f} s, {rate:.0f} GFLOP/s, {rate / peak:.0%} of the convolution peak "
                f"({peak:.0f} GFLOP/s)",
                flush=True,
            )
    finally:
        engine.close()
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


def _scaling_worker(pipe: Any, clients: int, rounds: int) -> None:
    from commonground import train

    data = digit_like(clients)
    run = train("fedrep", data, participation=50 / clients, rounds=rounds, lr=0.05, engine="batched")
    settled = run.history[5:]
    pipe.send(
        {
            "clients": clients,
            "seconds": statistics.median(r["seconds"] for r in settled),
            "eval_seconds": statistics.median(r["eval_seconds"] for r in settled),
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
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
    result = {
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.processor() or platform.machine()}, {default_workers()} cores",
        "torch": torch.__version__,
        "cifar_round": bench_cifar(flags.engine, flags.rounds, flags.data_dir),
        "scaling": bench_scaling(),
    }
    if flags.out:
        flags.out.parent.mkdir(parents=True, exist_ok=True)
        flags.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
