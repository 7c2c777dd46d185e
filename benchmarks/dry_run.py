"""What ``--dry-run`` says against what a run then takes: seconds, memory, bytes sent, disk.

    python -m benchmarks.dry_run [--only mlp,linear] [--out results/benchmarks/dry-run.json]

Plan and run of a setting are each a process of their own, one right after the other. Seconds are by default those of
the processor, in all processes of a run, which mean something on a busy machine as well; ``--wall`` takes the clock's.
Memory is the largest resident set of one process, with the report not yet written.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.data import cifar, digit_like, digits, linear, packaged_bert, random_texts
from commonground import FederatedDataset
from commonground.engine.results import peak_rss
from commonground.engine.training import prepared, run_training
from commonground.plan import plan_of
from commonground.report import write_run_report


@dataclass(frozen=True)
class Case:
    """A setting: what it is, its method, data and other settings."""

    what: str
    method: str
    data: Callable[[], FederatedDataset]
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "mlp": Case("FedRep, MLP on digits, batched", "fedrep", lambda: digits(20), {"rounds": 100}),
    "cnn": Case(
        "FedRep, CNN on CIFAR-10, 10 of 100 clients, processes", "fedrep", cifar,
        {"model": "cnn", "rounds": 4, "participation": 0.1, "engine": "processes", "local_epochs": 1},
    ),
    "flute": Case(
        "FLUTE, MLP on digits, one client after the other", "flute", lambda: digits(40),
        {"rounds": 20, "engine": "serial", "participation": 0.25},
    ),
    "lora": Case(
        "RoLoRA, 6-layer BERT, 4 clients of 64 texts", "rolora", lambda: random_texts(4, 64),
        {"model": "bert", "rounds": 4, "batch_size": 16, "lr": 0.01, "eval_every": 2},
    ),
    "many": Case(
        "FedRep, MLP, 50 of 10,000 clients, batched", "fedrep", lambda: digit_like(10_000),
        {"rounds": 60, "participation": 0.005, "engine": "batched", "lr": 0.05},
    ),
    "linear": Case(
        "FedAvg, linear regression in 20 dimensions, 1,000 clients", "fedavg", linear,
        {"model": "linear", "rounds": 60, "lr": 0.01},
    ),
}  # fmt: skip


def main() -> None:
    """Plan and run every case, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES), help="names of settings, joined by commas")
    parser.add_argument("--wall", action="store_true", help="seconds of the clock, on a quiet machine")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    flags = parser.parse_args()
    clock = time.perf_counter if flags.wall else cpu_seconds
    rows = {}
    for name in flags.only.split(","):
        planned, real = (_apart(name, what, clock) for what in ("plan", "run"))
        rows[name] = {"what": CASES[name].what, "planned": planned, "real": real, "ratio": {
            key: round(planned[key] / real[key], 3) for key in ("seconds", "peak_bytes", "disk_bytes", "sent_bytes")
        }}  # fmt: skip
        told = (f"{key} {planned[key]:,.4g} / {real[key]:,.4g}" for key in rows[name]["ratio"])
        print(f"{name}: {'; '.join(told)}; {rows[name]['ratio']}", flush=True)
    result = figures.of_this_machine("python -m benchmarks.dry_run" + (" --wall" if flags.wall else "")) | {
        "seconds_of": "the clock" if flags.wall else "the processor, all processes together",
        "rows": rows,
    }
    figures.write(result, flags.out)


def _apart(name: str, what: str, clock: Callable[[], float]) -> dict[str, Any]:
    """The figures of a plan or a run, in a process of its own."""
    here, there = mp.Pipe()
    process = mp.get_context("spawn").Process(target=_planned if what == "plan" else _real, args=(there, name, clock))
    process.start()
    there.close()
    found: dict[str, Any] = here.recv()
    process.join()
    return found


def _setup(name: str) -> Any:
    case = CASES[name]
    settings = dict(case.settings)
    if settings.get("model") == "bert":
        settings["model"] = packaged_bert()
    return prepared(case.method, case.data(), **settings)


def cpu_seconds() -> float:
    """Of this process and its children, ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in mp.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _planned(pipe: Any, name: str, clock: Callable[[], float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        setup = _setup(name)
        began = time.perf_counter()
        plan = plan_of(setup, Path(folder) / "run", clock)
        pipe.send({
            "seconds": plan.seconds,
            "parts": {part: getattr(plan.measured, part) for part in ("start", "rounds", "tests", "end")},
            "peak_bytes": plan.memory.peak,
            "together_bytes": plan.memory.together,
            "disk_bytes": sum(plan.files.values()),
            "sent_bytes": plan.sent.up[1] + plan.sent.down[1],
            "sent_is_exact": plan.sent.exact,
            "planning_seconds": time.perf_counter() - began,
        })  # fmt: skip


def _real(pipe: Any, name: str, clock: Callable[[], float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        setup, out = _setup(name), Path(folder) / "run"
        began = clock()
        run = run_training(setup, out=out)
        seconds = clock() - began
        peak = peak_rss()
        write_run_report(out)
        pipe.send({
            "seconds": seconds,
            "rounds": sum(row["seconds"] for row in run.history),
            "tests": sum(row["eval_seconds"] for row in run.history),
            "peak_bytes": peak,
            "disk_bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
            "sent_bytes": run.summary["bytes_up"] + run.summary["bytes_down"],
        })  # fmt: skip


if __name__ == "__main__":
    main()
