"""The benchmarks run, and their shares are of a peak that was measured beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_short_benchmark_writes_its_figures(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "--short", "--only", "mlp,checkpoint", "--out"]
    subprocess.run([*words, str(tmp_path / "bench.json")], cwd=ROOT, check=True, capture_output=True, timeout=120)
    rows = json.loads((tmp_path / "bench.json").read_text("utf-8"))["rows"]
    assert list(rows) == ["mlp", "checkpoint"]
    mlp = rows["mlp"]
    assert 0 < mlp["share"] < 1
    assert mlp["share"] == mlp["gflops"] / mlp["peak"]
    assert rows["checkpoint"]["bytes"] > 1_000_000
