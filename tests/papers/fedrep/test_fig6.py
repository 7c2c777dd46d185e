"""FedRep's Figure 6 in miniature: heads of new clients on bodies that others trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import load_data, train
from commonground.adapt.few_shot import head_curve
from commonground.data import FederatedDataset
from commonground.errors import DataError
from commonground.papers.fedrep import fig6
from commonground.papers.fedrep.table1 import FEMNIST
from commonground.papers.fedrep.table1 import TABLE as TABLE_1
from commonground.papers.request import Request
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.judge import run_table

TINY: dict[str, Any] = {"clients": 6, "partition": "shards", "classes_per_client": 2, "rounds": 2, "local_epochs": 1}
(COLUMN,) = fig6.TABLE.columns
DIGITS = replace(fig6.TABLE, columns=(replace(COLUMN, data="digits", settings={**COLUMN.settings, **TINY}),))
METHODS = ("fedrep", "fedavg", "lg-fedavg", "l2gd")


def others(seed: int, data_dir: str | None) -> FederatedDataset:
    return load_data("digits", 5, classes_per_client=3, seed=100 + seed)


def asked(folder: Path) -> Request:
    return Request(folder, "paper", seeds=2, quiet=True, methods=METHODS)


def test_a_cell_is_what_new_clients_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fig6, "new_clients", others)
    outcome = run_table(DIGITS, asked(tmp_path))
    store = CellStore(tmp_path)
    for method in METHODS:
        row = next(row for row in DIGITS.rows if row.algorithm == method)
        for seed in (0, 1):
            arm = DIGITS.arm(DIGITS.columns[0], row)
            run = train(method, "digits", device="cpu", seed=seed, options=dict(arm.options), **arm.settings)
            curve = head_curve(run, others(seed, None), 20, lr=0.01, seed=seed)
            cell = store.get((COLUMN.label, row.name, "", seed))
            assert cell is not None
            assert cell.weights_sha256 == run.summary["weights_sha256"]
            assert cell.personal_last10 == cell.personal_final == float(curve[-1].mean())
            assert cell.best == max(float(each.mean()) for each in curve)
            assert (cell.global_last10, cell.global_final) == (None, None)
            assert np.array_equal(store.clients(cell.key), np.round(curve[-1], 4))
            by_epoch = store.curves(COLUMN.label)[cell.key]
            assert [at["accuracy"] for at in by_epoch.values()] == [float(each.mean()) for each in curve]
            assert list(by_epoch) == list(range(1, 21))
    assert [claim.claim for claim in outcome.claims] == [
        f"FedRep's body serves new clients better than {name}'s after {epochs} of their heads"
        for epochs in ("1 epoch", "20 epochs")
        for name in ("FedAvg", "LG-Fed", "L2GD")
    ]
    curves = {key[1::2]: curve for key, curve in store.curves(COLUMN.label).items()}
    for claim, epoch in ((outcome.claims[0], 1), (outcome.claims[3], 20)):
        gaps = [curves["FedRep", k][epoch]["accuracy"] - curves["FedAvg", k][epoch]["accuracy"] for k in (0, 1)]
        assert claim.measured == pytest.approx(100 * np.mean(gaps))
    assert DIGITS.arm(DIGITS.columns[0], next(r for r in DIGITS.rows if r.name == "L2GD")).settings["lr"] == 0.001
    assert list(outcome.figures) == ["accuracy by epoch, FEMNIST letters, then digits"]
    (figure,) = outcome.figures.values()
    assert (figure.x, len(figure.lines)) == ("epoch", 4)


def test_without_the_new_clients_data_the_run_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(seed: int, data_dir: str | None) -> FederatedDataset:
        raise DataError("no digits here")

    monkeypatch.setattr(fig6, "new_clients", none)
    with pytest.raises(DataError, match=r"^FEMNIST letters, then digits was left out: no digits here$"):
        run_table(DIGITS, asked(tmp_path))
    assert len(CellStore(tmp_path)) == 0
    monkeypatch.setattr(fig6, "new_clients", others)
    assert len(run_table(DIGITS, asked(tmp_path)).cells) == 4


def test_bodies_are_trained_as_table_1_has_them() -> None:
    assert COLUMN.settings == FEMNIST.settings
    named = {row.name: row for row in TABLE_1.rows}
    for row in fig6.TABLE.rows:
        mine, theirs = fig6.TABLE.arm(COLUMN, row), TABLE_1.arm(FEMNIST, named[row.name])
        assert mine.options == theirs.options
        assert mine.settings == {k: v for k, v in theirs.settings.items() if k != "finetune_epochs"}
    assert [row.name for row in fig6.TABLE.rows] == [
        "FedRep", "FedAvg", "PerFedAvg", "LG-Fed", "APFL", "L2GD", "FedProx"
    ]  # fmt: skip
    small = fig6.TABLE.at_scale("small")
    assert small.columns[0].settings["clients"] == 30
    assert "30 clients of 100 letters" in small.notes[0]
