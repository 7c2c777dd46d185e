"""A million registered clients, a thousand of them sampled a round: seconds, memory and bytes on disk.

    python -m benchmarks.million_clients [--clients 10000,1000000] [--sampled K] [--rounds T] [--final N]
        [--out FILE.json]

Every client has one training and one test sample of eight numbers, in memory-mapped arrays, and its own copy of a small
network (Ditto). Each size runs in a process of its own. Memory beyond the data is its peak without the arrays' bytes,
all of which a run reads; that of the rounds is the peak until the last of them, before the test of everyone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import figures
from commonground import FederatedDataset, train
from commonground.engine.results import peak_rss
from commonground.report import write_run_report


def write_arrays(clients: int, folder: Path) -> None:
    """One training and one test sample per client, with labels that a linear rule nearly decides, as files."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * clients, 8)).astype(np.float32)
    y = (x @ rng.normal(size=8).astype(np.float32) + rng.normal(size=2 * clients) > 0).astype(np.int64)
    arrays: dict[str, npt.NDArray[Any]] = {"x_train": x[:clients], "x_test": x[clients:]}
    arrays |= {"y_train": y[:clients], "y_test": y[clients:]}
    arrays |= {"index": np.arange(clients), "offsets": np.arange(clients + 1)}
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)


def mapped(folder: Path) -> tuple[FederatedDataset, int]:
    """The data in the files, which are mapped into memory and not read, and their bytes."""
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    index, offsets = arrays.pop("index"), arrays.pop("offsets")
    data = FederatedDataset(
        name="drawn",
        **arrays,
        classes=2,
        class_names=("0", "1"),
        train_index=index,
        train_offsets=offsets,
        test_index=index,
        test_offsets=offsets,
    )
    return data, sum(values.nbytes for values in (*arrays.values(), index, offsets))


class Timer:
    """Prints when a run starts its rounds, and each of them."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.rounds_peak = 0  # bytes

    def _say(self, text: str) -> None:
        peak = _peak() / 1e9
        print(f"{time.perf_counter() - self.began:7.1f} s  {peak:5.2f} GB  {text}", flush=True)

    def begin(self, setup: Any, engine: str, done: int) -> None:
        self._say(f"prepared for the engine {engine}")

    def round(self, row: Mapping[str, Any]) -> None:
        seconds = row["seconds"] + row["eval_seconds"]
        self.rounds_peak = _peak()
        self._say(f"round {row['round']} done, in {seconds:.1f} s")

    def note(self, text: str) -> None:
        self._say(text)

    def end(self) -> None:
        self._say("everything is tested and written")


def one(clients: int, sampled: int, rounds: int, final: int | None = None) -> dict[str, Any]:
    """The figures of one size."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, out = Path(temporary), Path(temporary) / "run"
        _apart(write_arrays, clients, folder)
        timer = Timer()
        data, data_bytes = mapped(folder)
        run = train(
            "ditto", data, model="mlp", model_options={"hidden": [16]}, participation=sampled / clients,
            rounds=rounds, lr=0.05, engine="batched", out=out, observer=timer, final_eval_clients=final,
        )  # fmt: skip
        seconds, peak = time.perf_counter() - timer.began, _peak()
        began = time.perf_counter()
        write_run_report(out)
        files = {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}
        timer._say("the report is written")
    per_round = [row["seconds"] + row["eval_seconds"] for row in run.history]
    return {
        "clients": clients,
        "sampled": sampled,
        "rounds": rounds,
        "final_test_clients": final or clients,
        "seconds": round(seconds, 1),
        "seconds_per_round": round(statistics.median(per_round), 3),
        "peak_rss_bytes": peak,
        "data_bytes": data_bytes,
        "beyond_data_bytes": peak - data_bytes,
        "rounds_beyond_data_bytes": timer.rounds_peak - data_bytes,
        "report_seconds": round(time.perf_counter() - began, 1),
        "report_peak_rss_bytes": _peak(),
        "file_bytes": sum(files.values()),
        "files": files,
    }


def _peak() -> int:
    return peak_rss()


def _apart(work: Callable[..., Any], *given: Any) -> Any:
    """What a function gives, in a process of its own, whose memory is given back."""
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def measure(sizes: Sequence[int], sampled: int, rounds: int, final: int | None = None) -> dict[str, Any]:
    """Every size, and the last one's figures as multiples of the first one's."""
    rows = [_apart(one, clients, sampled, rounds, final) for clients in sizes]
    few, many = rows[0], rows[-1]
    return {
        "rows": rows,
        "times": {
            name: round(many[name] / few[name], 3)
            for name in ("seconds_per_round", "peak_rss_bytes", "beyond_data_bytes", "rounds_beyond_data_bytes")
        },
    }


def main() -> None:
    """Parse the flags, run, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", default="10000,1000000", help="numbers of clients, joined by commas")
    parser.add_argument("--sampled", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--final", type=int, help="clients of the last test (default: all)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    flags = parser.parse_args()
    words = f"python -m benchmarks.million_clients --clients {flags.clients} --sampled {flags.sampled}"
    words += f" --rounds {flags.rounds}" + (f" --final {flags.final}" if flags.final else "")
    sizes = [int(part) for part in flags.clients.split(",")]
    result = figures.of_this_machine(words) | measure(sizes, flags.sampled, flags.rounds, flags.final)
    print(json.dumps(result, indent=2))
    figures.write(result, flags.out)


if __name__ == "__main__":
    main()
