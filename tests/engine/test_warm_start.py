"""Runs that begin with the weights of another, or of a file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import commonground as cg
from commonground.cli import main
from commonground.errors import ConfigError, ModelError, RunError
from tests.helpers import made_data, training

SETTINGS: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": [8]}, "engine": "serial"}
STILL: dict[str, Any] = {"rounds": 1, "lr": 1e-30}  # nobody learns anything: what a run ends with is what it began with
HEAD = {"head.weight", "head.bias"}


def run(method: str, out: Path | None = None, seed: int = 0, **given: Any) -> cg.Run:
    return cg.train(method, made_data(), out=out, seed=seed, **{**SETTINGS, "rounds": 3, **given})


def equal(one: dict[str, Tensor], other: dict[str, Tensor], names: set[str]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in names)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, cg.Run]:
    """Finished runs by method, with folders."""
    folder = tmp_path_factory.mktemp("sources")
    return {method: run(method, folder / method) for method in ("fedavg", "fedrep", "lg-fedavg", "local")}


@pytest.mark.parametrize("engine", ["serial", "batched", "processes", "messages"])
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "ditto", "fedper", "scaffold"])
def test_a_run_begins_where_another_ended(method: str, engine: str, runs: dict[str, cg.Run], tmp_path: Path) -> None:
    """What is shared and what is personal alike, for clients that never took part as well."""
    whole = runs["fedavg"].shared
    begun = run(method, tmp_path, 7, init_from=runs["fedavg"].folder, engine=engine, participation=0.25, **STILL)
    for client in range(begun.trained.clients):
        assert equal(begun.trained.values_of(client), whole, set(whole))
    assert begun.summary["init_from"]["head"] == "the same"
    again = cg.load_run(tmp_path).trained
    assert equal(again.values_of(0), whole, set(whole))


def test_heads_that_are_personal_there_are_drawn_anew(runs: dict[str, cg.Run]) -> None:
    begun = run("fedavg", seed=7, init_from=runs["fedrep"].folder, **STILL)
    plain = run("fedavg", seed=7, **STILL)
    body = set(plain.shared) - HEAD
    assert equal(begun.shared, runs["fedrep"].shared, body)
    assert equal(begun.shared, plain.shared, HEAD)
    assert not equal(begun.shared, plain.shared, body)
    assert begun.summary["init_from"]["head"] == "drawn anew"
    assert "init_from" not in plain.summary


def test_of_bodies_that_are_personal_the_mean_is_taken(runs: dict[str, cg.Run]) -> None:
    own = [runs["lg-fedavg"].trained.values_of(client) for client in range(runs["lg-fedavg"].trained.clients)]
    begun = run("fedavg", init_from=runs["lg-fedavg"].folder, **STILL)
    for name in begun.shared:
        torch.testing.assert_close(begun.shared[name], torch.stack([values[name] for values in own]).mean(0))
    with pytest.raises(ConfigError, match="Local Only shares no body that new clients could use"):
        run("fedavg", init_from=runs["local"].folder)


def test_the_model_is_the_other_runs_unless_another_is_named(runs: dict[str, cg.Run]) -> None:
    source = runs["fedavg"].folder
    begun = cg.train("fedavg", made_data(), init_from=source, rounds=1)
    assert (begun.config.model, begun.config.model_options) == ("mlp", {"hidden": [8]})
    with pytest.raises(ModelError, match=r"the model's tensor 'fc1.weight' is 9 × 4, and that of '.*fedavg' is 8 × 4"):
        run("fedavg", init_from=source, model_options={"hidden": [9]})


def test_heads_for_other_classes_are_drawn_anew(runs: dict[str, cg.Run]) -> None:
    data = made_data()
    renamed = type(data).from_arrays(
        [(data.x_train[data.train_indices(c)], data.y_train[data.train_indices(c)],
          data.x_test[data.test_indices(c)], data.y_test[data.test_indices(c)]) for c in range(data.clients)],
        class_names=[f"kind {c}" for c in range(data.classes)],
    )  # fmt: skip
    begun = cg.train("fedavg", renamed, init_from=runs["fedavg"].folder, **STILL)
    assert begun.summary["init_from"]["head"] == "drawn anew"
    assert equal(begun.shared, runs["fedavg"].shared, set(begun.shared) - HEAD)
    assert not equal(begun.shared, runs["fedavg"].shared, {"head.weight"})


def test_a_file_of_weights(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    file, whole = tmp_path / "w.safetensors", runs["fedavg"].shared
    save_file(whole, file)
    begun = run("fedrep", seed=7, init_from=str(file), **STILL)
    assert equal(begun.trained.values_of(3), whole, set(whole))
    save_file({name: value for name, value in whole.items() if name not in HEAD}, file)
    assert run("fedrep", init_from=str(file), **STILL).summary["init_from"]["head"] == "drawn anew"
    save_file(whole | {"head.weight": torch.zeros(5, 8), "head.bias": torch.zeros(5)}, file)
    assert run("fedrep", init_from=str(file), **STILL).summary["init_from"]["head"] == "drawn anew", "of five classes"
    first, bias = whole["fc1.weight"].clone(), whole["fc1.bias"]
    for wrong, says in (
        ({**whole, "fc1.wieght": first}, r"has a tensor 'fc1.wieght', .* \(did you mean 'fc1.weight'\?\)"),
        ({"fc1.weight": first}, "has no weights for 'fc1.bias', of the model's body"),
        ({**whole, "fc1.bias": bias * torch.nan}, "weights that are no finite numbers: 'fc1.bias'"),
    ):
        save_file(wrong, file)
        with pytest.raises(ModelError, match=says):
            run("fedrep", init_from=str(file))
    file.write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=r"the initial weights '.*w.safetensors' cannot be read"):
        run("fedrep", init_from=str(file))


def test_a_file_has_the_whole_body_also_what_is_not_trained(tmp_path: Path) -> None:
    """Frozen weights, and statistics."""
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    net[1].weight.requires_grad_(False)
    file = tmp_path / "w.safetensors"
    for name in ("0.running_var", "1.weight"):
        save_file({key: value for key, value in net.state_dict().items() if key != name}, file)
        with pytest.raises(ModelError, match=f"has no weights for '{name}', of the model's body"):
            cg.train("fedavg", made_data((6, 4, 8)), model=net, init_from=file, **STILL)
    save_file(net.state_dict(), file)
    cg.train("fedavg", made_data((6, 4, 8)), model=net, init_from=file, **STILL)


def test_it_goes_on_as_it_would_have_unbroken(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    source = Path(shutil.copytree(str(runs["fedavg"].folder), tmp_path / "source"))
    given: dict[str, Any] = {"init_from": str(source), "participation": 0.5}
    whole = run("fedrep", tmp_path / "whole", rounds=4, **given)
    run("fedrep", tmp_path / "parts", rounds=2, **given)
    parts = run("fedrep", tmp_path / "parts", rounds=4, resume=True, **given)
    assert parts.summary["weights_sha256"] == whole.summary["weights_sha256"]
    # From other weights it does not.
    shutil.rmtree(source)
    run("fedavg", source, rounds=5)
    with pytest.raises(RunError, match=r"began with other weights than '.*source' has now"):
        run("fedrep", tmp_path / "parts", rounds=6, resume=True, **given)
    # What is finished needs the other folder no more.
    shutil.rmtree(source)
    x = made_data().x_test[:5]
    assert np.array_equal(cg.load_run(tmp_path / "whole").predict(x, 1), whole.predict(x, 1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.inner(x.flatten(1))))
        return out


def test_modules_of_ones_own(tmp_path: Path) -> None:
    data = made_data()
    first = cg.train("fedavg", data, model=Net(), rounds=3, out=tmp_path / "a")
    begun = cg.train("fedavg", data, model=Net(), init_from=tmp_path / "a", out=tmp_path / "b", **STILL)
    assert equal(begun.shared, first.shared, set(first.shared))
    assert equal(cg.load_run(tmp_path / "b", model=Net()).shared, first.shared, set(first.shared))
    with pytest.raises(ConfigError, match="was given as an object"):
        cg.train("fedavg", data, init_from=tmp_path / "a", **STILL)


def test_another_table_is_read_as_the_runs_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its categories and scales, its clients' column and its targets."""
    rng = np.random.default_rng(0)

    def table(name: str, shift: float, plans: str) -> str:
        rows = 240
        frame = pd.DataFrame({"site": [f"s{i % 4}" for i in range(rows)], "x": rng.normal(shift, 1 + shift, rows)})
        frame["plan"] = rng.choice([*plans], rows)
        frame["bought"] = np.where(frame["x"] > shift, "yes", "no")
        frame.to_csv(tmp_path / name, index=False)
        return str(tmp_path / name)

    first, asked = str(tmp_path / "a"), ["--client-column", "site", "--target", "bought", "--quiet"]
    assert main(["train", "fedavg", "--data", table("old.csv", 0, "abc"), *asked, "--rounds", "3", "--out", first]) == 0
    on = ["train", "fedrep", "--data", table("new.csv", 2, "bcd"), "--init-from", first]
    assert main([*on, "--rounds", "2", "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr()
    assert f"the model begins with the weights of '{first}'" in said.err
    assert "anew" not in said.err
    assert "dealt at random" not in said.err, "the run's column says whose rows are"
    assert f"begun with the weights of {first}" in (tmp_path / "b" / "report.html").read_text("utf-8")
    old, new = (cg.load_run(tmp_path / name).trained for name in "ab")
    assert old.schema is not None
    assert new.schema is not None
    assert new.schema.features == old.schema.features
    assert new.schema.preprocess == old.schema.preprocess
    assert new.known.names == ["s0", "s1", "s2", "s3"]
    for more, clients in ((["--clients", "3"], 3), (["--partition", "iid", "--clients", "5"], 5)):
        out = str(tmp_path / f"dealt{clients}")
        assert main([*on, *more, "--rounds", "1", "--quiet", "--out", out]) == 0
        assert cg.load_run(out).trained.clients == clients, "the column is the run's only where nobody says otherwise"
    assert main([*on, "--scaling", "none", "--out", str(tmp_path / "c")]) == 2
    assert "--scaling says how a table's columns become inputs, and --init-from" in capsys.readouterr().err
    other = cg.load_data(tmp_path / "new.csv", client_column="site", target="bought")
    with pytest.raises(cg.errors.DataError, match="was read with other columns or fills than"):
        cg.train("fedrep", other, init_from=first, rounds=1)


def test_what_cannot_be_begun_with_is_refused(
    runs: dict[str, cg.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["train", "fedavg", "--init-from", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"is neither a run's folder nor a file .safetensors"):
        run("fedavg", init_from=str(tmp_path))
    with pytest.raises(ConfigError, match=r"begins with an adapter: --set model.adapter=FOLDER"):
        cg.train("lora", "sst2", model="hf:none", init_from=str(tmp_path))
    (tmp_path / "net.py").write_text("class Net: ...\n")
    monkeypatch.setattr(training, "make_engine", None)
    config = runs["fedavg"].folder / "config.toml"  # type: ignore[operator]
    copied = shutil.copytree(str(runs["fedavg"].folder), tmp_path / "strange")
    (Path(copied) / "config.toml").write_text(config.read_text().replace('"mlp"', '"net.py:Net"'))
    with pytest.raises(ConfigError, match=r"has the model 'net.py:Net', whose code would be run; if you trust that"):
        run("fedavg", init_from=str(copied))


class Tied(nn.Module):
    """A layer used twice, and a weight held by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two, self.other.weight = self.one, self.one.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.other(self.two(torch.relu(self.one(x.flatten(1)))))))
        return out


def test_tensors_of_several_names_begin_as_well(tmp_path: Path) -> None:
    first = cg.train("fedavg", made_data(), model=Tied(), rounds=3, out=tmp_path, lr=0.3)
    given = Tied()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    begun = cg.train("fedrep", made_data(), model=given, init_from=tmp_path, **STILL)
    assert equal(begun.trained.values_of(2), first.shared, set(first.shared))
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items()), "it is the caller's own"


@pytest.mark.parametrize("method", ["fedrod", "fedcp"])
def test_of_methods_that_extend_the_model_the_body_is_taken(method: str, tmp_path: Path) -> None:
    first = run(method, tmp_path)
    begun = run("fedavg", init_from=tmp_path, **STILL)
    assert equal(begun.shared, first.shared, set(begun.shared) - HEAD)


def test_what_only_code_of_anothers_knows_is_not_run(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    """Whichever setting names it."""
    (tmp_path / "code.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    code = f"{tmp_path / 'code.py'}:thing"
    for setting, was in (("algorithm", '"fedavg"'), ("data", '"made"')):
        copied = Path(shutil.copytree(str(runs["fedavg"].folder), tmp_path / setting))
        config, split = copied / "config.toml", copied / "split.json"
        assert f"{setting} = {was}" in config.read_text()
        config.write_text(config.read_text().replace(f"{setting} = {was}", f'{setting} = "{code}"'))
        if setting == "data":
            split.write_text(split.read_text().replace('"task": "classification"', '"task": "mine"'))
        with pytest.raises(ConfigError, match=f"has the {setting} '.*code.py:thing', whose code would be run"):
            run("fedavg", init_from=copied)
    assert not (tmp_path / "code.ran").exists()


def test_runs_that_are_none_to_begin_with(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    copied = Path(shutil.copytree(str(runs["fedavg"].folder), tmp_path / "m.safetensors"))
    assert run("fedavg", init_from=copied, **STILL).summary["init_from"]["head"] == "the same"
    other = made_data(shape=(5,))
    with pytest.raises(cg.errors.DataError, match=r"5"):
        cg.train("fedavg", other, model="mlp", init_from=copied)
    config = copied / "config.toml"
    config.write_text(config.read_text().replace('"mlp"', '"hf:some"'))
    with pytest.raises(ConfigError, match="adapts a pretrained model; others begin with its adapter: commonground exp"):
        cg.train("fedavg", made_data(), init_from=copied)
    cg.train("fedavg", made_data(), rounds=4, on_round=lambda row: row["round"] < 2, out=tmp_path / "left")
    with pytest.raises(ConfigError, match=r"left' is not finished; let it end, or continue it with --resume"):
        run("fedavg", init_from=tmp_path / "left")


def test_options_given_here_count_more(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    source = run("fedavg", tmp_path, body="fc1", head="head").folder
    begun = cg.train("fedavg", made_data(), init_from=source, rounds=1)
    assert (begun.config.body, begun.config.head) == ("fc1", "head")
    with pytest.raises(ModelError, match="is 9 × 4"):
        cg.train("fedavg", made_data(), init_from=source, model_options={"hidden": [9]}, rounds=1)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_another_target_begins_with_a_head_and_scales_of_its_own(task: str, tmp_path: Path) -> None:
    """Though its classes have the same names, or its numbers are as many."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    number = task == "regression"
    frame = pd.DataFrame({"x": x, "y": 100 + 3 * x if number else np.where(x > 0, "yes", "no")})
    frame["w"] = 20 * frame["y"] + 3000 if number else np.where(x > 0, "no", "yes")
    first, other = (cg.load_data(frame.drop(columns=drop), 4, target=target, task=task)
                    for target, drop in (("y", "w"), ("w", "y")))  # fmt: skip
    source = cg.train("fedavg", first, rounds=3, out=tmp_path)
    read = cg.load_data(frame.drop(columns="y"), 4, target="w", task=task, schema=source.trained.schema)
    begun, plain = cg.train("fedavg", read, init_from=tmp_path, **STILL), cg.train("fedavg", other, **STILL)
    assert begun.summary["init_from"]["head"] == "drawn anew"
    assert begun.trained.task == plain.trained.task
    same = cg.load_data(frame.drop(columns="w"), 4, target="y", task=task, schema=source.trained.schema)
    assert cg.train("fedavg", same, init_from=tmp_path, **STILL).trained.task == source.trained.task


def test_factors_are_no_body(tmp_path: Path) -> None:
    run("lora", tmp_path)
    with pytest.raises(ModelError, match=r"has no weights for 'fc1.weight', .* \(there it is mlp, trained by LoRA\)"):
        run("fedavg", init_from=tmp_path)


def test_all_methods_of_a_comparison_begin_alike(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    given = {**SETTINGS, **STILL, "seeds": 1, "local_only": False, "init_from": str(runs["fedavg"].folder)}
    found = cg.compare(["fedavg", "fedrep"], made_data(), out=tmp_path, **given)
    one, other = (found.runs[name][0].trained.values_of(0) for name in ("fedavg", "fedrep"))
    assert equal(one, runs["fedavg"].shared, set(one))
    assert equal(other, one, set(one))
    with pytest.raises(ConfigError, match="init_from"):
        cg.compare(["fedavg", "fedrep:init_from=x"], made_data(), **SETTINGS)


def test_the_folder_holds_what_it_began_with(runs: dict[str, cg.Run], tmp_path: Path) -> None:
    begun = run("fedavg", tmp_path, init_from=runs["fedavg"].folder)
    assert equal(load_file(tmp_path / "initial_model.safetensors"), runs["fedavg"].shared, set(begun.shared))
