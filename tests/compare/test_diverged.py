"""Methods whose training diverges: they have no figures, and the others are compared as if they had not been named."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from commonground import compare
from commonground.compare import Comparison
from commonground.compare.observer import Step
from commonground.compare.progress import ComparisonProgress
from commonground.compare.tables import tuning_table
from commonground.engine import run_training
from commonground.errors import NotFiniteError, UpdateError

module = import_module("commonground.compare.comparing")

FEW: dict[str, Any] = {"clients": 4, "rounds": 2, "engine": "serial", "local_only": False}
FEW_ROUNDS = {key: FEW[key] for key in ("clients", "rounds", "engine")}
TOO_FAST = "fedavg:lr=1e12"


class Ears(ComparisonProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []
        self.heard: list[str] = []
        self.planned: list[list[int]] = []

    def plan(self, steps: Any) -> None:
        super().plan(steps)
        self.planned.append([step.number for step in steps])

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, step: Any) -> None:
        self.heard.append(step.text)


def test_the_others_are_compared_as_if_it_had_not_been_named(tmp_path: Path) -> None:
    ears = Ears()
    with_it = compare(["fedrep", TOO_FAST, "fedper"], "digits", 2, tmp_path / "a", observer=ears, **FEW)
    without = compare(["fedrep", "fedper"], "digits", 2, tmp_path / "b", **FEW)
    changing = ("seconds", "runs")
    figures = [
        [{key: value for key, value in entry.items() if key not in changing} for entry in each.result["methods"]]
        for each in (with_it, without)
    ]
    assert figures[0] == figures[1]
    assert list(with_it.runs) == ["fedrep", "fedper"]
    assert "diverged" not in without.result
    (one,) = with_it.result["diverged"]
    assert (one["method"], one["seed"]) == ("fedavg:lr=1000000000000.0", 0)
    assert "training diverged; try a smaller --lr" in one["why"]
    assert with_it.footnotes()[0] == f"{one['title']} is left out, since with seed 0 {one['why']}."
    assert any("left out of the comparison" in note for note in ears.notes)
    # Nothing is spent on its second seed; the runs keep the numbers of the plan.
    assert ears.planned == [[1, 2, 3, 4, 5, 6], [1, 3, 4, 6]]
    last = Step(3, 6, "FedPer", 0, 2)
    ears.spent(last, 10.0, 2)
    assert ears.left(last, 0) == 20.0  # two runs of two rounds at 5 s a round
    assert [text.split("]")[0] for text in ears.heard] == ["[1/6", "[2/6", "[3/6", "[4/6", "[6/6"]


def test_files_and_tables_say_so(tmp_path: Path) -> None:
    compare(["fedrep", TOO_FAST], "digits", 1, tmp_path, **FEW)
    read = Comparison.read(tmp_path)
    title = read.result["diverged"][0]["title"]
    assert f"{title} diverged>" in repr(read)
    assert f"{title} diverged (seed 0)." in (tmp_path / "table.md").read_text("utf-8")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert f'<p class="note">{title} diverged with seed 0 and has no figures.</p>' in page
    assert f"<li>{title} is left out" in page
    for what in ("methods", "runs", "clients", "rounds"):
        assert set(read.to_pandas(what)["method"]) == {"fedrep"}


def test_seeds_that_it_survived_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trains(setup: Any, **how: Any) -> Any:
        if (setup.config.algorithm, setup.config.seed) == ("fedavg", 1):
            raise NotFiniteError("training diverged")
        return run_training(setup, **how)

    monkeypatch.setattr(module, "run_training", trains)
    grid = {"lr": [0.02, 0.05]}
    found = compare(["fedrep", "fedavg"], "digits", 3, tmp_path, grid=grid, **FEW)
    assert [entry["method"] for entry in found.result["methods"]] == ["fedrep"]
    tuned = [(each["method"], each["seed"]) for each in found.result["tuning"]]
    assert tuned == [("fedrep", 0), ("fedavg", 0), ("fedrep", 1), ("fedrep", 2)]
    table = tuning_table(found.result)
    assert table is not None
    assert [tuple(bool(row[f"seed {seed}"].strip()) for seed in range(3)) for row in table.rows] == [
        (True, True, True),
        (True, True, True),
        (True, False, False),
        (True, False, False),
    ]
    assert found.result["diverged"][0]["seed"] == 1
    assert (tmp_path / "fedavg" / "seed-0" / "summary.json").exists()
    assert not (tmp_path / "fedavg" / "seed-2").exists()
    monkeypatch.undo()  # the cause is mended: what is missing is trained, and it is compared
    whole = compare(["fedrep", "fedavg"], "digits", 3, tmp_path, grid=grid, **FEW)
    assert [entry["method"] for entry in whole.result["methods"]] == ["fedrep", "fedavg"]
    assert "diverged" not in json.loads((tmp_path / "comparison.json").read_text("utf-8"))


def test_without_its_reference_there_is_no_comparison() -> None:
    says = r"FedAvg \(lr=.*\), seed 0: .*training diverged; try a smaller --lr .*: name another by --reference$"
    with pytest.raises(NotFiniteError, match=says):
        compare([TOO_FAST, "fedrep"], "digits", 1, **FEW)
    found = compare([TOO_FAST, "fedrep"], "digits", 1, reference="fedrep", **FEW)
    assert [entry["method"] for entry in found.result["methods"]] == ["fedrep"]


def test_an_update_of_the_wrong_shape_is_no_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    def trains(setup: Any, **how: Any) -> Any:
        if setup.config.algorithm == "fedavg":
            raise UpdateError("an update has the wrong shape")
        return run_training(setup, **how)

    monkeypatch.setattr(module, "run_training", trains)
    with pytest.raises(UpdateError, match="FedAvg, seed 0: an update has the wrong shape"):
        compare(["fedrep", "fedavg"], "digits", 1, **FEW)
