"""What a task's metric is called and how it is written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from commonground import train
from commonground.cli import main
from commonground.errors import ConfigError
from commonground.report import write_run_report
from commonground.report.format import show
from commonground.tasks import CLASSIFICATION, Headline, Metric, MultiLabel, Regression
from commonground.tasks.headline import in_figures

ACCURACY, RMSE, F1 = (Headline.of(task) for task in (CLASSIFICATION, Regression(), MultiLabel()))


def test_of_what_a_file_holds() -> None:
    assert Headline.of({"task": "regression", "metric": "rmse"}) == RMSE
    assert Headline.of({}) == ACCURACY  # files of before there were tasks
    assert Headline.of({"task": "multilabel"}) == F1
    with pytest.raises(ConfigError, match="the task 'ranking' is not defined here"):
        Headline.of({"task": "ranking", "metric": "ndcg"})


def test_means_that_differ_in_their_last_bit_read_alike() -> None:
    """Of two clients with 40 test rows each: over clients 0.36250000000000004, over rows 0.3625."""
    means, rows = (0.45 + 0.275) / 2, 29 / 80
    assert means != rows
    assert ACCURACY.show(means) == ACCURACY.show(rows) == show(means, "percent") == show(rows, "percent") == "36.2 %"
    assert ACCURACY.spread({"mean": means, "std": rows}) == "36.2 ± 36.2"


def test_names_keys_and_direction() -> None:
    assert [h.name for h in (ACCURACY, RMSE, F1)] == ["accuracy", "RMSE", "F1"]
    assert [h.title for h in (ACCURACY, RMSE, F1)] == ["Accuracy", "RMSE", "F1"]
    assert (RMSE.personal, RMSE.shared, RMSE.worst_tenth, RMSE.worst) == ("personal_rmse", "global_rmse", "p90", "max")
    assert (ACCURACY.worst_tenth, ACCURACY.worst, ACCURACY.percentile) == ("p10", "min", "10th percentile")
    assert (RMSE.better, RMSE.best([2.0, None, 1.0]), F1.best([0.2, 0.4]), F1.best([None])) == ("lower", 1.0, 0.4, None)
    assert (ACCURACY.counted_one, RMSE.counted_one, F1.counted_one) == ("class", "target", "label")
    others = RMSE.others({"metrics": {"rmse": {}, "mae": {}, "r2": {}}})
    assert [(m.name, m.percent) for m in others] == [("MAE", False), ("R²", False)]
    assert F1.others({"metrics": {"subset_accuracy": {}}}) == [Metric("subset_accuracy", True)]


def test_numbers() -> None:
    assert [ACCURACY.show(v) for v in (0.80849, None)] == ["80.8 %", "–"]
    assert [RMSE.show(v) for v in (0.31274, 12.345678, 123456.7, 0.0, 2e-7)] == [
        "0.3127", "12.35", "123,457", "0.000", "2.000·10⁻⁷",
    ]  # fmt: skip
    assert ACCURACY.spread({"mean": 0.805, "std": 0.012}) == "80.5 ± 1.2"
    assert RMSE.spread({"mean": 0.31274, "std": 0.002}) == "0.313 ± 0.002"
    assert RMSE.spread({"mean": 0.31274, "std": None}) == "0.3127"
    assert ACCURACY.changes([0.031, None]) == ["+3.1", "–"]
    assert RMSE.changes([-0.0123, -0.2, 0.1751]) == ["-0.012", "-0.200", "+0.175"]
    assert in_figures(1.5e10) == "1.500·10¹⁰"


def test_a_column_has_one_notation() -> None:
    """A mean of squares may be 10⁻⁶ for one method and 0.2 for another."""
    small, large = {"mean": 2.5e-6, "std": None}, {"mean": 0.2, "std": 0.01}
    assert RMSE.spreads([large, large]) == ["0.200 ± 0.010"] * 2
    assert RMSE.spreads([small, large]) == ["2.500·10⁻⁶", "2.00·10⁻¹ ± 1.00·10⁻²"]
    none, zero = {"mean": None, "std": None}, {"mean": 0.0, "std": 0.0}
    assert RMSE.spreads([small, none, zero])[1:] == ["–", "0.00·10⁰ ± 0.00·10⁰"]
    assert ACCURACY.spreads([small, large]) == ["0.0", "20.0 ± 1.0"]


def test_few_test_samples_are_told_where_they_are_among_the_worst() -> None:
    def few(metric: Headline, *clients: tuple[float, float], least: int = 1) -> str:
        values, tests = np.array([*[(0.9, 40)] * (20 - len(clients)), *clients], float).T
        return metric.few_tests(values, tests, least)

    assert few(ACCURACY, (0.1, 3), (0.2, 40)) == (
        "1 of 20 clients has fewer than 5 test samples, 1 of them in the worst tenth ("
        "--worst-min-rows 5 leaves them out of it)."
    )
    assert few(ACCURACY, (0.1, 30), (0.95, 1)) == ""
    assert few(RMSE, (0.1, 30), (0.95, 1)) != ""
    assert few(ACCURACY, (0.3, 4), (0.1, 4), (math.nan, 0), least=0).startswith("3 of 20 clients have fewer")
    assert few(ACCURACY, (0.3, 4), (0.1, 4), (math.nan, 0)).startswith("2 of 19 clients have fewer")
    assert few(ACCURACY, (0.3, 4), (0.1, 4), (math.nan, math.nan), least=5) == ""


def test_one_round_is_no_1_rounds(tmp_path: Path) -> None:
    train("fedavg", clients=2, rounds=1, model="mlp", out=tmp_path / "run")
    write_run_report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "1 round," in page
    assert "1 rounds" not in page


def test_the_worst_tenth_after_each_round_is_told_in_the_metric_that_rounds_tell(tmp_path: Path) -> None:
    """Rounds have accuracies, whatever a comparison ranks by: they were drawn as log losses."""
    given = ["--clients", "5", "--classes-per-client", "2", "--rounds", "3", "--seeds", "1", "--engine", "serial"]
    assert main(["compare", "fedrep", "fedavg", *given, "--rank-by", "log_loss", "--out", str(tmp_path / "c")]) == 0
    header, *rows = (tmp_path / "c" / "figures" / "worst-decile.csv").read_text().splitlines()
    assert "10th percentile of accuracy" in header
    assert "log loss" not in header
    run = next((tmp_path / "c").glob("**/fedavg*/**/rounds.jsonl"))
    worst = json.loads(run.read_text().splitlines()[-1])["worst_decile"]
    (drawn,) = (row for row in rows if row.startswith("FedAvg,3,"))
    assert float(drawn.split(",")[2]) == pytest.approx(worst)
