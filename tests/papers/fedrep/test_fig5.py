"""FedRep's Figure 5 in miniature: what is trained, what is claimed, whose accuracy a point is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import train
from commonground.cli import main
from commonground.errors import ConfigError
from commonground.papers.fedrep.fig5 import TABLE
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.judge import outcome_of, run_table
from commonground.papers.tables.readings import reported
from commonground.statistics import student_interval

TINY: dict[str, Any] = {"clients": 4, "train_samples": 40, "test_samples": 20, "participation": 0.5, "rounds": 3}
(COLUMN,) = TABLE.columns
DIGITS = replace(TABLE, columns=(replace(COLUMN, data="digits", settings={**COLUMN.settings, **TINY}),))
FEW = ("fedrep-1-head-epoch", "fedrep-5-head-epochs", "fedavg-1-local-epoch", "fedavg-5-local-epochs")


def measured(folder: Path, seeds: int, methods: tuple[str, ...] = FEW, **changed: Any) -> Outcome:
    asked = Request(folder, "paper", seeds=seeds, quiet=True, methods=methods, overrides=changed)
    return run_table(DIGITS, asked)


def plain(method: str, seed: int, **settings: Any) -> Any:
    shared = {"rounds": 3, "batch_size": 50, "lr": 0.1, "momentum": 0.5, "eval_every": 20, "eval_last": 10}
    return train(
        method,
        "digits",
        device="cpu",
        seed=seed,
        classes_per_client=2,
        metrics="full",
        **{**TINY, **shared, **settings},
    )


def test_points_and_claims_are_those_of_the_runs(tmp_path: Path) -> None:
    outcome = measured(tmp_path, 2)
    fedavg = {E: [plain("fedavg", seed, local_epochs=E) for seed in (0, 1)] for E in (1, 5)}
    fedrep = {E: [plain("fedrep", seed, options={"head_epochs": E}) for seed in (0, 1)] for E in (1, 5)}
    values = {
        "FedAvg": {E: [run.summary["global_accuracy_last10"] for run in runs] for E, runs in fedavg.items()},
        "FedAvg, own models": {
            E: [float(np.mean([row["after_local_accuracy"] for row in run.history])) for run in runs]
            for E, runs in fedavg.items()
        },
        "FedRep (head epochs)": {
            E: [run.summary["personal_accuracy"]["last10"] for run in runs] for E, runs in fedrep.items()
        },
    }
    lines = outcome.figures["accuracy by local epochs"].lines
    assert lines.keys() == values.keys()
    for name, points in values.items():
        assert list(lines[name].x) == [1, 5]
        for at, found in enumerate(points.values()):
            got = [float(band[at]) for band in (lines[name].mean, lines[name].low or [], lines[name].high or [])]
            assert got == pytest.approx([float(v) for v in student_interval(found)], abs=1e-12)
    gaps = {name: 100 * (np.mean(points[1]) - np.mean(points[5])) for name, points in values.items()}
    found_claims: dict[str, Any] = {c.claim: (c.measured, c.seeds, c.holds) for c in outcome.claims}
    assert found_claims == {
        "FedAvg does not gain from 5 local epochs over 1 (positive: 1 better)": (
            pytest.approx(gaps["FedAvg"]),
            2,
            None,
        ),
        "FedAvg, its participants' models as their local training ends, does not gain from 5 local epochs over 1 "
        "(positive: 1 better)": (pytest.approx(gaps["FedAvg, own models"]), 2, None),
    }
    assert list(outcome.figures) == ["accuracy by local epochs", "accuracy by round, CIFAR-10 (100, 2)"]
    cells = {cell.method: cell.measured for cell in outcome.cells}
    assert cells["FedRep, 5 head epochs"] == pytest.approx(100 * np.mean(values["FedRep (head epochs)"][5]))
    assert not any(path.name == "runs" for path in tmp_path.iterdir())


def test_a_model_of_participants_has_no_clients_accuracies_and_its_own_curve(tmp_path: Path) -> None:
    measured(tmp_path, 1, FEW[2:3])
    store = CellStore(tmp_path)
    row = next(row for row in TABLE.rows if row.name == "FedAvg, 1 local epoch, own models")
    cell = store.get((COLUMN.label, row.name, "", 0))
    assert cell is not None
    curve = store.curves(COLUMN.label)[cell.key]
    assert [at["accuracy"] for at in curve.values()] == [at["after_local"] for at in curve.values()]
    assert cell.best == max(at["accuracy"] for at in curve.values())
    assert store.clients(cell.key).size == 0
    assert reported(store, COLUMN, row, which="final") == {0: curve[3]["accuracy"]}
    assert reported(store, COLUMN, row, which="best") == {0: cell.best}


def test_every_number_of_epochs_is_compared_with_the_one_before_and_with_the_first(tmp_path: Path) -> None:
    outcome = measured(tmp_path, 1, ("fedrep", "fedavg"), rounds=1)
    assert [c.claim.split(" (")[0] for c in outcome.claims if "participants" not in c.claim] == [
        "FedRep with 2 head epochs is not below FedRep with 1",
        "FedRep with 5 head epochs is not below FedRep with 2",
        "FedRep with 10 head epochs is not below FedRep with 5",
        "FedRep with 20 head epochs is not below FedRep with 10",
        "FedRep with 20 head epochs above FedRep with 1",
        "FedAvg does not gain from 2 local epochs over 1",
        "FedAvg does not gain from 5 local epochs over 1",
        "FedAvg does not gain from 10 local epochs over 1",
        "FedAvg does not gain from 20 local epochs over 1",
    ]
    assert len(outcome.claims) == 13
    lines = outcome.figures["accuracy by local epochs"].lines
    assert [(list(line.x), line.low) for line in lines.values()] == [([1, 2, 5, 10, 20], None)] * 3  # of one seed


def test_what_diverges_is_told_and_left_out(tmp_path: Path) -> None:
    """A point with no seed left is no point of its line."""
    outcome = measured(tmp_path, 1, lr=1e30)
    assert (outcome.claims, outcome.cells, outcome.figures) == ([], [], {})
    assert sum("FedAvg, 5 local epochs, CIFAR-10 (100, 2), seed 0 has no value" in note for note in outcome.notes) == 1


def test_settings_are_those_of_the_appendix() -> None:
    """Collins et al. 2021, App. A.2: batches of 50 at rate 0.1 in this figure."""
    arms = {row.name: TABLE.arm(COLUMN, row) for row in TABLE.rows}
    assert {(a.settings["batch_size"], a.settings["lr"], a.settings["momentum"]) for a in arms.values()} == {
        (50, 0.1, 0.5)
    }
    assert {(a.settings["clients"], a.settings["rounds"], a.settings["participation"]) for a in arms.values()} == {
        (100, 100, 0.1)
    }
    assert [arms[f"FedAvg, {E} local epochs"].settings["local_epochs"] for E in (2, 5, 10, 20)] == [2, 5, 10, 20]
    assert [arms[f"FedRep, {E} head epochs"].options for E in (2, 5, 10, 20)] == [
        {"head_epochs": E} for E in (2, 5, 10, 20)
    ]
    assert {a.settings["local_epochs"] for name, a in arms.items() if name.startswith("FedRep")} == {1}
    assert [row.name for row in TABLE.choose_rows(["fedavg"])] == [
        "FedAvg, 1 local epoch",
        *(f"FedAvg, {E} local epochs" for E in (2, 5, 10, 20)),
    ]
    assert outcome_of(TABLE, CellStore(Path("nowhere"))).figures == {}


def test_epochs_are_chosen_and_not_set(tmp_path: Path) -> None:
    for key in ("local_epochs", "head_epochs"):
        with pytest.raises(
            ConfigError, match=f"named by {key}, which is not set but chosen, such as --methods fedavg-20"
        ):
            measured(tmp_path, 1, FEW, **{key: 2})


def test_a_folder_of_the_time_before_cells_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = '{"experiment": "fedrep-fig5", "scale": "small", "set": [], "claims": [{"claim": "x"}]}'
    (tmp_path / "reproduction.json").write_text(about)
    assert main(["reproduce", "fedrep-fig5", "--scale", "small", "--out", str(tmp_path)]) == 2
    assert "kept no cells; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "reproduction.json").read_text() == about
