"""Where personal models help: the files' differences, in order, with sizes, and the right two methods."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from commonground import train
from commonground.compare import compare
from commonground.engine.state.csv_rows import CsvRows
from commonground.report import write_report
from commonground.report.compared import read_comparison
from commonground.report.gains import within_run
from commonground.report.read import read_run
from tests.other_tasks import regression_data


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "clients.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_run_with_both_models_shows_both_ends(tmp_path: Path) -> None:
    train("fedavg", "digits", clients=30, classes_per_client=2, rounds=2, finetune_epochs=3, out=tmp_path / "run")
    text = write_report(tmp_path / "run").read_text("utf-8")
    wanted = {
        row["name"]: float(row["personal_accuracy"]) - float(row["global_accuracy"]) for row in rows(tmp_path / "run")
    }
    gains = within_run(read_run(tmp_path / "run"))
    assert gains is not None
    assert {gain.client: gain.better for gain in map(gains.gain, range(len(gains)))} == pytest.approx(wanted)
    values = gains.better.tolist()
    assert values == [gains.gain(place).better for place in range(30)]
    assert values == sorted(values, reverse=True)
    better, worse = sum(v > 0 for v in values), sum(v < 0 for v in values)
    assert f"better than the global one at {better} of 30 clients, worse at {worse}" in text
    body = text[text.index('aria-label="Clients that gain most and least"') :]
    body = body[: body.index("</table>")]
    shown = [gains.gain(place) for place in (*range(10), *range(20, 30))]
    assert body.count("<tr>") == 22
    assert "… 10 clients between these and those below" in body
    for gain in shown:
        assert f'data-value="{gain.better!r}"' in body
        assert f'data-value="{gain.train!r}"' in body


def test_among_equal_gains_those_of_more_tests_come_first_then_those_of_the_file(tmp_path: Path) -> None:
    train("fedavg", "digits", clients=4, rounds=1, finetune_epochs=1, out=tmp_path / "run")
    heads = "name,train_samples,test_samples,personal_accuracy,global_accuracy"
    lines = ("a,9,3,0.5,0.25", "b,9,7,0.5,0.25", "c,9,,0.5,0.25", "d,9,7,0.75,0.5", "e,9,1,0.75,0.25", "f,9,1,,0.25")
    clients = CsvRows("\n".join([heads, *lines]).encode())
    gains = within_run(replace(read_run(tmp_path / "run"), clients=clients))
    assert gains is not None
    assert [gains.gain(place).client for place in range(5)] == ["e", "b", "d", "a", "c"]
    assert len(gains) == 5


def test_more_of_an_error_is_no_gain(tmp_path: Path) -> None:
    train("fedavg", regression_data(), rounds=2, model="mlp", model_options={"hidden": [8]}, finetune_epochs=2,
          out=tmp_path / "run")  # fmt: skip
    gains = within_run(read_run(tmp_path / "run"))
    assert gains is not None
    assert gains.better.tolist() == [gains.gain(place).better for place in range(len(gains))]
    assert gains.better.tolist() == sorted(gains.better, reverse=True)
    for row in rows(tmp_path / "run"):
        found = (gains.gain(place) for place in range(len(gains)))
        better = next(gain.better for gain in found if gain.client == row["name"])
        assert better == pytest.approx(float(row["global_rmse"]) - float(row["personal_rmse"]))


def test_without_a_global_model_the_page_says_what_to_do(run_folder: Path) -> None:
    text = write_report(run_folder).read_text("utf-8")
    assert "no global model to compare the clients" in text
    assert "Clients that gain most and least" not in text


def test_a_comparison_asks_local_only(tmp_path: Path) -> None:
    """Whose clients are the same ones for all seeds only where they have names: here the seed is told with each."""
    compare(["fedavg", "fedrep", "local"], "digits", 2, tmp_path, clients=6, classes_per_client=2, rounds=4)
    text = write_report(tmp_path).read_text("utf-8")
    contrast = read_comparison(tmp_path).contrast
    assert contrast is not None
    best, other = contrast
    methods = json.loads((tmp_path / "comparison.json").read_text())["methods"]
    means = {method["title"]: method["personal_accuracy"]["mean"] for method in methods}
    assert means[best.title] == max(mean for title, mean in means.items() if title != "Local Only")
    assert other.title == "Local Only"
    assert best.title == "FedRep"
    assert "FedRep is better than Local Only at" in text
    body = text[text.index('aria-label="Clients that gain most and least"') :]
    for own, theirs in zip(best.runs, other.runs, strict=True):
        for mine, value in zip(own.clients, theirs.clients, strict=True):
            gain = float(mine["personal_accuracy"]) - float(value["personal_accuracy"])
            assert (
                f'<th scope="row">{mine["name"]}, seed {own.summary["seed"]}</th><td class="n" data-value="{gain!r}"'
                in body
            )
