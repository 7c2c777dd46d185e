"""What a run does beside training: it starts, tests, keeps checkpoints."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.data import digit_like
from benchmarks.million_clients import measure
from commonground.engine.backends.factory import make_engine
from commonground.engine.state.checkpoint import Checkpoint, CheckpointFolder
from commonground.engine.training import prepared

__all__ = ["LIFECYCLE"]


def start(repeats: int) -> dict[str, Any]:
    """Seconds of the processor until the command has said its version, and until PyTorch and the engines are there."""
    commands = {
        "version": ["-m", "commonground", "--version"],
        "train": ["-c", "import commonground; commonground.train"],
    }
    found = {}
    for name, words in commands.items():
        seconds = []
        for _ in range(repeats):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        found[f"{name}_cpu_seconds"] = statistics.median(seconds)
    return {"what": "start of the command, and of Python with PyTorch", **found}


def evaluation(repeats: int) -> dict[str, Any]:
    """A test of 10,000 clients' own models, four rows each."""
    setup = prepared("fedrep", digit_like(10_000), engine="batched", participation=0.01)
    engine = make_engine("batched", setup)
    seconds = []
    for _ in range(repeats + 1):
        began = time.process_time()
        engine.evaluate(range(10_000), setup.initial_shared)
        seconds.append(time.process_time() - began)
    middle = statistics.median(seconds[1:])
    rows = int(setup.data.test_sizes.sum())
    return {"what": "test of 10,000 clients", "cpu_seconds": middle, "rows_per_second": rows / middle}


def checkpoint(repeats: int) -> dict[str, Any]:
    """A checkpoint in which 1,000 of 10,000 clients have changed."""
    setup = prepared("fedrep", digit_like(10_000), engine="batched", participation=0.1)
    engine = make_engine("batched", setup)
    seconds, size = [], 0
    with tempfile.TemporaryDirectory() as folder:
        kept = CheckpointFolder(Path(folder))
        for round in range(1, repeats + 1):
            engine.commit(round, engine.train(round, range(1_000), setup.initial_shared))
            began = time.process_time()
            personal = engine.save(kept.personal(), round)
            kept.save(Checkpoint(round, {}, setup.initial_shared, personal=personal))
            seconds.append(time.process_time() - began)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {"what": "checkpoint of 1,000 changed clients", "cpu_seconds": statistics.median(seconds), "bytes": size}


def million(repeats: int) -> dict[str, Any]:
    """A million registered clients against 10,000, 1,000 sampled."""
    sizes = (10_000, 1_000_000) if repeats > 1 else (2_000, 20_000)
    found = measure(sizes, 1_000, repeats + 1)
    return {"what": f"{sizes[1]:,} clients against {sizes[0]:,}, 1,000 sampled", **found}


LIFECYCLE = {"start": start, "evaluation": evaluation, "checkpoint": checkpoint, "million": million}
