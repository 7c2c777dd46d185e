"""Finished folders to report on, made once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from commonground import train
from commonground.compare import compare
from tests.other_tasks import multilabel_data, regression_data

SETTINGS: dict[str, Any] = {"clients": 6, "classes_per_client": 2, "rounds": 3}


@pytest.fixture(scope="session")
def made_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("made") / "run"
    train("fedrep", "digits", out=out, **SETTINGS)
    return out


@pytest.fixture(scope="session")
def made_comparison(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("made") / "comparison"
    compare(["fedrep", "fedavg"], "digits", 2, out, target=0.3, **SETTINGS)
    return out


@pytest.fixture(scope="session")
def made_others(tmp_path_factory) -> Path:
    """A run and a comparison on numbers, and a run on labels."""
    out = tmp_path_factory.mktemp("made")
    settings: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": [8]}, "rounds": 4, "lr": 0.05}
    train("fedrep", regression_data(), out=out / "regression", metrics="full", **settings)
    train("fedrep", multilabel_data(), out=out / "multilabel", **settings)
    compare(["fedrep", "fedavg"], regression_data(), 2, out / "comparison", **settings)
    return out


@pytest.fixture
def regression_folder(made_others, tmp_path) -> Path:
    return Path(shutil.copytree(made_others / "regression", tmp_path / "regression", ignore=_no_report))


@pytest.fixture
def multilabel_folder(made_others, tmp_path) -> Path:
    return Path(shutil.copytree(made_others / "multilabel", tmp_path / "multilabel", ignore=_no_report))


@pytest.fixture
def regression_comparison(made_others, tmp_path) -> Path:
    return Path(shutil.copytree(made_others / "comparison", tmp_path / "regressions", ignore=_no_report))


@pytest.fixture
def run_folder(made_run, tmp_path) -> Path:
    """A finished run, the test's own copy."""
    return Path(shutil.copytree(made_run, tmp_path / "run", ignore=_no_report))


@pytest.fixture
def comparison_folder(made_comparison, tmp_path) -> Path:
    return Path(shutil.copytree(made_comparison, tmp_path / "comparison", ignore=_no_report))


@pytest.fixture
def reproduction_folder(made_comparison, tmp_path) -> Path:
    folder = tmp_path / "reproduction"
    shutil.copytree(made_comparison, folder / "digits", ignore=_no_report)
    claims = [
        {"claim": "FedRep is better than FedAvg by", "source": "Table 1", "paper": 0.2, "measured": 0.21, "low": 0.18,
         "high": 0.25, "seeds": 3, "holds": True},
        {"claim": "FedAvg reaches", "source": "Table 1", "paper": 0.5, "measured": 0.41, "low": None, "high": None,
         "seeds": [0, 1], "holds": False},
        {"claim": "It converges", "source": "Theorem 1", "paper": "yes", "measured": "yes", "seeds": 1, "holds": None},
    ]  # fmt: skip
    cells = [{"data": "digits", "method": name, "paper": 0.8 + i / 50, "measured": {"mean": 0.79 + i / 50, "std": 0.01}}
             for i, name in enumerate(("FedRep", "FedAvg"))]  # fmt: skip
    (folder / "results.json").write_text(json.dumps(claims))
    (folder / "cells.json").write_text(json.dumps(cells))
    return folder


def _no_report(folder: str, names: list[str]) -> set[str]:
    return {"report.html", "figures", "checkpoint"} & set(names)
