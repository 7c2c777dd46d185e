"""What the documents show is run."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from commonground.algorithms import registry
from commonground.cli import main

ROOT = Path(__file__).parent.parent


def _code(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), flags=re.DOTALL)


def test_the_readme_example_runs_and_learns() -> None:
    code, theory = _code("README.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    accuracy = float(printed.getvalue().split()[0])
    assert accuracy >= 0.95
    with contextlib.redirect_stdout(printed):
        exec(compile(theory, "README.md", "exec"), {})
    size, median = printed.getvalue().splitlines()[-1].rsplit(" ", 1)
    assert size == "torch.Size([20, 51])"
    assert 0 < float(median) < 0.05


def test_the_code_of_the_page_on_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, as one program."""
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n".join(_code("docs/PYTHON.md")), "docs/PYTHON.md", "exec"), {})
    assert float(printed.getvalue().split()[0]) > 0.9


def test_the_algorithm_of_the_contributing_guide_runs_in_every_engine(tmp_path: Path) -> None:
    (code,) = _code("CONTRIBUTING.md")
    file = tmp_path / "fedrep_prox.py"
    file.write_text(code)
    base = ["--clients", "4", "--classes-per-client", "3", "--rounds", "2", "--quiet", "--dtype", "float64"]
    results = {}
    try:
        for engine in ("serial", "processes", "batched", "messages"):
            out = tmp_path / engine
            assert main(["train", f"{file}:FedRepProx", *base, "--engine", engine, "--out", str(out)]) == 0
            rows = (out / "rounds.jsonl").read_text().splitlines()
            results[engine] = (json.loads((out / "summary.json").read_text()), json.loads(rows[-1]))
    finally:
        registry.pop("fedrep-prox", None)
    serial = results["serial"]
    for engine in ("processes", "messages"):
        assert results[engine][0]["weights_sha256"] == serial[0]["weights_sha256"]
    assert results["batched"][1]["train_loss"] == pytest.approx(serial[1]["train_loss"], abs=1e-9)


def test_the_readme_names_every_file_of_a_run(tmp_path: Path) -> None:
    assert main(["train", "fedrep", "--clients", "4", "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]) == 0
    readme = (ROOT / "README.md").read_text("utf-8")
    for path in (tmp_path / "run").iterdir():
        assert f"`{path.name}" in readme or path.name == "figures", path.name
