"""What reaches others beside the mechanism: nothing, or it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import commonground as cg
from commonground.cli import main
from commonground.data.described import describe_client, described_dataset, read_description
from commonground.data.own_table import OwnTable
from commonground.errors import ConfigError, DataError
from commonground.network.answering import Answering
from commonground.privacy import clipped
from commonground.sklearn import FederatedClassifier
from commonground.tasks import Regression
from tests.helpers import made_data

CENTRAL: dict[str, Any] = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0}
LOCAL: dict[str, Any] = {**CENTRAL, "dp_where": "client"}
EXAMPLE: dict[str, Any] = {"dp": "example", "dp_clip": 0.5, "dp_noise": 2.0}


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_change_that_is_not_finite_counts_as_none(bad: float) -> None:
    cut, within = clipped({"w": torch.tensor([1.0, bad]), "b": torch.tensor([0.5])}, 1.0)
    assert not cut["w"].any()
    assert not cut["b"].any()
    assert within == 0


@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
@pytest.mark.parametrize("kind", [CENTRAL, LOCAL, {**CENTRAL, "dp_adaptive_clip": 0.5}])
def test_whatever_one_clients_data_are_the_run_ends_and_names_nobody(kind: dict[str, Any], engine: str) -> None:
    """Its change is immense or not even finite, and so is its loss; the others' figures say the noise is there."""
    data = made_data((12, 9, 15), dtype="float32")
    data.x_train[data.train_indices(1)] *= 1e30
    run = cg.train("fedavg", data, rounds=2, model="mlp", engine=engine, **kind, eval_every=9, eval_clients=1)
    assert run.summary["rounds"] == 2
    assert all(np.isfinite(row["train_loss"]) for row in run.history)
    assert all(bool(torch.isfinite(v).all()) for v in run.trained.shared.values())


@pytest.mark.parametrize(("lr", "lost"), [(1e8, True), (0.05, False)])
def test_that_nobody_has_learnt_is_said(lr: float, lost: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Training that diverges at every client ends no private run, and must not look like one that went well."""
    settings = ["--clients", "10", "--rounds", "2", "--dp", "client", "--dp-clip", "1", "--dp-noise", "0.5"]
    assert main(["train", "fedavg", *settings, "--lr", str(lr)]) == 0
    told = capsys.readouterr().err
    assert ("round 2/2  no finite loss" in told) is lost
    assert ("in 2 of 2 rounds no participant had a finite training loss" in told) is lost


@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
@pytest.mark.parametrize("large", [1e20, 1e30])
@pytest.mark.parametrize(
    ("method", "tuned", "kind"),
    [(method, 0, CENTRAL) for method in ("fedrep", "fedper", "scaffold", "feddyn", "flute", "local")]
    + [("fedavg", 2, CENTRAL), ("fedavg", 2, EXAMPLE), ("local", 0, EXAMPLE)],
)
def test_nor_does_its_own_state_end_the_run(
    method: str, tuned: int, kind: dict[str, Any], large: float, engine: str
) -> None:
    """It keeps the one before, also where heads travel uncut and come back, and where nothing is sent."""
    data = made_data((12, 9, 15), dtype="float32")
    data.x_train[data.train_indices(1)] *= large
    data.x_test[data.test_indices(1)] *= 0
    run = cg.train(method, data, rounds=2, model="mlp", engine=engine, **kind, finetune_epochs=tuned)
    assert all(bool(torch.isfinite(v).all()) for c in range(3) for v in run.trained.own(c).values())


@pytest.mark.parametrize(("kind", "told"), [(CENTRAL, False), (LOCAL, True), ({}, True)])
def test_figures_of_single_updates_are_not_told_beside_the_servers_noise(kind: dict[str, Any], told: bool) -> None:
    run = cg.train("lora", "digits", clients=4, model="mlp", rounds=1, metrics="full", **kind)
    for figure in ("body_drift", "aggregation_error"):
        assert (run.history[0][figure] is not None) is told, figure


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {"who": list("abcd") * 10, "x": [float(i) for i in range(40)], "y": ["no", "up"] * 20} | columns
    )


@pytest.mark.parametrize(
    ("columns", "options", "named", "others"),
    [
        ({}, {"scaling": "none"}, ("classes of the table's label", "medians, which stand for"),
         ("categories", "predicted", "means and deviations of")),
        ({"c": ["red", "blue"] * 20}, {"scaling": "none"}, ("categories of the table", "medians"), ("predicted",)),
        ({"z": [None, 1.0] * 20}, {"scaling": "client"}, ("medians, which stand for",), ("categories", "predicted")),
        ({"z": [None, 1.0] * 20}, {"scaling": "bounds:x=0:40,z=0:2"}, (), ("medians", "categories", "predicted")),
        ({}, {}, ("means and deviations of the table's numbers", "medians"), ("categories", "predicted")),
        ({}, {"scaling": "bounds:x=0:40"}, ("classes of the table's label",), ("medians", "means", "predicted")),
        ({"y": [float(i) for i in range(40)]}, {"scaling": "none", "task": "regression"},
         ("mean and deviation of what is predicted", "medians"), ("categories", "classes")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [CENTRAL, EXAMPLE])
def test_what_is_pooled_is_named(
    columns: dict[str, Any], options: dict[str, Any], named: tuple[str, ...], others: tuple[str, ...],
    kind: dict[str, Any],
) -> None:  # fmt: skip
    data = cg.load_data(table(**columns), client_column="who", target="y", **options)
    said = cg.train("fedavg", data, rounds=1, **kind).summary["privacy"]["not_covered"]
    assert all(text in said for text in named)
    assert not any(text in said for text in others)


def test_an_empty_cell_is_predicted_by_the_median_of_all_rows() -> None:
    """Also where no training cell was empty: so it is named."""
    data = cg.load_data(table(), client_column="who", target="y", scaling="none")
    run = cg.train("fedavg", data, rounds=1, **CENTRAL)
    assert run.trained.schema is not None
    (column,) = run.trained.schema.features
    assert column.fill == np.median([float(i) for i in range(40) if i in set(data.x_train[:, 0].tolist())])


@pytest.mark.parametrize("few", ["pool", "shared", "drop"])
def test_clients_that_hang_on_how_many_rows_one_has_are_refused(few: str, tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    asked: dict[str, Any] = {"client_column": "who", "target": "y", "few_rows": few, "min_rows": 5, "rounds": 1}
    with pytest.raises(ConfigError, match=f"--few-rows {few} makes clients of those that have enough rows"):
        cg.train("fedavg", str(tmp_path / "t.csv"), **asked, **CENTRAL)
    cg.train("fedavg", str(tmp_path / "t.csv"), **asked, **EXAMPLE)  # where a row is replaced, and none comes or goes


def test_estimators_do_not_pool_in_silence() -> None:
    X, y, who = np.arange(40.0).reshape(20, 2), np.arange(20) % 2, np.arange(20) // 5
    private: dict[str, Any] = {"settings": CENTRAL, "rounds": 1}
    with pytest.raises(ConfigError, match="standardize=True learns means and deviations of all clients' rows without"):
        FederatedClassifier("fedavg", **private).fit(X, y, who)
    FederatedClassifier("fedavg", standardize=False, **private).fit(X / 40, y, who)


def test_who_demands_privacy_tells_no_statistics(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(ConfigError, match="what its table holds would be told to agree on columns; give --schema"):
        Answering(OwnTable(tmp_path / "own.csv", "a", "y"), "a", tmp_path, demand="client")
    numbers = cg.FederatedDataset.from_arrays(
        [(np.ones((4, 2)), np.arange(4.0) + 1e6, np.ones((2, 2)), np.arange(2.0))], task=Regression((1e6,), (1.1,))
    )
    for demand, told in ((None, {"mean": [1e6], "std": [1.1]}), ("client", {"mean": [], "std": []})):
        hello = json.loads(Answering(numbers, "a", tmp_path, demand=demand).hello())  # type: ignore[arg-type]
        assert hello["task_settings"] == told


def test_targets_are_scaled_by_those_who_tell_theirs() -> None:
    parts = [
        (np.ones((4, 2)), y, np.ones((2, 2)), y[:2]) for y in (np.arange(4.0), np.arange(4.0) + 10, np.arange(4.0))
    ]
    told = []
    for c, task in enumerate((Regression((1.5,), (1.0,)), Regression((11.5,), (1.0,)), Regression())):
        own = cg.FederatedDataset.from_arrays([parts[c]], task=task)
        told.append(describe_client(own, f"client {c}"))
    agreed = described_dataset(told).task
    assert isinstance(agreed, Regression)
    assert agreed.mean == (6.5,)
    assert described_dataset(told[2:]).task == Regression()
    two = np.arange(8.0).reshape(4, 2)
    pair = cg.FederatedDataset.from_arrays([(np.ones((4, 2)), two, np.ones((2, 2)), two[:2])], task=Regression())
    with pytest.raises(DataError, match="'client 0' and 'pair' do not agree on the number of targets: 1 and 2"):
        described_dataset([told[0], describe_client(pair, "pair")])
    said = describe_client(pair, "pair").model_copy(update={"task_settings": {"mean": [1.0], "std": [1.0]}})
    with pytest.raises(DataError, match="this describes 2 targets, and the mean of 1"):
        read_description(said.model_dump_json())
