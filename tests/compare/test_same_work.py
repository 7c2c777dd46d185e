"""A comparison compares what it says: the methods that were named, the settings that were chosen, the same clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.algorithms import registry
from commonground.algorithms.apfl import APFL
from commonground.algorithms.fedavg import FedAvg
from commonground.cli import main
from commonground.compare import compare
from commonground.errors import ConfigError, RunError
from commonground.report.compared import read_comparison
from commonground.report.result_tables import comparison_to_typeset
from commonground.tasks import tasks
from tests.helpers import made_data

SMALL: dict[str, Any] = {"clients": 4, "classes_per_client": 3, "rounds": 2, "seeds": 1, "local_only": False}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to write modules into; what they define is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    known, known_tasks = dict(registry), dict(tasks)
    yield tmp_path
    registry.clear()
    registry.update(known)
    tasks.clear()
    tasks.update(known_tasks)


def test_a_users_method_never_takes_the_place_of_a_built_in(here: Path) -> None:
    code = "from commonground.algorithms.fedrep import FedRep\n\n\nclass MyRep(FedRep):\n    name = '{}'\n"
    (here / "mine.py").write_text(code.format("fedrep"))
    built_in = registry["fedrep"]
    with pytest.raises(ConfigError, match="MyRep has the name 'fedrep', which is that of commonground's FedRep"):
        compare(["fedrep", "mine.py:MyRep"], "digits", **SMALL)
    assert registry["fedrep"] is built_in
    for _ in range(2):  # one's own may be written anew
        (here / "mine.py").write_text(code.format("my-rep"))
        assert len(compare(["fedrep", "mine.py:MyRep"], "digits", **SMALL).runs) == 2


def test_nor_a_users_task(here: Path) -> None:
    with pytest.raises(ConfigError, match="the task Mine has the name 'regression'"):
        type("Mine", (cg.Task,), {"name": "regression"})


def test_the_page_names_the_reference_that_was_asked_for(tmp_path: Path) -> None:
    compare(["fedavg+ft", "fedavg"], "digits", reference="fedavg", out=tmp_path, **SMALL)
    comparison = read_comparison(tmp_path)
    assert comparison.reference == "FedAvg"
    assert any("to FedAvg [" in head for head in comparison_to_typeset(comparison).heads)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Difference to FedAvg+FT" not in page


def test_equally_good_methods_are_all_bold(tmp_path: Path) -> None:
    compare(["fedavg", "fedavg+ft", "fedprox:mu=50"], "digits", out=tmp_path, **SMALL)
    comparison = read_comparison(tmp_path)
    typeset = comparison_to_typeset(comparison)
    place = next(i for i, head in enumerate(typeset.heads) if head.startswith("Global"))
    values = [method.value("global_accuracy") for method in comparison.methods]
    assert values[0] == values[1] != values[2]
    best = max(value for value in values if value is not None)
    assert {row for row, column in typeset.bold if column == place} == {i for i, v in enumerate(values) if v == best}


def test_what_all_have_alike_is_nobody_s_best(tmp_path: Path) -> None:
    compare(["fedavg", "fedavg+ft"], "digits", out=tmp_path, **SMALL)
    typeset = comparison_to_typeset(read_comparison(tmp_path))
    place = next(i for i, head in enumerate(typeset.heads) if head.startswith("Global"))
    assert not {row for row, column in typeset.bold if column == place}


def test_the_same_clients_are_counted_once_however_they_are_named(here: Path) -> None:
    (here / "hospitals.py").write_text(
        "from tests.helpers import made_data\n\n\ndef hospitals():\n    return made_data((20, 16, 12, 24), seed=1)\n"
    )
    settings: dict[str, Any] = {"rounds": 2, "seeds": 3, "local_only": False, "model": "linear"}
    by_name = compare(["fedrep", "fedavg"], "hospitals.py:hospitals", **settings).result
    by_object = compare(["fedrep", "fedavg"], made_data((20, 16, 12, 24), seed=1), **settings).result
    one, other = (found["methods"][1]["differences"] for found in (by_name, by_object))
    assert one["pairs"] == other["pairs"] == 4
    assert one == other
    assert by_name["same_clients"] is True
    assert compare(["fedrep", "fedavg"], "digits", **{**SMALL, "seeds": 2}).result["same_clients"] is False
    assert compare(["fedrep", "fedavg"], "hospitals.py:hospitals", **{**settings, "seeds": 1}).result[
        "same_clients"
    ] is (False)


def test_clients_are_counted_on_the_page_as_in_the_comparison(tmp_path: Path) -> None:
    data = made_data((20, 16, 12, 24), seed=1)
    found = compare(["fedrep"], data, rounds=2, seeds=3, model="linear", out=tmp_path).result
    assert found["methods"][1]["differences"]["pairs"] == 4
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "of 4 clients" in page
    assert "of 12 clients" not in page


def test_a_tuned_object_predicts_with_what_was_chosen(tmp_path: Path) -> None:
    data = cg.load_data("digits", clients=4, classes_per_client=3, seed=0)
    found = compare([APFL()], data, rounds=2, seeds=1, grid={"alpha": [0.1, 1.0]}, local_only=False, out=tmp_path)
    (run,) = found.runs["apfl"]
    assert run.trained.algorithm.alpha == run.config.options["alpha"]  # type: ignore[attr-defined]
    right = [(run.predict(data.x_test[i], c).argmax(1) == data.y_test[i]).mean()
             for c in range(4) for i in [data.test_indices(c)]]  # fmt: skip
    assert np.mean(right) == pytest.approx(run.summary["personal_accuracy"]["mean"])


def test_an_object_with_other_settings_is_not_the_runs_algorithm(tmp_path: Path) -> None:
    cg.train(APFL(alpha=0.9), "digits", clients=4, rounds=1, out=tmp_path)
    assert cg.load_run(tmp_path, algorithm=APFL(alpha=0.9)).trained.clients == 4
    with pytest.raises(ConfigError, match=r"trained by APFL with alpha=0\.9, and the algorithm that is given has 0\.2"):
        cg.load_run(tmp_path, algorithm=APFL(alpha=0.2))
    with pytest.raises(ConfigError, match="was trained by apfl, and not by fedrep"):
        cg.load_run(tmp_path, algorithm=registry["fedrep"]())


def test_defaults_and_lists_are_settings_as_well(tmp_path: Path) -> None:
    cg.train("apfl", "digits", clients=4, rounds=1, out=tmp_path / "a")
    with pytest.raises(
        ConfigError, match=r"trained by APFL with alpha=0\.25, and the algorithm that is given has 0\.9"
    ):
        cg.load_run(tmp_path / "a", algorithm=APFL(alpha=0.9))
    halved = registry["local-sgd"]
    cg.train(halved(), "digits", clients=4, rounds=1, out=tmp_path / "b", local_steps=2)
    assert cg.load_run(tmp_path / "b", algorithm=halved()).trained.clients == 4
    with pytest.raises(ConfigError, match=r"with halvings=.*, and the algorithm that is given has \(0\.1, 0\.2\)"):
        cg.load_run(tmp_path / "b", algorithm=halved(halvings=(0.1, 0.2)))


def test_a_field_kept_under_another_name_is_not_compared(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True, init=False)
    class Hidden(FedAvg):
        name = "hidden"
        k: int

        def __init__(self, k: int = 3) -> None:
            object.__setattr__(self, "_k", k)

    try:
        cg.train(Hidden(k=5), "digits", clients=4, rounds=1, out=tmp_path)
        assert cg.load_run(tmp_path, algorithm=Hidden(k=5)).trained.clients == 4
    finally:
        del registry["hidden"]


def test_what_no_file_holds_is_no_reason_to_refuse_the_runs_own_algorithm(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Particular(FedAvg):
        name = "particular"
        parts: tuple[float, ...] = (0.5, 0.75)
        ceiling: float | None = None

        def __post_init__(self) -> None:
            assert isinstance(self.parts, tuple)

    try:
        cg.train(Particular(ceiling=5), "digits", clients=4, rounds=1, out=tmp_path)
        assert cg.load_run(tmp_path, algorithm=Particular(ceiling=5)).trained.clients == 4
        for other, said in ((Particular(), "ceiling=5"), (Particular(parts=(1.0,), ceiling=5), "parts=")):
            with pytest.raises(ConfigError, match=said):
                cg.load_run(tmp_path, algorithm=other)
    finally:
        del registry["particular"]


def test_a_setting_that_no_file_holds_is_told_in_one_sentence(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Particular(FedAvg):
        name = "particular"
        where: Any = tmp_path

    try:
        with pytest.raises(ConfigError, match=r"where=.*Path.* cannot be written to config\.toml"):
            cg.train(Particular(), "digits", clients=4, rounds=1, out=tmp_path / "r")
    finally:
        del registry["particular"]


@pytest.mark.parametrize("grid", [
    {"finetune_epochs": [0, 1]},
    {"finetune_epochs": [0, 1], "lr": [0.01, 0.1]},
    {"optimizer": ["sgd", "adam"], "momentum": [0.0, 0.9]},
])  # fmt: skip
def test_candidates_need_not_have_the_same_settings(grid: dict[str, Any], tmp_path: Path) -> None:
    found = compare(["fedavg"], "digits", grid=grid, out=tmp_path, **SMALL).result
    (tuning,) = found["tuning"]
    tried = [each["settings"] for each in tuning["candidates"]]
    assert tuning["chosen"] in tried
    if "finetune_epochs" in grid:
        assert {one["finetune_epochs"] for one in tried} == {0, 1}
    folders = {path.parent for path in (tmp_path / "fedavg" / "tuning" / "seed-0").rglob("config.toml")}
    assert len(folders) == len(tried)
    assert not any(a in b.parents for a in folders for b in folders)


def test_epochs_of_fine_tuning_are_tried_where_there_is_a_model_to_tune() -> None:
    found = compare(["fedrep", "fedavg"], "digits", grid={"finetune_epochs": [0, 1]}, **SMALL).result["tuning"]
    assert [(each["method"], len(each["candidates"])) for each in found] == [("fedavg", 2)]


def test_an_edited_file_is_another_method(here: Path) -> None:
    code = """from commonground.algorithms.fedrep import FedRep


class Mine(FedRep):
    name = "mine"

    def client_update(self, client, round):
        return super().client_update(client, round){}
"""
    (here / "mine.py").write_text(code.format(""))
    command = [
        "compare",
        "mine.py:Mine",
        "fedavg",
        "--clients",
        "4",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--no-local-only",
    ]
    assert main([*command, "--out", "it"]) == 0
    assert main([*command, "--out", "it"]) == 0
    (here / "mine.py").write_text(code.format("  # as before, said otherwise"))
    with pytest.raises(RunError, match=r"'mine\.py' is another one than when the run in .* was trained with it"):
        compare(["mine.py:Mine", "fedavg"], "digits", clients=4, rounds=2, seeds=1, out="it")
    assert main([*command, "--out", "other"]) == 0


def test_a_loss_that_was_edited_is_gone_on_with_only_if_that_is_wanted(here: Path) -> None:
    code = "from torch.nn.functional import cross_entropy\n\n\ndef f(output, target):\n    return {}\n"
    loss = "cross_entropy(output, target, reduction='none')"
    (here / "loss.py").write_text(code.format(loss))
    cg.train("fedavg", "digits", clients=4, rounds=2, loss="loss.py:f", out="it", on_round=lambda row: row["round"] < 1)
    digests = cg.load_run("it").summary["code"]
    assert list(digests) == ["loss.py"]
    (here / "loss.py").write_text(code.format(f"2 * {loss}"))
    again: dict[str, Any] = {"clients": 4, "rounds": 2, "loss": "loss.py:f", "out": "it", "resume": True}
    with pytest.raises(RunError, match="put it back, accept that with --allow-other-numerics, or choose another --out"):
        cg.train("fedavg", "digits", **again)
    run = cg.train("fedavg", "digits", **again, allow_other_numerics=True)
    assert run.summary["code"]["loss.py"] != digests["loss.py"]


@pytest.mark.parametrize("grid", [{"optimizer": ["adam", "sgd"]}, {"optimizer": ["sgd", "adam"], "lr": [0.001, 0.01]}])
def test_a_tuned_comparison_goes_on_whatever_follows_from_the_grid(grid: dict[str, Any], tmp_path: Path) -> None:
    """The rate follows from the optimizer."""
    first, again = (compare(["fedavg"], "digits", out=tmp_path, grid=grid, **SMALL).result for _ in range(2))
    assert first["methods"][0]["personal_accuracy"] == again["methods"][0]["personal_accuracy"]


def test_more_rounds_of_a_tuned_comparison_are_refused_by_what_differs(tmp_path: Path) -> None:
    settings = {**SMALL, "grid": {"lr": [0.3, 0.5]}, "out": tmp_path}
    compare(["fedrep"], "digits", **settings)
    with pytest.raises(RunError, match="was started with rounds = 2, not 3"):
        compare(["fedrep"], "digits", **{**settings, "rounds": 3})


def test_the_report_says_how_a_comparison_is_made_again(tmp_path: Path) -> None:
    found = compare(["fedrep", "fedavg"], "digits", out=tmp_path, **SMALL).result["command"]
    assert found.startswith("cg.compare(['fedrep', 'fedavg'], 'digits', seeds=1, ")
    again = eval(found, {"cg": cg})
    written = json.loads((tmp_path / "comparison.json").read_text("utf-8"))["methods"]
    for key in ("method", "personal_accuracy"):
        assert [entry[key] for entry in again.result["methods"]] == [entry[key] for entry in written]


def test_a_run_of_a_users_own_task_says_what_is_missing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.py").write_text(
        "from dataclasses import dataclass\n\nfrom commonground.tasks import Classification\n"
        "from tests.helpers import made_data\nfrom dataclasses import replace\n\n\n"
        "@dataclass(frozen=True)\nclass Own(Classification):\n    name = 'own-task'\n\n\n"
        "def data():\n    return replace(made_data((20, 16)), task=Own())\n"
    )
    assert main(["train", "fedavg", "--data", "mine.py:data", "--rounds", "1", "--model", "linear", "--out", "it"]) == 0
    del tasks["own-task"]
    np.save(here / "x.npy", made_data((20, 16)).x_test)
    assert main(["predict", "it", "x.npy", "--client", "0"]) == 2
    assert "the task 'own-task' is defined by code of yours: import it before" in capsys.readouterr().err


def test_a_refusal_is_of_the_candidate_that_was_chosen(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 1, "clients": 4, "rounds": 1, "model": "linear", "local_only": False}
    settings |= {"out": tmp_path, "grid": {"lr": [1e-4, 0.3]}}
    (chosen,) = compare(["fedavg"], "digits", **settings).result["tuning"]
    assert chosen["chosen"] == {"lr": 0.3}
    with pytest.raises(RunError, match=r"started with weight_decay = 0\.0, not 0\.1"):
        compare(["fedavg"], "digits", weight_decay=0.1, **settings)
    with pytest.raises(RunError, match=r"started with threads = 1, not 2.*--allow-other-numerics"):
        compare(["fedavg"], "digits", threads=2, **settings)


def test_statistics_of_ones_own_leave_no_model_to_fine_tune() -> None:
    settings: dict[str, Any] = {"model": "mlp", "model_options": {"norm": "batch"}, "batch_size": 999, **SMALL}
    grid: dict[str, Any] = {"finetune_epochs": [0, 1]}
    methods = ["fedavg:batch_norm=local", "fedavg"]
    tuned = {entry["method"] for entry in compare(methods, "digits", grid=grid, **settings).result["tuning"]}
    assert tuned == {"fedavg"}
    with pytest.raises(ConfigError, match="'finetune_epochs' says nothing to any method of this comparison"):
        compare(["fedavg", "fedrep"], "digits", grid=grid, batch_norm="local", **settings)
