"""Clients that never took part: their own tensors are those of the start, and figures of them say so."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from commonground import compare, train
from commonground.console import result_table
from commonground.report import write_run_report
from commonground.tasks import untrained_clients

RARE: dict[str, Any] = {"clients": 6, "rounds": 2, "participation": 0.01, "engine": "serial"}  # one client a round


@pytest.mark.parametrize("algorithm", ["fedrep", "local", "ditto", "fedbn"])
def test_they_are_counted_where_each_has_its_own(algorithm: str, tmp_path: Path) -> None:
    batch: dict[str, Any] = {"model": "mlp", "model_options": {"norm": "batch"}} if algorithm == "fedbn" else {}
    run = train(algorithm, "digits", out=tmp_path / "run", **RARE, **batch)
    idle = sum(row["rounds"] == 0 for row in run.clients)
    assert idle >= 4
    assert run.summary["untrained_clients"] == idle
    says = f"with {idle} of 6 clients that never took part: what is their own is as at the start"
    assert untrained_clients(run.summary) == says
    printed = io.StringIO()
    Console(file=printed, width=200).print(result_table(run))
    assert says in printed.getvalue()
    assert f"These figures are {says}." in write_run_report(tmp_path / "run").read_text("utf-8")


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"finetune_epochs": 1}),
        ("ditto", {"finetune_epochs": 1}),  # its own models are put aside for the global one
        ("perfedavg", {}),
        ("fedbabu", {}),
    ],
)
def test_not_where_a_model_comes_from_the_server(algorithm: str, settings: dict[str, Any]) -> None:
    """The global model, or one that a client makes of it before a test, owes nothing to having taken part."""
    run = train(algorithm, "digits", **RARE, **settings)
    assert any(row["rounds"] == 0 for row in run.clients)
    assert "untrained_clients" not in run.summary
    assert untrained_clients(run.summary) == ""


def test_nor_where_all_did() -> None:
    run = train("fedrep", "digits", clients=3, rounds=1, engine="serial")
    assert "untrained_clients" not in run.summary


def test_a_comparison_says_it_of_its_yardstick() -> None:
    """Local Only's accuracy of clients that never trained is that of initial weights, which is no yardstick."""
    found = compare(["fedavg"], "digits", 2, **RARE)
    counts = [run.summary["untrained_clients"] for run in found.runs["local"]]
    assert np.mean([row["personal_accuracy"] for row in found.runs["local"][0].clients if not row["rounds"]]) < 0.4
    many = "4" if set(counts) == {4} else f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else str(counts[0])
    assert (
        f"Local Only: {many} of 6 clients never took part with each seed, and what is their own is as at the start; "
        "more rounds or a larger --participation let them train."
    ) in found.footnotes()
