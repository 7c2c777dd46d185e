"""Tuning on training data alone."""

from __future__ import annotations

import html
import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonground import FederatedDataset, load_data
from commonground.cli import main
from commonground.compare import Comparison, compare, validation_split
from commonground.compare.grid import candidates, edge_notes, on_edge, parse_grid
from commonground.compare.methods import Method
from commonground.compare.progress import ComparisonProgress
from commonground.compare.tables import tuning_table
from commonground.data.model_inputs import ModelInputs
from commonground.engine import run_training
from commonground.errors import ConfigError, DataError, NotFiniteError, RunError, UpdateError
from tests.helpers import digits, made_data

module = import_module("commonground.compare.comparing")


def test_the_split_takes_training_samples_only():
    data = digits()
    inner = validation_split(data, 0.2, seed=1)
    assert inner.x_test is data.x_train  # the true test samples are not even there
    assert inner.clients == data.clients
    for client in range(data.clients):
        train, held = set(inner.train_indices(client)), set(inner.test_indices(client))
        assert not train & held
        assert train | held == set(data.train_indices(client))
        assert len(held) == max(1, round(0.2 * len(train | held)))


def test_the_split_is_stratified():
    data = digits()
    inner = validation_split(data, 0.2)
    whole, held, kept = data.class_counts(), inner.class_counts("test"), inner.class_counts()
    assert (np.abs(held - 0.2 * whole) <= 1.5).all()
    assert (kept[whole > 0] > 0).all()


def test_the_split_is_keyed():
    one, again, other = (validation_split(digits(), 0.2, seed) for seed in (1, 1, 2))
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()
    assert one.fingerprint() != digits().fingerprint()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_client_keeps_one_and_gives_one(sizes, fraction, seed):
    data = made_data(sizes, seed=seed)
    able = [n for n in sizes if n > 1]
    if not able:
        with pytest.raises(DataError, match="two training samples"):
            validation_split(data, fraction, seed)
        return
    inner = validation_split(data, fraction, seed)
    assert inner.clients == len(able)  # a client with one sample is left out
    assert (inner.train_sizes + inner.test_sizes == able).all()
    assert (inner.test_sizes == np.clip([round(fraction * n) for n in able], 1, np.array(able) - 1)).all()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_out_of_range(fraction):
    with pytest.raises(ConfigError, match="validation share"):
        validation_split(digits(), fraction)


def test_reading_a_grid():
    assert parse_grid(["lr=0.003, 0.01", "head-epochs=5"]) == {"lr": [0.003, 0.01], "head_epochs": [5]}
    for text, says in (
        ("lr", "not of the form"), ("lr=", "not of the form"), ("=1", "not of the form"), ("l r=1", "not of the form"),
        ("lr=1,,2", "not of the form"), ("lr=1,1", "names a value twice"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            parse_grid([text])
    with pytest.raises(ConfigError, match="names 'lr' twice"):
        parse_grid(["lr=1", "lr=2"])


def test_candidates_are_what_a_method_has_and_does_not_set():
    grid: dict[str, Any] = {"lr": [0.1, 0.2], "head_epochs": [1, 2]}
    assert len(candidates(Method.parse("fedrep"), grid)) == 4
    assert candidates(Method.parse("fedavg"), grid) == [{"lr": 0.1}, {"lr": 0.2}]
    assert candidates(Method.parse("fedrep:lr=1"), grid) == [{"head_epochs": 1}, {"head_epochs": 2}]
    assert candidates(Method.parse("fedavg:lr=1"), grid) == [{}]


SMALL: dict[str, Any] = {
    "clients": 4,
    "rounds": 2,
    "engine": "serial",
    "batch_size": 50,
    "model_options": {"hidden": [8]},
}


def test_tuning_never_touches_a_test_sample(monkeypatch):
    """Every row any run reads is recorded, with the array it came from."""
    tuning = False
    read: list[tuple[bool, FederatedDataset, str, set[int]]] = []
    rows, run_training, load = ModelInputs.rows, module.run_training, module.Comparing._load
    loaded: dict[int, FederatedDataset] = {}

    def recorded(self, split, index):
        read.append((tuning, self.data, split, set(np.asarray(index).tolist())))
        return rows(self, split, index)

    def marked(setup, *, out, resume, observer, **more):
        nonlocal tuning
        tuning = setup.data is not loaded[setup.config.seed]
        run = run_training(setup, out=out, resume=resume, observer=observer, **more)
        tuning = False
        return run

    def kept(self, seed):
        loaded[seed] = load(self, seed)
        return loaded[seed]

    monkeypatch.setattr(ModelInputs, "rows", recorded)
    monkeypatch.setattr(module, "run_training", marked)
    monkeypatch.setattr(module.Comparing, "_load", kept)
    result = compare(["fedrep", "fedavg+ft"], seeds=2, grid={"lr": [0.01, 0.1]}, **SMALL).to_dict()

    while_tuning = [(data, split, index) for during, data, split, index in read if during]
    true_tests = [data.x_test for data in loaded.values()]
    assert {split for _, split, _ in while_tuning} == {"train", "test"}
    for data, _, index in while_tuning:
        for true_test in true_tests:
            assert not np.shares_memory(data.x_train, true_test)
            assert not np.shares_memory(data.x_test, true_test)
        # Not even as training rows that no client owns.
        assert index <= set(np.concatenate([d.train_index for d in loaded.values()]).tolist())
    assert any(split == "test" for during, _, split, _ in read if not during)
    assert len(result["tuning"]) == 3 * 2  # three methods with Local Only, two seeds


def test_the_best_candidate_is_taken_and_all_are_told(tmp_path):
    comparison = compare(
        ["fedrep", "fedavg:lr=0.07"], seeds=2, out=tmp_path, local_only=False,
        grid={"lr": [1e-5, 0.1], "head_epochs": [3]}, **SMALL,
    )  # fmt: skip
    tuning = comparison.to_dict()["tuning"]
    assert [(each["method"], each["seed"]) for each in tuning] == [("fedrep", 0), ("fedrep", 1)]
    for each in tuning:
        scores = {c["settings"]["lr"]: c["validation_accuracy"] for c in each["candidates"]}
        assert set(scores) == {1e-5, 0.1}
        assert each["chosen"] == {"lr": max(scores, key=scores.__getitem__), "head_epochs": 3}
        assert each["validation_accuracy"] == max(scores.values())
    fedrep, fedavg = comparison.to_dict()["methods"]
    assert (fedrep["settings"]["lr"], fedrep["settings"]["head_epochs"]) == (0.1, 3)
    assert fedavg["settings"]["lr"] == 0.07
    assert comparison.runs["fedrep"][0].config.lr == 0.1
    assert comparison.tuning_table() is not None
    assert (tmp_path / "fedrep" / "tuning" / "seed-0" / "lr=0.1-head_epochs=3" / "summary.json").is_file()
    assert not list(tmp_path.glob("fedrep/tuning/**/checkpoint"))
    # The final runs see all training samples.
    assert sum(c["train_samples"] for c in comparison.runs["fedrep"][0].clients) == 1258


def test_a_wider_grid_that_chooses_anew_says_what_to_do(tmp_path: Path) -> None:
    def tuned(*rates: float) -> Comparison:
        return compare(["fedrep"], seeds=1, out=tmp_path, local_only=False, grid={"lr": rates}, **SMALL)

    tuned(1e-5, 1e-4)
    folder = tmp_path / "fedrep" / "seed-0"
    with pytest.raises(
        RunError, match=r"^the grid now chooses lr=0\.1 for FedRep, seed 0, but .*; delete that folder "
    ):
        tuned(1e-5, 1e-4, 0.1)
    shutil.rmtree(folder)
    assert tuned(1e-5, 1e-4, 0.1).runs["fedrep"][0].config.lr == 0.1


@pytest.mark.parametrize("by_name", [True, False])
def test_a_grid_with_few_samples(by_name, monkeypatch):
    """Limits hold for the comparison's data; their validation part is cut from what the limits leave."""
    seen = []

    def looking(setup, **kwargs):
        seen.append((setup.data.train_sizes.tolist(), setup.data.test_sizes.tolist()))
        return run_training(setup, **kwargs)

    run_training = module.run_training
    monkeypatch.setattr(module, "run_training", looking)
    data = {} if by_name else {"data": digits(), "clients": digits().clients}
    compare(["fedavg"], seeds=1, grid={"lr": [0.01, 0.1]}, local_only=False, train_samples=20, test_samples=9,
            **(SMALL | data))  # fmt: skip
    clients = len(seen[0][0])
    assert seen == [([16] * clients, [4] * clients)] * 2 + [([20] * clients, [9] * clients)]


def test_the_first_of_equally_good_candidates_is_taken():
    result = compare(["local"], seeds=1, grid={"workers": [1, 2]}, **SMALL).to_dict()
    assert result["tuning"][0]["chosen"] == {"workers": 1}


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"nonsense": [1]}, "no method of this comparison has the grid's setting 'nonsense'"),
        ({"participation": [0.1, 1.0]}, "must be equal for all methods"),
        ({"lr": []}, "at least one value"),
        ({"lr": "0.1"}, "at least one value"),
        ({"lr": [0.1, -1.0]}, "'lr' is -1.0"),
    ],
)
def test_mistakes_in_a_grid(grid, says):
    with pytest.raises(ConfigError, match=says):
        compare(["fedavg"], grid=grid, **SMALL)


def test_a_candidate_that_diverges_is_not_chosen_and_does_not_end_the_comparison() -> None:
    notes: list[str] = []

    class Ears(ComparisonProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    few: dict[str, Any] = {"local_only": False, "clients": 4, "rounds": 2, "engine": "serial"}
    comparison = compare(["fedavg"], "digits", 1, grid={"lr": [1e12, 0.05]}, observer=Ears(quiet=True), **few)
    tuned = comparison.result["tuning"][0]
    assert [c["validation_accuracy"] is None for c in tuned["candidates"]] == [True, False]
    assert tuned["chosen"] == {"lr": 0.05}
    assert any("diverged" in note for note in notes)
    with pytest.raises(UpdateError, match="FedAvg, seed 0: training diverged with every candidate"):
        compare(["fedavg"], "digits", 1, grid={"lr": [1e12, 1e13]}, **few)


def test_a_best_value_on_the_grids_edge_is_warned_of(tmp_path: Path) -> None:
    notes: list[str] = []

    class Ears(ComparisonProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    few: dict[str, Any] = {"local_only": False, "clients": 4, "rounds": 2, "engine": "serial", "out": tmp_path}
    comparison = compare(["fedavg"], "digits", 1, grid={"lr": [1e-5, 0.05]}, observer=Ears(quiet=True), **few)
    sentence = "FedAvg: the best value of lr lies on the grid's edge (0.05): widen it."
    assert sentence in notes
    assert comparison.footnotes()[0] == sentence
    assert comparison.result["tuning"][0]["on_edge"] == {"lr": 0.05}
    page = (tmp_path / "report.html").read_text("utf-8")
    assert html.escape(sentence) in page or sentence in page
    assert "Validation, seed 0" in page
    score = comparison.result["tuning"][0]["candidates"][1]["validation_accuracy"]
    assert f"{score}" in page


@pytest.mark.parametrize(
    ("values", "best", "edges"),
    [
        ([0.01, 0.1, 1.0], 1, {}),
        ([0.01, 0.1, 1.0], 2, {"lr": 1.0}),
        ([1.0, 0.01, 0.1], 1, {"lr": 0.01}),
        ([0.0, 0.5, 0.9], 0, {}),  # below zero there is nothing
        (["constant", "cosine"], 0, {}),
        ([True, False], 0, {}),
        ([0.1], 0, {}),
    ],
)
def test_what_an_edge_is(values: list[Any], best: int, edges: dict[str, Any]) -> None:
    assert on_edge([{"lr": value} for value in values], best) == edges
    both = [{"lr": value, "momentum": m} for value in values for m in (0.2, 0.5, 0.9)]
    assert on_edge(both, 3 * best + 1) == edges  # the middle one of the other setting


def test_edges_are_counted_over_seeds() -> None:
    found = [("FedRep", {"lr": 0.1}), ("FedRep", {}), ("FedRep", {"lr": 0.01}), ("FedAvg", {}), ("FedAvg", {})]
    assert edge_notes(found) == [
        "FedRep: the best value of lr lies on the grid's edge (0.01, 0.1) with 2 of 3 seeds: widen it."
    ]


def test_a_method_is_tuned_by_what_it_uses(tmp_path: Path) -> None:
    """Heads are fine-tuned with a momentum; Adam has none; candidates that differ in nothing else are one."""
    tuned: dict[str, Any] = {"finetune_epochs": 2}
    assert candidates(Method.parse("scaffold"), {"momentum": [0.0, 0.9]}) == [{}]
    assert candidates(Method.parse("scaffold"), {"momentum": [0.0, 0.9]}, tuned) == [
        {"momentum": 0.0},
        {"momentum": 0.9},
    ]
    assert candidates(Method.parse("fedavg:optimizer=adam"), {"momentum": [0.5, 0.9]}) == [{}]
    grid: dict[str, list[Any]] = {"optimizer": ["sgd", "adam"], "momentum": [0.5, 0.9]}
    assert candidates(Method.parse("fedavg"), grid) == [
        {"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"},
    ]  # fmt: skip
    found = compare(
        ["scaffold", "fedavg:optimizer=adam"],
        digits(),
        rounds=1,
        seeds=1,
        grid={"momentum": [0.0, 0.9]},
        local_only=False,
        **tuned,
    )
    assert {one["method"] for one in found.result["tuning"]} == {"scaffold"}


def test_a_grid_that_nobody_uses_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="the grid's setting 'batch_size' says nothing to any method"):
        compare(["fedsgd"], digits(), rounds=1, local_only=False, grid={"batch_size": [2, 4]})
    with pytest.raises(ConfigError, match=r"no method .* the grid's setting 'batch_sise' .did you"):
        compare(["fedavg"], digits(), rounds=1, grid={"batch_sise": [2, 4]})


def test_every_candidate_is_looked_at_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_training", lambda *a, **k: pytest.fail("a run was made"))
    with pytest.raises(ConfigError, match="SCAFFOLD takes steps of SGD alone"):
        compare(["fedavg", "scaffold"], digits(), rounds=1, grid={"optimizer": ["sgd", "adam"]})


def test_what_is_passed_over_is_told() -> None:
    result = compare(["fedsgd", "local-sgd", "fedavg"], digits(), rounds=1, local_epochs=5, batch_size=4)
    assert "local epochs 5 says nothing to FedSGD, Local SGD." in result.result["notes"]
    assert "batch size 4 says nothing to FedSGD." in result.result["notes"]
    assert not any("FedAvg" in note and "says nothing" in note for note in result.result["notes"])
    plain = compare(["fedavg"], digits(), rounds=1, aggregate="median")  # the yardstick averages nothing
    assert not any("says nothing" in note for note in plain.result["notes"])


def test_runs_that_tune_go_on_with_other_numerics_as_the_others_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The flag reaches every run of the comparison: those on validation data, and those that are reported."""
    true, asked = module.run_training, []

    def told(*args: Any, **given: Any) -> Any:
        asked.append(given.get("allow_other_numerics"))
        return true(*args, **given)

    monkeypatch.setattr(module, "run_training", told)
    grid = {"lr": [0.01, 0.05]}
    settings: dict[str, Any] = {"rounds": 1, "seeds": 1, "grid": grid, "local_only": False}
    compare(["fedavg"], digits(), out=tmp_path, allow_other_numerics=True, **settings)
    assert asked == [True, True, True]  # both candidates, then the chosen one


def test_what_a_grid_chose_is_not_continued_without_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 1, "seeds": 1, "local_only": False, "out": tmp_path}
    compare(["fedavg"], digits(), grid={"lr": [0.01, 0.02]}, **given)
    for lr in (None, 0.3):
        with pytest.raises(RunError, match="has what a grid chose: give the same --grid, or choose another --out"):
            compare(["fedavg"], digits(), lr=lr, **given)


def test_which_way_a_metric_of_one_s_own_ranks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "def brier(targets, predictions):\n    return float((predictions.argmax(1) != targets).mean())\n"
    (tmp_path / "mine.py").write_text(code)
    given: dict[str, Any] = {"rounds": 1, "seeds": 1, "local_only": False, "metric": f"{tmp_path / 'mine.py'}:brier"}
    told = "More of brier counts as better; if less is, say --rank-by brier:lower."
    assert told in compare(["fedavg"], digits(), rank_by="brier", **given).result["notes"]
    for ranked in ("brier:lower", "auc", None):
        assert told not in compare(["fedavg"], digits(), rank_by=ranked, **given).result["notes"]
    words = ["--clients", "5", "--rounds", "1", "--metric", given["metric"], "--rank-by"]
    for rank, said in (("brier", 1), ("brier:lower", 0)):
        assert main(["train", "fedavg", *words, rank, "--out", str(tmp_path / rank.replace(":", "-"))]) == 0
        assert capsys.readouterr().err.count(told) == said


def test_a_metric_that_no_candidate_has_is_no_divergence() -> None:
    """One class per client: its validation rows have no AUC, with whatever rate."""
    with pytest.raises(
        ConfigError, match=r"AUC is not defined on any client's validation rows, .* take another --rank-by"
    ):
        compare(
            ["fedavg"], "digits", 1, local_only=False, clients=10, classes_per_client=1, grid={"lr": [0.01, 0.1]},
            rank_by="auc", rounds=1, engine="serial",
        )  # fmt: skip


def test_a_candidate_without_the_metric_is_undefined_and_not_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(setup: Any, **how: Any) -> Any:
        run = run_training(setup, **how)
        if setup.config.lr == 0.01:
            run.summary["metrics"]["accuracy"]["mean"] = None
        return run

    monkeypatch.setattr(module, "run_training", scored)
    few: dict[str, Any] = {"local_only": False, "clients": 4, "rounds": 1, "engine": "serial", "out": tmp_path}
    found = compare(["fedavg"], "digits", 1, grid={"lr": [1e12, 0.01, 0.1]}, **few)
    table = tuning_table(found.result)
    assert table is not None
    assert [str(row["seed 0"]) for row in table.rows[:2]] == ["diverged", "undefined"]
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.index(">diverged<") < page.index(">undefined<")


def test_what_is_wrong_with_an_update_is_no_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setup: Any, **how: Any) -> Any:
        raise UpdateError("client 3's update lacks the tensor 'weight'")

    monkeypatch.setattr(module, "run_training", broken)
    with pytest.raises(UpdateError, match=r"FedAvg, seed 0: client 3's update lacks the tensor") as raised:
        compare(["fedavg"], digits(3), 1, local_only=False, grid={"lr": [0.01, 0.1]}, rounds=1, engine="serial")
    assert not isinstance(raised.value, NotFiniteError)


def test_rounds_that_a_grid_chose_are_told_and_counted() -> None:
    steps: list[Any] = []

    class Ears(ComparisonProgress):
        def plan(self, planned: Any) -> None:
            self.planned = [step.rounds for step in planned]

        def step(self, step: Any) -> None:
            steps.append(step.rounds)

    ears = Ears(quiet=True)
    few: dict[str, Any] = {"local_only": False, "engine": "serial", "observer": ears}
    result = compare(["fedavg"], digits(4), 1, grid={"rounds": [3, 1], "weight_decay": [0.0, 1e3]}, **few).to_dict()
    chosen = result["tuning"][0]["chosen"]
    settings = result["methods"][0]["settings"]
    assert (settings["rounds"], settings["weight_decay"]) == (chosen["rounds"], chosen["weight_decay"])
    assert ears.planned == [3, 3, 1, 1, 3]  # the longest, as long as the choice is not known
    assert steps == [3, 3, 1, 1, chosen["rounds"]]


@pytest.mark.parametrize("method", ["fedavg", "fedavg+ft"])
@pytest.mark.parametrize(
    "grid", [{"weight_decay": [0.0, 0.1]}, {"momentum": [0.0, 0.9]}, {"finetune_epochs": [0, 2]}, {"clip_norm": [1.0]}]
)
def test_whatever_a_grid_chose_is_told_of_every_seed(method: str, grid: dict[str, Any]) -> None:
    (key,) = grid
    if (method, key) == ("fedavg+ft", "finetune_epochs"):
        pytest.skip("the method sets it itself")
    few: dict[str, Any] = {"local_only": False, "engine": "serial", "rounds": 1}
    result = compare([method], digits(4), 3, grid=grid, **few).to_dict()
    chosen = [each["chosen"][key] for each in result["tuning"]] if result["tuning"] else grid[key] * 3
    told = result["methods"][0]["settings"][key]
    told = told if isinstance(told, list) else [told] * 3
    assert [value or 0 for value in told] == [value or 0 for value in chosen]


def test_what_is_held_out_of_the_runs_too_is_told() -> None:
    settings: dict[str, Any] = {"rounds": 2, "engine": "serial", "local_only": False, "grid": {"lr": [0.01, 0.1]}}
    plain = compare(["fedavg"], digits(3), 1, **settings)
    assert any(note.endswith("train on all training samples again.") for note in plain.footnotes())
    held = compare(["fedavg+ft"], digits(3), 1, validation_fraction=0.3, early_stopping=1, **settings)
    assert any(
        note.endswith("train on all training samples again but those that --validation-fraction holds out.")
        for note in held.footnotes()
    )
    assert any(note.startswith("Fine-tuned (+FT) once, after the round that is kept") for note in held.footnotes())


def test_rows_for_validation_are_held_out_once(tmp_path: Path) -> None:
    """Whether data are named or read already, and however many training rows are taken of them."""
    asked: dict[str, Any] = {**SMALL, "validation_fraction": 0.25, "early_stopping": 1, "train_samples": 20}
    asked |= {"seeds": 1, "local_only": False, "grid": {"lr": [0.03, 0.3]}}
    given = load_data("digits", 4, partition="dirichlet:0.5", seed=0)
    named = compare(["fedavg"], "digits", partition="dirichlet:0.5", out=tmp_path / "named", **asked)
    again = compare(["fedavg"], given, out=tmp_path / "given", **asked)
    assert named.result["tuning"] == again.result["tuning"]
    for name in ("named", "given"):
        (final,), (tried, _) = (sorted((tmp_path / name / "fedavg").glob(path)) for path in ("seed-*", "tuning/*/*"))
        held, inner = (json.loads((folder / "split.json").read_text())["train"] for folder in (final, tried))
        assert [sum(rows) for rows in held] == [15] * 4  # of 20
        assert [sum(rows) for rows in inner] == [12] * 4  # of the 16 that are left by the choice among candidates
