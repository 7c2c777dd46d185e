"""Comparisons by a metric of which less is better, and by one that is not defined for every client."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from commonground.compare import Comparison, compare
from commonground.compare.progress import ComparisonProgress
from commonground.compare.tables import headline_table, target_table
from commonground.errors import ConfigError
from commonground.statistics import paired_difference
from tests.other_tasks import multilabel_data, regression_data

SMALL: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": [8]}, "rounds": 3, "engine": "serial", "lr": 0.05}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "it"
    return compare(["fedrep", "fedavg"], regression_data(), 2, out, grid={"lr": [1e-5, 0.05]}, **SMALL)


def test_the_candidate_with_the_lowest_error_is_chosen(finished):
    for each in finished.to_dict()["tuning"]:
        scores = {c["settings"]["lr"]: c["validation_rmse"] for c in each["candidates"]}
        assert each["validation_rmse"] == min(scores.values())
        assert each["chosen"]["lr"] == min(scores, key=scores.__getitem__)


def test_the_figures_are_those_of_the_runs(finished):
    result = finished.to_dict()
    assert (result["task"], result["metric"]) == ("regression", "rmse")
    for entry in result["methods"]:
        summaries = [run.summary for run in finished.runs[entry["method"]]]
        for key, part in (("personal_rmse", "mean"), ("p90", "p90"), ("max", "max")):
            assert entry[key]["mean"] == pytest.approx(np.mean([s["personal_rmse"][part] for s in summaries]))
        assert set(entry["metrics"]) == {"mse", "mae", "r2"}
        assert "p10" not in entry
    with (finished.folder / "table.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert float(row["personal_rmse_mean"]) == result["methods"][0]["personal_rmse"]["mean"]
    for metrics in (entry["metrics"] for entry in result["methods"]):
        assert {metric["clients"] for metric in metrics.values()} == {result["clients"]}
    assert float(row["mae_clients"]) == result["clients"]
    assert float(row["mae_mean"]) == result["methods"][0]["metrics"]["mae"]["mean"]


def test_the_best_row_has_the_lowest_error_and_signs_are_explained(finished):
    result = finished.to_dict()
    means = [entry["personal_rmse"]["mean"] for entry in result["methods"]]
    assert headline_table(result).bold == {means.index(min(means))}
    fedavg = result["methods"][1]
    assert fedavg["differences"]["mean"] == pytest.approx(means[1] - means[0])
    notes = " ".join(finished.footnotes())
    assert "lower is better; worst tenth: 90th percentile" in notes
    assert "below zero is better" in notes
    assert "percentage points" not in notes
    assert "accuracy" not in notes


def test_tables_of_errors_fit_their_console(finished):
    console = Console(width=110, record=True, file=io.StringIO())
    again = Comparison.read(finished.folder)
    for table in (again.tuning_table(), again.table(), again.metric_table(), again.cost_table()):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, map(str.rstrip, text.splitlines()))) <= 88
    for word in ("validation RMSE", "R²", "global"):
        assert word in text
    assert "accuracy" not in text
    assert "%" not in text.replace("95 %", "")


def test_progress_tells_the_error(capsys):
    compare(["fedrep"], regression_data(), 1, observer=ComparisonProgress(), grid={"lr": [0.01, 0.05]}, **SMALL)
    said = capsys.readouterr().err
    assert "personal validation RMSE 0." in said or "personal validation RMSE 1." in said
    assert "(validation RMSE " in said
    assert "accuracy" not in said


def test_a_target_of_an_error_is_what_it_falls_to(tmp_path):
    """An RMSE that is reached in the middle of training, by the rounds of the run itself."""
    slow = SMALL | {"rounds": 6, "lr": 0.003}
    once = compare(["fedavg"], regression_data(), 1, local_only=False, **slow)
    errors = [row["personal_rmse"] for row in once.runs["fedavg"][0].history]
    goal = sorted(errors)[2]
    first = next(n for n, error in enumerate(errors, 1) if error <= goal)
    assert 1 < first < 6
    result = compare(["fedavg"], regression_data(), 1, tmp_path / "c", local_only=False, target=goal, **slow)
    entry = result.to_dict()["methods"][0]
    rows = result.runs["fedavg"][0].history[:first]
    assert (entry["to_rmse"]["rounds"], entry["to_rmse"]["reached"]) == (first, 1)
    assert entry["to_rmse"]["bytes"] == sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    assert "to_accuracy" not in entry
    costs = target_table(result.to_dict())
    assert costs is not None
    assert costs.title == f"to RMSE {goal:g}"
    assert any("until the RMSE on test samples first falls to it" in note for note in result.footnotes())
    page = (tmp_path / "c/report.html").read_text()
    assert f"Rounds to {goal:g}" in page
    with (tmp_path / "c/table.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert (float(row["target"]), float(row["rounds_to_target"]), row["seeds_to_target"]) == (goal, first, "1")
    never = compare(["fedavg"], regression_data(), 1, local_only=False, to_metric=1e-9, **SMALL)
    assert never.to_dict()["methods"][0]["to_rmse"] is None
    assert "FedAvg did not reach it." in never.footnotes()


def test_a_target_is_of_the_metric_there_is():
    says = (
        "--to-accuracy asks for an accuracy, which houses, a task of regression, has not; --to-metric asks for its RMSE"
    )
    with pytest.raises(ConfigError, match=f"^{says}$"):
        compare(["fedavg"], regression_data(), 1, to_accuracy=0.5, **SMALL)
    with pytest.raises(ConfigError, match=r"the target 80 is no F1; give a number above 0 and at most 1, such as 0\.8"):
        compare(["fedavg"], multilabel_data(), 1, to_metric=80, **SMALL)
    for value in (float("inf"), -1.0, 0):
        with pytest.raises(ConfigError, match=f"the target {value:g} is no RMSE; give a number above 0"):
            compare(["fedavg"], regression_data(), 1, to_metric=value, **SMALL)
    with pytest.raises(ConfigError, match="give one of to_accuracy and to_metric: there is one target"):
        compare(["fedavg"], regression_data(), 1, to_metric=0.5, to_accuracy=0.5, **SMALL)


def test_clients_without_a_figure_are_left_out_of_the_pairs():
    result = compare(["fedrep", "fedavg"], multilabel_data(none_for=2), 1, local_only=False, **SMALL | {"rounds": 8})
    rows = {label: [row["personal_f1"] for row in runs[0].clients] for label, runs in result.runs.items()}
    defined = [one != "" and other != "" for one, other in zip(rows["fedrep"], rows["fedavg"], strict=True)]
    entry = result.to_dict()["methods"][1]
    assert entry["differences"]["pairs"] == sum(defined)
    pairs = [b - a for a, b, there in zip(rows["fedrep"], rows["fedavg"], defined, strict=True) if there]
    assert entry["differences"]["mean"] == pytest.approx(np.mean(pairs))


def test_pairs_that_are_not_defined():
    rng = np.random.default_rng(0)
    nan = np.nan
    one = [np.array([0.5, nan, 0.7]), np.array([0.6, 0.2, 0.9])]
    other = [np.array([0.4, 0.3, 0.5]), np.array([0.5, 0.1, nan])]
    same = paired_difference(one, other, same_clients=True, rng=rng)
    assert same.pairs == 3
    assert same.mean == pytest.approx(np.mean([0.1, 0.1, 0.2]))  # of the pairs, as the interval is
    others = paired_difference(one, other, same_clients=False, rng=rng)
    assert others.pairs == 4
    assert others.mean == pytest.approx(np.mean([0.1, 0.2, 0.1, 0.1]))
    assert paired_difference([one[0] * nan], [other[0]], same_clients=True, rng=rng).pairs == 0


def test_figures_of_a_kept_round_are_not_called_those_of_the_last(tmp_path):
    early = compare(["fedrep"], regression_data(), 1, tmp_path / "c", early_stopping=1, validation_fraction=0.3,
                    local_only=False, **SMALL)  # fmt: skip
    first = next(note for note in early.footnotes() if note.startswith("RMSE: "))
    assert "test samples after the round that early stopping kept; " in first
    assert "last 10 rounds up to that one." in first
    assert not any("after the last round" in note for note in early.footnotes())
    page = (tmp_path / "c" / "report.html").read_text("utf-8")
    assert "own test samples after the round that early stopping kept" in page
    assert "after the last round" not in page
    plain = compare(["fedrep"], regression_data(), 1, local_only=False, **SMALL)
    assert "test samples after the last round; " in plain.footnotes()[0]


def test_functions_in_place_of_metrics_are_refused_by_the_way_that_works() -> None:
    for given in ({"most": lambda y, p: 0.0}, "own.py:most"):
        with pytest.raises(ConfigError, match=r"metric=file\.py:f"):
            compare(["fedavg"], "digits", 1, metrics=given)
