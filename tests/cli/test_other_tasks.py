"""What is printed for runs whose metric is no accuracy, and what ``adapt`` and ``predict`` write of them."""

from __future__ import annotations

import csv
import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import commonground as cg
from commonground.cli import main
from commonground.console import ConsoleProgress, result_note, result_table
from tests.helpers import made_data
from tests.other_tasks import multilabel_data, regression_data

SMALL: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": [8]}, "rounds": 3, "lr": 0.05}


def printed(run: cg.Run) -> str:
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(result_table(run))
    return console.export_text()


def test_the_result_of_regression(capsys: pytest.CaptureFixture[str]) -> None:
    run = cg.train("fedavg", regression_data(), observer=ConsoleProgress(), **SMALL)
    said = capsys.readouterr().err
    assert f"global RMSE {run.summary['global_rmse']:.4g}" in said
    assert ", 1 target;" in said
    text, own = printed(run), run.summary["personal_rmse"]
    assert "personal RMSE" in text
    assert f"90th percentile {own['p90']:#.4g}, worst {own['max']:#.4g})" in text
    whole = run.summary["metrics"]
    assert f"{whole['rmse']['over_rows']:#.4g} over all rows" in text
    assert f"MAE {whole['mae']['mean']:#.4g}" in text
    assert "means over clients" in text
    assert "%" not in text


def test_rows_and_clients_agree_where_all_clients_are_alike() -> None:
    run = cg.train("fedavg", made_data((6, 6, 6)), model="linear", rounds=1)
    accuracy = run.summary["metrics"]["accuracy"]
    assert accuracy["mean"] == pytest.approx(accuracy["over_rows"])
    text = printed(run)
    assert f"{100 * accuracy['mean']:.1f} % over all rows" not in text  # the same figure twice
    assert "balanced accuracy" in text.split("other metrics")[1]


def test_few_test_samples_among_the_worst() -> None:
    run = cg.train("fedavg", regression_data((3, 4, 2)), **SMALL)
    few = "3 of 3 clients have fewer than 5 test samples, 1 of them in the worst tenth"
    assert result_note(run) == f"{few} (--worst-min-rows 5 leaves them out of it)."
    assert result_note(cg.train("fedavg", regression_data((8, 9)), **SMALL)) == ""


def predicted(capsys: pytest.CaptureFixture[str], folder: Path, x: np.ndarray[Any, Any]) -> list[list[str]]:
    np.save(folder / "x.npy", x)
    assert main(["predict", str(folder), "--client", "0", "--input", str(folder / "x.npy")]) == 0
    return list(csv.reader(capsys.readouterr().out.splitlines()))


def test_predict_writes_what_the_task_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(5).normal(size=(4, 6))
    cg.train("fedrep", regression_data(targets=("price", "rent")), out=tmp_path / "r", **SMALL)
    header, *rows = predicted(capsys, tmp_path / "r", x)
    assert header == ["sample", "price", "rent"]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert np.isfinite(np.array(rows, dtype=float)).all()
    cg.train("fedrep", multilabel_data(), out=tmp_path / "m", **SMALL)
    header, *rows = predicted(capsys, tmp_path / "m", x)
    assert header == ["sample", "labels", "probability of cat", "probability of dog", "probability of bird"]
    for _, labels, *shares in rows:
        said = [name for name, p in zip(("cat", "dog", "bird"), shares, strict=True) if float(p) >= 0.5]
        assert labels == (", ".join(said) or "–")


def test_adapt_tells_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = regression_data()
    cg.train("fedavg", data, out=tmp_path / "r", **SMALL)
    monkeypatch.setattr(import_module("commonground.adapt.newcomers"), "load_data", lambda *args, **kwargs: data)
    assert main(["adapt", str(tmp_path / "r"), "--shots", "4,12", "--repeats", "1", "--epochs", "3"]) == 0
    assert "RMSE, mean ± std over clients" in " ".join(capsys.readouterr().out.split())
    about = json.loads((tmp_path / "r" / "adapt.json").read_text())
    assert (about["task"], about["metric"]) == ("regression", "rmse")
    assert "RMSE by number of samples" in (tmp_path / "r" / "report.html").read_text()
