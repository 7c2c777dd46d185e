"""Comparisons: the same conditions for every method, figures that agree with the runs, folders that continue."""

from __future__ import annotations

import csv
import io
import json
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from commonground import train
from commonground.cli.compare import compare as command
from commonground.compare import Comparison, compare
from commonground.compare.observer import SilentComparison
from commonground.console import ConsoleProgress
from commonground.engine.state.folder import RunFolder
from commonground.errors import CommonGroundError, ConfigError, Interrupted, RunError
from commonground.statistics import holm
from tests.helpers import made_data, training

module = import_module("commonground.compare.comparing")

SMALL: dict[str, Any] = {
    "clients": 5, "classes_per_client": 4, "rounds": 3, "engine": "serial", "batch_size": 50,
    "model_options": {"hidden": [8]},
}  # fmt: skip
METHODS = ["fedrep", "fedavg", "fedavg+ft", "fedrep:head_epochs=2"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison of five methods over three seeds, with its folder."""
    return compare(METHODS, out=tmp_path_factory.mktemp("comparison") / "it", target=0.3, participation=0.6, **SMALL)


def test_every_method_gets_the_same_conditions(monkeypatch):
    setups: list[Any] = []
    sampled: list[list[tuple[int, ...]]] = []
    prepare, sample = module.run_training, training.sample_clients

    def seen(setup, **rest):
        setups.append(setup)
        sampled.append([])
        return prepare(setup, **rest)

    def recorded(config, clients, round, secret):
        assert secret is None  # nothing here is private: participants follow from the seed alone
        sampled[-1].append(tuple(sample(config, clients, round, secret)))
        return sample(config, clients, round, secret)

    monkeypatch.setattr(module, "run_training", seen)
    monkeypatch.setattr(training, "sample_clients", recorded)
    compare(["fedrep", "lg-fedavg", "fedavg+ft"], seeds=2, participation=0.4, **SMALL)
    by_seed: dict[int, list[int]] = {}
    for number, setup in enumerate(setups):
        by_seed.setdefault(setup.config.seed, []).append(number)
    assert [len(numbers) for numbers in by_seed.values()] == [4, 4]
    for first, *others in by_seed.values():
        for other in others:
            assert setups[first].data.fingerprint() == setups[other].data.fingerprint()
            assert sampled[first] == sampled[other]
            mine, theirs = setups[first].initial, setups[other].initial
            common = set(mine) & set(theirs)
            assert len(common) == 4
            assert all(torch.equal(mine[name], theirs[name]) for name in common)
    one, two = (setups[numbers[0]] for numbers in by_seed.values())
    assert one.data.fingerprint() != two.data.fingerprint()
    assert sampled[by_seed[0][0]] != sampled[by_seed[1][0]]
    assert not torch.equal(next(iter(one.initial.values())), next(iter(two.initial.values())))


def test_a_run_of_a_comparison_is_the_run_alone(finished):
    alone = train("fedavg", seed=1, finetune_epochs=10, participation=0.6, **SMALL)
    assert alone.summary["weights_sha256"] == finished.runs["fedavg+ft"][1].summary["weights_sha256"]


def test_seeds_are_counted_from_the_first_one_given():
    done = compare(["fedavg"], seed=4, seeds=2, participation=0.4, local_only=False, **SMALL)
    assert done.result["seeds"] == [4, 5] == [run.config.seed for run in done.runs["fedavg"]]


def test_the_figures_are_those_of_the_runs(finished):
    result = finished.to_dict()
    assert [m["method"] for m in result["methods"]] == [*METHODS, "local"]
    assert (result["seeds"], result["reference"], result["clients"], result["rounds"]) == ([0, 1, 2], "fedrep", 5, 3)
    for entry in result["methods"]:
        runs = finished.runs[entry["method"]]
        means = [run.summary["personal_accuracy"]["mean"] for run in runs]
        assert entry["personal_accuracy"] == pytest.approx({"mean": np.mean(means), "std": np.std(means, ddof=1)})
        assert entry["p10"]["mean"] == pytest.approx(np.mean([r.summary["personal_accuracy"]["p10"] for r in runs]))
        assert entry["bytes_up"] == runs[0].summary["bytes_up"]
        assert (entry["global_accuracy"] is None) == (entry["algorithm"] != "fedavg")
        assert [finished.folder / run for run in entry["runs"]] == [run.folder for run in runs]
        assert all(RunFolder(run.folder).summary() == run.summary for run in runs)


def test_steps_are_told_where_a_run_counts_in_steps():
    result = compare(["fedavg", "fedper"], seeds=1, local_steps=2, **SMALL).to_dict()
    for entry in result["methods"][:2]:
        assert entry["settings"]["local_steps"] == 2
        assert "local_epochs" not in entry["settings"]


def test_differences_are_paired_by_client(finished):
    methods = {m["method"]: m for m in finished.to_dict()["methods"]}
    assert methods["fedrep"]["differences"] is None
    for label, entry in methods.items():
        if label == "fedrep":
            continue
        pairs = [
            mine["personal_accuracy"] - theirs["personal_accuracy"]
            for run, other in zip(finished.runs[label], finished.runs["fedrep"], strict=True)
            for mine, theirs in zip(run.clients, other.clients, strict=True)
        ]
        d = entry["differences"]
        assert (d["reference"], d["pairs"]) == ("fedrep", 15)
        assert d["mean"] == pytest.approx(np.mean(pairs))
        assert d["low"] <= d["mean"] <= d["high"]
        assert d["p_seeds"] >= 0.25
    tested = [m["differences"] for m in methods.values() if m["differences"]]
    assert [d["p_adjusted"] for d in tested] == holm([d["p_clients"] for d in tested])
    assert any("cannot go below 0.25 with 3 seeds" in note for note in finished.footnotes())


def test_what_a_target_costs(finished):
    for entry in finished.to_dict()["methods"]:
        cost = entry["to_accuracy"]
        found = []
        for run in finished.runs[entry["method"]]:
            for number, row in enumerate(run.history, 1):
                if row["personal_accuracy"] >= 0.3:
                    found.append((number, sum(r["bytes_up"] + r["bytes_down"] for r in run.history[:number])))
                    break
            else:
                if run.personal_accuracy["mean"] >= 0.3:
                    found.append((3, run.summary["bytes_up"] + run.summary["bytes_down"]))
        if cost is None:
            assert not found
            assert any(entry["title"] in note and "did not reach it." in note for note in finished.footnotes())
        else:
            assert cost["reached"] == len(found)
            assert (cost["rounds"], cost["bytes"]) == pytest.approx(tuple(np.mean(found, axis=0)))
    assert any(m["to_accuracy"] for m in finished.to_dict()["methods"])
    said = "rounds to a target are the global model's before it, or all if only fine-tuning reaches it"
    assert any(said in note for note in finished.footnotes())


def test_the_folder_holds_it(finished):
    assert Comparison.read(finished.folder).to_dict() == json.loads(json.dumps(finished.to_dict()))
    with (finished.folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [*METHODS, "local"]
    for row, entry in zip(rows, finished.to_dict()["methods"], strict=True):
        assert float(row["personal_accuracy_mean"]) == entry["personal_accuracy"]["mean"]
        assert int(row["seeds_to_target"]) == (entry["to_accuracy"] or {"reached": 0})["reached"]
    with pytest.raises(RunError, match="not a readable comparison"):
        Comparison.read(finished.folder / "fedrep")


def test_tables_fit_eighty_columns(finished):
    console = Console(width=80, record=True, file=io.StringIO())
    again = Comparison.read(finished.folder)
    for table in (again.table(), again.cost_table(), again.target_table()):
        console.print(table)
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    assert sum("Local Only" in line for line in lines) == 3
    assert "FedRep [95 %]" in text
    assert again.tuning_table() is None


def test_only_what_is_measured_has_a_column() -> None:
    """Other metrics than the headline are of the end alone, and no personal method has a global model."""
    given = {**SMALL, "rounds": 1, "seeds": 1, "local_only": False}
    shown = {}
    for methods, metric in ((["fedrep", "fedavg"], None), (["fedrep", "fedavg"], "auc"), (["fedrep"], "auc")):
        found = compare(methods, rank_by=metric, **given)
        heads = " ".join(str(column.header) for column in found.cost_table().columns)
        shown["last 10" in heads, "global" in heads] = any("last 10: mean over" in note for note in found.footnotes())
    assert shown == {(True, True): True, (False, True): False, (False, False): False}
    ends = {}
    for patience in (None, 1):
        kept = {**given, "validation_fraction": 0.3, "early_stopping": patience, "rounds": 3}
        (note,) = (note for note in compare(["fedavg"], **kept).footnotes() if "last 10" in note)
        ends[patience] = note.partition("; last 10: ")[2]
    assert ends == {
        None: "mean over the evaluated ones of the last 10 rounds.",
        1: "mean over the evaluated ones of the last 10 rounds up to that one.",
    }


def test_runs_already_done_are_taken(finished, monkeypatch):
    monkeypatch.setattr(training, "make_engine", None)  # any new round would fail
    again = compare(METHODS, out=finished.folder, target=0.3, participation=0.6, **SMALL)
    assert again.to_dict() == finished.to_dict() | {"command": again.to_dict()["command"]}


def test_seeds_and_methods_can_be_added(tmp_path):
    compare(["fedavg"], seeds=1, out=tmp_path, local_only=False, **SMALL)
    before = (tmp_path / "fedavg" / "seed-0" / "summary.json").read_text()
    more = compare(["fedavg", "fedper"], seeds=2, out=tmp_path, **SMALL)
    assert (tmp_path / "fedavg" / "seed-0" / "summary.json").read_text() == before
    assert len(more.to_dict()["methods"]) == 3


class _Stops(SilentComparison):
    """Asks to stop in the second round of the fourth run."""

    def step(self, step):
        class Observer(ConsoleProgress):
            def round(self, row):
                if step.number == 4 and row["round"] == 2:
                    raise Interrupted("stopped")

        return Observer(quiet=True)


def test_an_interrupted_comparison_continues(finished, tmp_path):
    settings = SMALL | {"participation": 0.6, "target": 0.3}
    with pytest.raises(Interrupted):
        compare(METHODS, out=tmp_path, observer=_Stops(), **settings)
    half = tmp_path / "fedrep-head_epochs=2" / "seed-0"
    assert RunFolder(half).exists
    assert RunFolder(half).summary() is None
    assert not (tmp_path / "comparison.json").exists()
    done = compare(METHODS, out=tmp_path, **settings)
    assert done.runs.keys() == finished.runs.keys()
    for label, runs in done.runs.items():
        for run, other in zip(runs, finished.runs[label], strict=True):
            assert run.summary["weights_sha256"] == other.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("methods", "change", "says"),
    [
        (["fedrep"], {"rounds": 4}, "rounds = 3, not 4"),
        (["fedrep"], {"lr": 0.5}, "lr = 0.05, not 0.5"),
        (["fedper"], {"clients": 6}, "clients = 5, not 6"),  # although no run of FedPer is there
        (["fedper"], {"classes_per_client": 3}, "classes_per_client = 4, not 3"),
        (["fedper"], {"participation": 0.2}, "participation = 0.6, not 0.2"),
    ],
)
def test_a_folder_of_other_settings_is_refused(finished, methods, change, says):
    settings = SMALL | {"participation": 0.6} | change
    with pytest.raises(RunError, match=says):
        compare(methods, out=finished.folder, **settings)
    assert not (finished.folder / "fedper").exists()


def test_a_folder_of_other_data_is_refused(tmp_path):
    settings: dict[str, Any] = {"rounds": 1, "engine": "serial", "out": tmp_path, "seeds": 1}
    compare(["fedavg"], made_data(seed=1), **settings)
    with pytest.raises(RunError, match="other data"):
        compare(["fedavg"], made_data(seed=2), **settings)


def test_a_folder_of_a_single_run_is_refused(finished):
    with pytest.raises(RunError, match="holds a single run"):
        compare(["fedavg"], out=finished.folder / "fedavg" / "seed-0", **SMALL)


@pytest.mark.parametrize(
    ("methods", "settings", "says"),
    [
        ([], {}, "at least one method"),
        (["fedavg"], {"seeds": 0}, "number of seeds is 0"),
        (["fedavg"], {"target": 80}, "the target 80 is no accuracy"),
        (["fedavg"], {"target": float("nan")}, "is no accuracy"),
        (["fedavg"], {"reference": "fedrep"}, "the reference 'fedrep' names none of the compared methods"),
        (["fedavg:lr=0.1", "fedavg:lr=0.2"], {"reference": "fedavg"}, "names more than one"),
        (["fedavg", "fedavg"], {}, "named twice with the same settings"),
        (["fedrep", "fedrep:head_epochs=10"], {}, "the same with identical settings"),
        (["fedavg:lr=0.1,momentum=0", "fedavg:momentum=0,lr=0.1"], {}, "the same with identical settings"),
        (["fedrep", "fedrep:lr=0.05"], {}, "'fedrep' and 'fedrep:lr=0.05' are the same with identical settings"),
        (
            ["fedrep", "fedrep:lr=0.05"],
            {"grid": {"head_epochs": [5, 10]}},
            "'fedrep' and 'fedrep:lr=0.05' are the same with identical settings",
        ),
        ("fedrep", {}, r"methods must be a list of names, such as \['fedrep', 'fedavg'\], not 'fedrep'"),
        (3, {}, "methods must be a list of names, .* not 3"),
        (["fedavg"], {"to_accuracy": "0.5"}, "to_accuracy must be a number, not '0.5'"),
        (["fedavg"], {"validation": "a"}, "validation must be a number, not 'a'"),
        (["fedavg"], {"grid": "lr=0.1"}, r"grid must be a dict of lists, such as \{'lr': .*, not 'lr=0.1'"),
        (["fedavg"], {"grid": ["lr"]}, r"grid must be a dict of lists, .*, not \['lr'\]"),
        (["fedavg"], {"reference": 0}, "reference must be the name of a method, not 0"),
        (["fedavg"], {"out": 3}, "out must be the path of a folder, not 3"),
        (["fedrep+ft"], {}, "needs a method with one global model"),
        (["fedavg"], {"options": {"mu": 3}}, "no method of this comparison has the setting 'mu'"),
        (["fedavg"], {"algorithm": "fedrep"}, "'algorithm' is no setting of a comparison"),
        (["fedavg"], {"rouns": 3}, "unknown setting 'rouns'"),
        (["fedavg"], {"validation": 2.0}, "validation share"),
        (["scaffold:momentum=0.9"], {}, "--momentum 0.9 says nothing to SCAFFOLD"),
        (["scaffold", "pfedme"], {"momentum": 0.9, "local_only": False}, "--momentum 0.9 says nothing to SCAFFOLD"),
        (["fedmtl"], {"weighting": "samples"}, "--weighting samples says nothing to Fed-MTL"),
        (["fedavg"], {"optimizer": "adam", "momentum": 0.9}, "--momentum 0.9 is a setting of sgd"),
    ],
)
def test_mistakes_are_one_sentence(methods, settings, says):
    with pytest.raises(CommonGroundError, match=says) as error:
        compare(methods, **(SMALL | settings))
    assert "\n" not in str(error.value)


def test_the_reference_and_local_only():
    named = compare(["fedavg", "local:lr=0.1"], seeds=1, reference="Local Only (lr=0.1)", **SMALL).to_dict()
    assert named["reference"] == "local:lr=0.1"  # Local Only is there already
    assert [m["method"] for m in named["methods"]] == ["fedavg", "local:lr=0.1"]
    added = compare(["fedavg"], seeds=1, reference="local", **SMALL).to_dict()
    assert added["reference"] == "local"
    assert "--no-local-only" in added["notes"][0]
    alone = compare(["fedavg"], seeds=1, local_only=False, **SMALL).to_dict()
    assert [m["differences"] for m in alone["methods"]] == [None]
    assert alone["methods"][0]["personal_accuracy"]["std"] is None


def test_the_same_clients_in_every_seed_count_once():
    settings: dict[str, Any] = {"rounds": 1, "engine": "serial", "seeds": 2}
    result = compare(["fedavg"], made_data((5, 6, 7)), **settings).to_dict()
    assert result["methods"][1]["differences"]["pairs"] == 3
    assert any("averaged over seeds (3 pairs)" in note and "too narrow" in note for note in result["notes"])


def test_a_single_pair_has_no_interval():
    result = compare(["fedavg"], made_data((6,)), rounds=1, engine="serial", seeds=1).to_dict()
    assert result["methods"][1]["differences"]["low"] is None
    (note,) = (note for note in result["notes"] if note.startswith("Δ"))
    assert "(1 pair), in percentage points, of which there is no interval." in note
    assert "narrow" not in note


def test_a_module_starts_every_run_from_its_weights():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = made_data(dtype=np.float32)
    result = compare(["fedavg", "fedrep"], data, seeds=1, model=model, rounds=1, engine="serial", lr=0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    alone = train("fedrep", data, model=model, rounds=1, engine="serial", lr=0.1)
    assert alone.summary["weights_sha256"] == result.runs["fedrep"][0].summary["weights_sha256"]


# -- the command ------------------------------------------------------------------------------------------------------

FLAGS = [
    "--clients=5", "--classes-per-client=4", "--rounds=2", "--set=model.hidden=[8]", "--engine=serial",
    "--batch-size=50",
]  # fmt: skip


def call(*words: str) -> None:
    command.main([*words, *FLAGS], standalone_mode=False)


def test_the_command(tmp_path, capsys):
    call(
        "fedrep",
        "fedavg",
        "--seeds",
        "2",
        "--to-accuracy",
        "0.05",
        "--grid",
        "lr=0.01,0.1",
        "--out",
        str(tmp_path / "c"),
    )
    out, progress = capsys.readouterr()
    for text in ("tuning", "Δ to", "Local Only", "to 5 % accuracy", "p seeds", "files:"):
        assert text in out
    assert "[1/18] FedRep, seed 0, tuning lr=0.01: done, personal validation accuracy" in progress
    assert "[18/18] Local Only, seed 1: done" in progress
    assert "left in all" in progress
    assert "Local Only was added" in progress
    result = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert result["command"].startswith(
        "commonground compare fedrep fedavg --seeds 2 --to-accuracy 0.05 --grid lr=0.01,0.1"
    )
    call("fedrep", "fedavg", "--seeds", "2", "--grid", "lr=0.01,0.1", "--resume", "--out", str(tmp_path / "c"))
    assert "already finished" in capsys.readouterr().err


def test_the_same_command_continues_in_its_own_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seeds in ("1", "2"):
        call("fedavg", "--no-local-only", "--quiet", "--seeds", seeds)
    assert capsys.readouterr() == ("", "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in (folder / "fedavg").iterdir()) == ["seed-0", "seed-1"]
    call("fedavg", "--no-local-only", "--quiet", "--lr", "0.1")
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "at least one method"),
        (["fedavg", "--grid", "lr"], "--grid lr is not of the form"),
        (["fedavg", "--resume"], "--resume needs the folder"),
        (["fedavg", "--resume", "--out", "nowhere"], "'nowhere' is no folder"),
        (["fedavg", "--seeds", "0"], "at least 1 is needed"),
    ],
)
def test_mistakes_in_the_command(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        call(*words)
    assert not list(tmp_path.iterdir())


def test_another_optimizer_than_sgd_is_told() -> None:
    few: dict[str, Any] = {"rounds": 1, "clients": 4, "local_only": False}
    result = compare(["fedavg", "fedrep:optimizer=adam"], "digits", 1, **few).to_dict()
    assert [entry["settings"].get("optimizer") for entry in result["methods"]] == [None, "adam"]
    tuned = compare(["fedavg"], "digits", 2, grid={"optimizer": ["sgd", "adamw"]}, **few).to_dict()
    assert tuned["methods"][0]["settings"]["optimizer"] is not None


def test_seeds_are_how_many() -> None:
    with pytest.raises(ConfigError, match=r"seeds is how many, and not \[1, 2\]; seed=… is the first"):
        compare(["fedrep"], seeds=[1, 2], **SMALL)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seeds is how many, and not True"):
        compare(["fedrep"], seeds=True, **SMALL)
    numpy: dict[str, Any] = {"seeds": np.int64(1), "grid": {"lr": np.array([0.1, 0.2])}}
    result = compare(["fedrep"], **numpy, **SMALL)
    assert "1 seed:" in repr(result)


@pytest.mark.parametrize("setting", [{"clients": 2}, {"classes_per_client": 1}, {"partition": "iid"}, {"min_rows": 3},
                                     {"model_options": {"hidden": [3]}, "model": torch.nn.Linear(4, 3)}])  # fmt: skip
def test_what_would_split_read_or_build_an_object_is_refused(setting: dict[str, Any]) -> None:
    """As a single run refuses it."""
    told = []
    for call in (lambda **s: compare(["fedavg"], made_data(), seeds=1, rounds=1, **s),
                 lambda **s: train("fedavg", made_data(), rounds=1, **s)):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            call(**setting)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert next(iter(setting)) in told[0]
    compare(["fedavg"], made_data(), seeds=1, rounds=1, clients=4, local_only=False)


def test_rounds_of_its_own_are_told(tmp_path: Any) -> None:
    done = compare(
        ["fedavg:rounds=2", "fedavg"], made_data(), seeds=1, rounds=1, engine="serial", out=tmp_path, batch_size=4
    )
    assert done.result["rounds_between"] == [1, 2]
    told = "Methods have rounds of their own: FedAvg (rounds=2) 2, FedAvg 1, Local Only 1."
    assert told in done.result["notes"]
    assert "made, 4 clients, 1 to 2 rounds" in (tmp_path / "table.md").read_text()
    assert "4 clients, 1 to 2 rounds, seed 0" in (tmp_path / "report.html").read_text()


def test_other_numerics_by_the_flag_that_the_refusal_names(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "c")
    words = ["fedavg", "--data", "digits", "--clients", "4", "--rounds", "1", "--seeds", "1", "--no-local-only"]
    call(*words, "--out", out)
    with pytest.raises(RunError, match="accept other numbers with --allow-other-numerics"):
        call(*words, "--out", out, "--threads", "2")
    call(*words, "--out", out, "--threads", "2", "--allow-other-numerics")
    summary = json.loads((tmp_path / "c" / "fedavg" / "seed-0" / "summary.json").read_text())
    assert summary["threads"] == 1  # it was finished


def test_csv_files_of_figures_are_as_their_columns_say(finished: Comparison) -> None:
    assert finished.folder is not None
    rows = list(csv.DictReader(io.StringIO((finished.folder / "figures" / "differences.csv").read_text())))
    entries = {e["title"]: e["differences"] for e in finished.result["methods"] if e["differences"]}
    assert {row["name"] for row in rows} == set(entries)
    for row in rows:
        for column, key in (("percentage points", "mean"), ("low", "low"), ("high", "high")):
            assert float(row[column]) == pytest.approx(100 * entries[row["name"]][key])
