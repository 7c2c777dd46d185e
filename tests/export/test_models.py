"""Models taken away: every format gives what the run itself predicts, and tells nothing of the clients."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import commonground as cg
from commonground.cli import main
from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.errors import CommonGroundError, ConfigError, ModelError, RunError
from commonground.models import ResNet18
from tests.helpers import digits, images, made_data, seeded
from tests.language import tiny_model, token_data
from tests.other_tasks import multilabel_data, regression_data
from tests.tasks.test_named_inputs import Named, inputs_of, three_inputs

Samples = Any


@cache
def trained(kind: str) -> tuple[Run, Samples]:
    """A run of one round and raw samples of its test rows."""
    made: dict[str, Callable[[], FederatedDataset]] = {
        "digits": digits,
        "images": images,
        "numbers": regression_data,
        "labels": multilabel_data,
        "named": three_inputs,
        "noise": digits,
    }
    data = made[kind]()
    settings: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "workers": 1, "engine": "serial", "seed": 3}
    if kind == "noise":
        settings["feature_noise"] = 0.5
    own: dict[str, Callable[[], Any]] = {
        "named": lambda: seeded(Named),
        "images": lambda: seeded(ResNet18, (2, 16, 16), 3, stem="cifar", width=4, blocks=(1, 1)),
    }
    model = own[kind]() if kind in own else "mlp"
    run = cg.train("fedrep", data, model=model, **settings)
    return run, inputs_of(np.random.default_rng(5), 6) if kind == "named" else data.x_test[:6]


def as_inputs(x: Samples) -> dict[str, Any]:
    """Raw samples as the inputs of a graph: numbers as float32, whole numbers among named ones as int64."""
    given = x if isinstance(x, dict) else {"samples": x.astype(np.float64)}
    return {name: v.astype(np.float32) if v.dtype.kind == "f" else v.astype(np.int64) for name, v in given.items()}


@pytest.mark.parametrize("kind", ["digits", "numbers", "labels", "noise"])
def test_safetensors_predict_what_the_run_does(kind: str, tmp_path: Path) -> None:
    run, x = trained(kind)
    (written,) = cg.export_model(run, tmp_path / "own", client=1)
    assert written.client == 1
    assert sorted(p.name for p in written.folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    loaded = cg.load_exported(tmp_path / "own")
    wanted = run.predict(x, 1)
    np.testing.assert_array_equal(loaded.predict(x), wanted)
    assert not np.array_equal(wanted, run.predict(x, 2)), "a client's own model"
    assert loaded.class_names == tuple(run.trained.split["class_names"])


def test_a_network_given_as_an_object_is_needed_again(tmp_path: Path) -> None:
    run, x = trained("named")
    cg.export_model(run, tmp_path / "own", client=0)
    with pytest.raises(ConfigError, match=r"was given as an object: load it with load_exported\(folder, model=…\)"):
        cg.load_exported(tmp_path / "own")
    np.testing.assert_array_equal(cg.load_exported(tmp_path / "own", model=Named()).predict(x), run.predict(x, 0))
    with pytest.raises(ModelError, match="is of another network"):
        cg.load_exported(tmp_path / "own", model=seeded(Named, 4))


@pytest.mark.parametrize("kind", ["numbers", "named", "noise", "images"])
def test_a_program_of_torch_predicts_what_the_run_does(kind: str, tmp_path: Path) -> None:
    run, x = trained(kind)
    cg.export_model(run, tmp_path / "own", client=1, format="torch")
    program = torch.export.load(tmp_path / "own" / "model.pt2").module()
    names = run.trained.format.names
    for rows in (6, 1, 3):
        given = [torch.from_numpy(as_inputs(x)[name][:rows]) for name in names]
        part = {n: v[:rows] for n, v in x.items()} if isinstance(x, dict) else x[:rows]
        with torch.no_grad():
            np.testing.assert_allclose(program(*given).numpy(), run.predict(part, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["noise", "numbers", "named", "labels", "images"])
def test_onnx_predicts_what_the_run_does(kind: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run, x = trained(kind)
    cg.export_model(run, tmp_path / "own", client=1, format="onnx")
    assert sorted(p.name for p in (tmp_path / "own").iterdir()) == ["README.md", "config.json", "model.onnx"]
    session = runtime.InferenceSession(tmp_path / "own" / "model.onnx")
    assert {i.name for i in session.get_inputs()} == set(as_inputs(x))
    for rows in (6, 1):
        part = {n: v[:rows] for n, v in x.items()} if isinstance(x, dict) else x[:rows]
        (said,) = session.run(None, as_inputs(part))
        np.testing.assert_allclose(said, run.predict(part, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_classifier_of_texts_as_a_program(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    name = tiny_model("bert", tmp_path / "bert")
    data = token_data()
    options = {"rank": 2, "alpha": 3.0}
    run = cg.train("lora", data, model=name, model_options=options, rounds=1, lr=0.5, engine="serial", workers=1)
    cg.export_model(run, tmp_path / "own", client=1, format="torch")
    program = torch.export.load(tmp_path / "own" / "model.pt2").module()
    for row in data.x_test[:4]:
        length = int(row[0, 1])
        ids, marks = torch.from_numpy(row[1 : 1 + length].astype(np.int64)).T[:, None]
        with torch.no_grad():
            said = program(ids.contiguous(), torch.ones_like(ids), marks.contiguous())
        np.testing.assert_allclose(said.numpy(), run.predict(row[None], 1), atol=1e-5)


def test_what_travels_names_no_client_and_no_path(tmp_path: Path) -> None:
    table = tmp_path / "secret-place.csv"
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{rng.normal():.3f},{'ab'[i % 2]},{['Anna', 'Bo'][i % 3 > 0]}" for i in range(60)]
    table.write_text("age,income,label,who\n" + "\n".join(rows) + "\n")
    run = tmp_path / "run"
    settings = ["--partition", "column:who", "--rounds", "1", "--quiet", "--out", str(run)]
    assert main(["train", "fedrep", "--data", str(table), *settings]) == 0
    assert main(["export", str(run), "--client", "Anna", "--out", str(tmp_path / "own"), "--quiet"]) == 0
    told = "".join(p.read_text("utf-8") for p in (tmp_path / "own").iterdir() if p.suffix in (".json", ".md"))
    for word in ("Anna", "Bo", "secret-place", str(tmp_path)):
        assert word not in told, word
    assert '"a"' in told, "but the classes' names are needed"


def test_every_client_and_the_global_model(tmp_path: Path) -> None:
    run = cg.train("fedavg", made_data(), model="mlp", rounds=1, local_epochs=1, workers=1)
    data = made_data()
    written = cg.export_model(run, tmp_path / "all", client="all")
    assert [w.folder.name for w in written] == [f"client-{c}" for c in range(run.trained.clients)]
    cg.export_model(run, tmp_path / "global")
    np.testing.assert_array_equal(cg.load_exported(tmp_path / "global").predict(data.x_test), run.predict(data.x_test))


def test_refusals_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = trained("digits")
    with pytest.raises(ConfigError, match="FedRep has no global model; name a client"):
        cg.export_model(run, tmp_path / "x")
    with pytest.raises(ConfigError, match="has no client 'nobody'"):
        cg.export_model(run, tmp_path / "x", client="nobody")
    with pytest.raises(ConfigError, match="no LoRA adapter to export"):
        cg.export_model(run, tmp_path / "x", client=0, format="peft")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("")
    with pytest.raises(RunError, match="is not empty"):
        cg.export_model(run, tmp_path / "x", client=0)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert main(["export", str(tmp_path / "x"), "--out", str(tmp_path / "y"), "--merge", "--format", "onnx"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


class Counting(nn.Module):
    """Decides by the values of its samples, which no graph can hold."""

    groups: ClassVar = {"head": ["head"]}

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)) if float(x.sum()) > 0 else self.body(x))


def test_a_model_that_is_no_graph(tmp_path: Path) -> None:
    data = made_data()
    run = cg.train("fedavg", data, model=seeded(Counting), rounds=1, local_epochs=1, engine="serial", workers=1)
    with pytest.raises(ModelError, match=r"cannot be written as a program of torch.export .*; take --format safete"):
        cg.export_model(run, tmp_path / "own", format="torch")
    assert not list(tmp_path.iterdir())


def damage(folder: Path, kind: str) -> None:
    if kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "config cut":
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text[: len(text) // 2])
    elif kind == "config lacks":
        read = json.loads((folder / "config.json").read_text())
        del read["data"]["task"]
        (folder / "config.json").write_text(json.dumps(read))
    elif kind == "weights cut":
        raw = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(raw[:-100])
    elif kind == "a tensor lacks":
        tensors = load_file(folder / "model.safetensors")
        tensors.popitem()
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["no config", "config cut", "config lacks", "weights cut", "a tensor lacks"])
def test_a_damaged_folder_is_refused(kind: str, tmp_path: Path) -> None:
    run, _ = trained("digits")
    cg.export_model(run, tmp_path / "own", client=1)
    damage(tmp_path / "own", kind)
    with pytest.raises(CommonGroundError) as error:
        cg.load_exported(tmp_path / "own")
    assert "\n" not in str(error.value)


def test_whatever_its_config_holds_is_told_in_a_sentence(tmp_path: Path) -> None:
    run, x = trained("digits")
    cg.export_model(run, tmp_path / "own", client=1)
    file = tmp_path / "own" / "config.json"
    whole = json.loads(file.read_text())
    refused = list[str]()
    values: tuple[Any, ...] = (None, "x", -1, [], {}, ["x"])
    for part, key in [("data", key) for key in whole["data"]] + [("settings", key) for key in whole["settings"]]:
        for value in values:
            file.write_text(json.dumps(whole | {part: whole[part] | {key: value}}))
            try:
                cg.load_exported(tmp_path / "own").predict(x)
            except CommonGroundError as error:
                refused.append(str(error))
    assert len(refused) > 60
    assert not any("\n" in sentence for sentence in refused)
    file.write_text(json.dumps(whole | {"settings": {}}))
    with pytest.raises(RunError, match="is damaged: its settings name no model"):
        cg.load_exported(tmp_path / "own")


def test_its_files_are_readable_as_others_are_and_the_present_folder_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, x = trained("digits")
    for name in ("here", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "here")
    cg.export_model(run, ".", client=1)
    cg.export_model(run, "../link", client=1)
    assert (tmp_path / "link").is_symlink()
    wanted = run.predict(x, 1)
    for folder in (Path(), tmp_path / "real"):
        np.testing.assert_array_equal(cg.load_exported(folder).predict(x), wanted)
        modes = {file.stat().st_mode & 0o777 for file in folder.iterdir()}
        assert modes == {tmp_path.joinpath("here").stat().st_mode & 0o666}
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_the_card_says_of_which_type_samples_are(format: Any, dtype: str, tmp_path: Path) -> None:
    """Stored digits are bytes, which a graph of floating-point numbers does not take."""
    pytest.importorskip("onnxruntime")
    data = digits()
    run = cg.train("fedrep", data, model="mlp", rounds=1, dtype=dtype, engine="serial")
    cg.export_model(run, tmp_path, client=0, format=format)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert f"It takes samples [n, 8, 8, 1] as {dtype}, not scaled" in text
    samples = data.x_test[:3].astype(dtype)
    given = {"samples": samples} if format == "onnx" else [torch.from_numpy(samples)]
    names: dict[str, Any] = {"folder": tmp_path, "inputs": given}
    exec(text.split("```python\n")[1].split("```")[0], names)
    said = names["prediction"]
    wanted = run.predict(data.x_test[:3], 0)
    np.testing.assert_allclose(np.asarray(getattr(said, "detach", lambda: said)()), wanted, atol=1e-5)


OWN = """
from torch import nn
from commonground.algorithms.fedrep import FedRep

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))

class Mine(FedRep):
    name, title = "of-a-card", "Mine"
"""


def test_the_card_says_what_code_of_ones_own_it_is_loaded_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the lines that it shows load it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    method = cg.train("own.py:Mine", digits(), rounds=1, out="named", model="own.py:Net")
    given = cg.train(method.trained.algorithm, digits(), rounds=1, model=net)
    for run, call, sentence in (
        (method, "folder, trust_code=True", "It is loaded with the run's own code, own.py, at that path"),
        (given, "folder, model=network, algorithm=method", "with `network`, a module of .*; `method`, the run's own"),
        (cg.train("fedrep", digits(), rounds=1), "folder", "any number of rows.\n"),
    ):
        cg.export_model(run, tmp_path / "out", client=0)
        text = (tmp_path / "out" / "README.md").read_text("utf-8")
        assert f"cg.load_exported({call})\n" in text
        assert re.search(sentence, text)
        samples = digits().x_test[:3]
        names: dict[str, Any] = {"folder": tmp_path / "out", "samples": samples, "network": net}
        exec(text.split("```python\n")[1].split("```")[0], names | {"method": run.trained.algorithm}, names)
        np.testing.assert_array_equal(names["prediction"], run.predict(samples, 0))
        shutil.rmtree(tmp_path / "out")


def test_a_format_that_is_none_is_told(tmp_path: Path) -> None:
    run = cg.train("fedavg", made_data((8, 9)), rounds=1, out=tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"^unknown format 'onx' \(did you mean 'onnx'\?\); known are peft, safetensors,"
    ):
        cg.export_model(run, tmp_path / "out", format="onx")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
