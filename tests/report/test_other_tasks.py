"""Pages of runs whose metric is no accuracy: its name, unit and direction are those of the run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from commonground.errors import RunError
from commonground.report import write_report
from tests.report.test_pages import Page, look_up, settled


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_page_of_regression_speaks_of_rmse(regression_folder):
    page = Page(write_report(regression_folder))
    summary = json.loads((regression_folder / "summary.json").read_text())
    keys = ["personal_rmse.mean", "personal_rmse.std", "personal_rmse.p90", "personal_rmse.max",
            "metrics.rmse.over_rows", "metrics.mae.mean", "metrics.r2.over_rows"]  # fmt: skip
    for key in keys:
        assert page.numbers[key] == look_up(summary, key), key
    assert "accuracy" not in page.text.lower()
    assert "NC2" not in page.text
    assert "Who holds which" not in page.text
    for text in ("RMSE, mean over clients", "or more (90th percentile)", "lower is better", "the highest RMSE"):
        assert text in page.text
    assert " over all rows" in page.text
    assert {path.stem for path in (regression_folder / "figures").glob("*.csv")} >= {"rmse", "rmse-bytes", "clients"}


def test_clients_stand_from_the_worst_to_the_best(regression_folder, multilabel_folder):
    for folder, name, down in ((regression_folder, "RMSE", True), (multilabel_folder, "F1", False)):
        write_report(folder)
        values = [float(row[name]) for row in rows_of(folder / "figures" / "clients.csv")]
        assert values == sorted(values, reverse=down)


def test_few_test_samples_of_the_worst_are_told(regression_folder):
    path = regression_folder / "clients.csv"
    rows = rows_of(path)
    rows[0]["personal_rmse"] = "9.5"  # this client has 3 test samples
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    assert (
        "2 of 6 clients have fewer than 5 test samples, 1 of them"
        in Page(write_report(settled(regression_folder))).text
    )


def test_a_page_of_labels(multilabel_folder):
    page = Page(write_report(multilabel_folder))
    for text in ("F1, mean over clients", "Who holds which labels", "Subset accuracy", "or less (10th percentile)"):
        assert text in page.text
    assert (multilabel_folder / "figures" / "split.csv").read_text().startswith("label \\ client,")


def test_a_comparison_of_regressions(regression_comparison):
    page = Page(write_report(regression_comparison))
    whole = json.loads((regression_comparison / "comparison.json").read_text())
    assert len(page.numbers) > 20
    for key, value in page.numbers.items():
        assert value == look_up(whole, key), key
    means = [m["personal_rmse"]["mean"] for m in whole["methods"]]
    bold = [a["data-key"] for _, a in page.elements if "best" in (a.get("class") or "") and "rmse" in a["data-key"]]
    assert f"methods[{means.index(min(means))}].personal_rmse.mean" in bold
    assert f"methods[{means.index(max(means))}].personal_rmse.mean" not in bold
    for text in ("Best RMSE", "(below 0 is better)", "left of zero is better, right is worse", "further left is better",
                 "a curve further left or lower", "R²"):  # fmt: skip
        assert text in page.text
    assert "accuracy" not in page.text.lower()
    curve = rows_of(regression_comparison / "figures" / "clients.csv")
    values = [float(row["RMSE"]) for row in curve if row["series"] == "FedRep"]
    assert values == sorted(values, reverse=True)


def test_new_clients_of_regression(regression_folder):
    results = [{"method": "frozen body", "shots": k, "mean": 0.5 / k, "std": 0.1, "p10": 0.1, "p90": 0.9, "repeats": 1}
               for k in (4, 8)]  # fmt: skip
    about: dict[str, Any] = {"data": "houses", "clients": 3, "task": "regression", "metric": "rmse", "results": results}
    (regression_folder / "adapt.json").write_text(json.dumps(about))
    assert "RMSE by number of samples" in Page(write_report(regression_folder)).text
    assert [float(r["RMSE"]) for r in rows_of(regression_folder / "figures" / "adapt.csv")] == [0.125, 0.0625]


def test_a_single_new_client_has_no_spread(run_folder):
    results = [{"method": "frozen body", "shots": 4, "mean": 0.5, "std": 0.0, "p10": 0.5, "p90": 0.5, "repeats": 1}]
    about: dict[str, Any] = {"data": "new.csv", "clients": 1, "results": results}
    (run_folder / "adapt.json").write_text(json.dumps(about))
    page = Page(write_report(run_folder))
    assert "1 client of new.csv that never took part" in page.text
    assert "results[0].mean" in page.numbers
    assert "results[0].std" not in page.numbers
    (run_folder / "adapt.json").write_text(json.dumps(about | {"clients": 2}))
    assert "results[0].std" in Page(write_report(run_folder)).numbers


def test_metrics_of_a_part_of_the_clients_say_of_how_many(regression_comparison):
    path = regression_comparison / "comparison.json"
    whole = json.loads(path.read_text())
    assert "clients)" not in Page(write_report(regression_comparison)).text
    whole["methods"][0]["metrics"]["r2"]["clients"] = 2
    path.write_text(json.dumps(whole))
    assert f" (2 of {whole['clients']} clients)" in Page(write_report(regression_comparison)).text


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("clients.csv", lambda text: text.replace("personal_rmse", "rmse"), "a column personal_rmse"),
        ("summary.json", lambda text: text.replace('"personal_rmse"', '"other"'), "the algorithm and personal_rmse"),
        ("summary.json", lambda text: text.replace('"regression"', '"ranking"'), "the task 'ranking' is not defined"),
    ],
)
def test_damage_is_named_by_the_runs_own_metric(regression_folder, name, change, sentence):
    path = regression_folder / name
    path.write_text(change(path.read_text()))
    with pytest.raises(RunError, match=sentence):
        write_report(regression_folder)
