"""A run one can use: each client's model and predictions, the same from memory and from the run's folder."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Tensors, registry
from commonground.data.arrays import Preprocess
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.predictions import predictions_of
from commonground.errors import CommonGroundError, ConfigError, DataError, ModelError, RunError
from tests.helpers import (
    ENGINES,
    TwoLayer,
    digits,
    engines_changed,
    images,
    made_data,
    mlp_options,
    normed,
    own,
    seeded,
)
from tests.language import tiny_model, token_data

DIGITS: dict[str, Any] = {
    "model": "mlp", "model_options": {"hidden": [8]}, "participation": 0.6, "rounds": 2, "batch_size": 16, "workers": 2,
    "seed": 1,
}  # fmt: skip


def _has_global_model(run: cg.Run) -> bool:
    try:
        run.model()
    except ConfigError:
        return False
    return True


def assert_same_models(one: cg.Run, other: cg.Run, x: Any, clients: int) -> None:
    """Every client's model and what it predicts, and the global ones (or the refusal of them), are equal."""
    for client in (None, *range(clients)):
        if client is None and not _has_global_model(one):
            with pytest.raises(ConfigError, match="has no global model; name a client"):
                other.model()
            continue
        mine, theirs = one.model(client), other.model(client)
        assert not mine.training
        for (name, value), (same, equal) in zip(mine.state_dict().items(), theirs.state_dict().items(), strict=True):
            assert name == same
            assert torch.equal(value, equal), name
        if not one.trained.task.generative:
            np.testing.assert_array_equal(one.predict(x, client=client), other.predict(x, client=client))


@pytest.mark.engine
@pytest.mark.parametrize("algorithm", sorted(registry))
def test_every_method_from_memory_and_from_its_folder(algorithm: str, tmp_path: Path) -> None:
    data, settings = digits(), DIGITS | {"model_options": mlp_options(algorithm, [8])}
    for engine in ENGINES:
        out = tmp_path / engine
        try:
            run = cg.train(algorithm, data, engine=engine, out=out, **settings)
        except CommonGroundError:  # a method that refuses the engine or this model
            assert engine == "batched" or algorithm not in ("fedrep", "fedavg")
            continue
        assert_same_models(run, cg.load_run(out), data.x_test[:5], data.clients)
        assert_same_models(cg.train(algorithm, data, engine=engine, out=out, resume=True, **settings), run,
                           data.x_test[:5], data.clients)  # fmt: skip
        assert_same_models(cg.train(algorithm, data, engine=engine, **settings), run, data.x_test[:5], data.clients)


def test_a_run_can_be_pickled(tmp_path: Path) -> None:
    data = digits()
    for out in (None, tmp_path / "run"):
        run = cg.train("fedrep", data, out=out, **DIGITS)
        for one in (run, *([cg.load_run(out)] if out else [])):
            again = pickle.loads(pickle.dumps(one))
            assert again.summary == run.summary
            assert_same_models(again, run, data.x_test[:5], data.clients)


@pytest.mark.parametrize(
    "more", [{"engine": "messages"}, {"validation_fraction": 0.3, "early_stopping": 1}, {"feature_noise": 0.5}]
)
def test_a_pickled_run_needs_no_temporary_folder(more: dict[str, Any], tmp_path: Path) -> None:
    data = digits()
    run = cg.train("ditto", data, **DIGITS | more, out=tmp_path / "run" if "feature_noise" in more else None)
    wanted = [run.predict(data.x_test[:5], client) for client in range(data.clients)]
    held = pickle.dumps(run)
    del run
    gc.collect()  # and with it the folder that its clients were read from
    shutil.rmtree(tmp_path)
    again = pickle.loads(held)
    for client, said in enumerate(wanted):
        np.testing.assert_array_equal(again.predict(data.x_test[:5], client), said)


def test_clients_that_are_not_tested_keep_their_number_of_test_samples() -> None:
    data = digits()
    run = cg.train("fedavg", data, engine="serial", eval_clients=2, final_eval_clients=2, **DIGITS)
    tested = [row["personal_accuracy"] != "" for row in run.clients]
    assert (sum(tested), len(tested)) == (2, data.clients)
    assert [row["test_samples"] for row in run.clients] == data.test_sizes.tolist()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("finetune", ["head", "all"])
def test_fine_tuned_runs_give_each_client_its_tuned_model(finetune: str, engine: str, tmp_path: Path) -> None:
    data = digits()
    run = cg.train("fedavg", data, engine=engine, out=tmp_path, finetune_epochs=2, finetune=finetune, **DIGITS)
    assert_same_models(run, cg.load_run(tmp_path), data.x_test[:5], data.clients)
    heads = [run.model(client).state_dict() for client in range(2)]
    assert any(not torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    assert_accuracies_are_those_of_the_models(run, data)


def assert_accuracies_are_those_of_the_models(run: cg.Run, data: cg.FederatedDataset) -> None:
    for client, row in enumerate(run.clients):
        rows = data.test_indices(client)
        right = run.predict(data.x_test[rows], client=client).argmax(1) == data.y_test[rows]
        assert right.mean() == row["personal_accuracy"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["fedrep", "ditto", "apfl", "l2gd", "fedcp", "local"])
def test_a_clients_model_is_the_one_that_was_tested(algorithm: str, engine: str) -> None:
    data = digits()
    assert_accuracies_are_those_of_the_models(cg.train(algorithm, data, engine=engine, **DIGITS), data)


@pytest.mark.parametrize("engine", ENGINES)
def test_local_statistics_and_feature_noise(engine: str, tmp_path: Path) -> None:
    data = made_data((6, 3, 8, 4), dtype=np.float32)
    net = seeded(normed)
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (data, {"model": net, "batch_norm": "local"}),
        (data, {"model": net}),
        (images(), {"model": "mlp", "feature_noise": 0.3}),
    ]
    for number, (samples, settings) in enumerate(kinds):
        out = tmp_path / str(number)
        more: dict[str, Any] = {"engine": engine, "rounds": 2, "batch_size": 4, "workers": 2, "participation": 0.5}
        run = cg.train("fedrep", samples, out=out, **more, **settings)
        given: dict[str, Any] = {"model": seeded(normed, seed=7)} if settings["model"] is net else {}
        assert_same_models(run, cg.load_run(out, **given), samples.x_test[:3], samples.clients)


@pytest.mark.parametrize("kind", ["bert", "llama-lm"])
@pytest.mark.parametrize("engine", ENGINES)
def test_language_models(engine: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    data = token_data(language=kind == "llama-lm")
    settings: dict[str, Any] = {"model_options": {"rank": 2, "layers": "1-2"}, "rounds": 2, "batch_size": 3}
    name = tiny_model(kind, tmp_path / "model")
    run = cg.train("rolora", data, model=name, engine=engine, workers=2, out=tmp_path / "run", **settings)
    loaded = cg.load_run(tmp_path / "run")
    # Rows with the numbers of training rows, whose hidden states the model kept while it trained.
    x = token_data(language=kind == "llama-lm").x_test[:4].copy()
    x[:, 0, 0] = np.arange(4)
    assert_same_models(run, loaded, x, data.clients)


def test_lora_on_a_plain_module(tmp_path: Path) -> None:
    data = made_data(dtype=np.float32)
    for method in ("lora", "flora", "ffa-lora"):
        out = tmp_path / method
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        run = cg.train(method, data, model=net, rounds=2, batch_size=4, options={"rank": 2}, out=out)
        other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        assert_same_models(run, cg.load_run(out, model=other), data.x_test[:3], data.clients)


# -- a module of one's own --------------------------------------------------------------------------------------------


class Frozen(nn.Module):
    """A module with weights that are never trained, a counter, and a head."""

    constants = frozenset({"base.weight", "base.bias"})

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.base(x))))


@pytest.mark.parametrize("algorithm", ["fedrep", "fedrod", "fedcp", "lg-fedavg", "ditto", "local"])
@pytest.mark.parametrize("kind", [TwoLayer, Frozen])
def test_a_module_of_any_weights_loads_the_run(algorithm: str, kind: Any, tmp_path: Path) -> None:
    data = made_data((6, 3, 8, 4), dtype=np.float32)
    # One client never takes part: its model is made of the initial weights, which only the run's folder has.
    settings: dict[str, Any] = {"rounds": 1, "batch_size": 4, "participation": 0.5, "out": tmp_path}
    run = cg.train(algorithm, data, model=seeded(kind), **settings)
    other = seeded(kind, seed=5)
    before = copy.deepcopy(other.state_dict())
    assert_same_models(run, cg.load_run(tmp_path, model=other), data.x_test[:3], data.clients)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_module_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    cg.train("fedrep", made_data(dtype=np.float32), model=seeded(TwoLayer), rounds=1, out=tmp_path)
    with pytest.raises(
        ConfigError, match=r"TwoLayer, was given as an object: load it with load_run\(folder, model=…\)"
    ):
        cg.load_run(tmp_path)
    with pytest.raises(ModelError, match=r"'head\.weight' has the shape \(3, 6\), and in .* has the shape \(3, 5\)"):
        cg.load_run(tmp_path, model=TwoLayer(hidden=6))
    with pytest.raises(ModelError, match=r"'0\.weight' has the shape \(3, 4\), and in the run's model it is missing"):
        cg.load_run(tmp_path, model=nn.Sequential(nn.Linear(4, 3)))
    cg.train("fedavg", "digits", clients=3, rounds=1, out=tmp_path / "named")
    with pytest.raises(ConfigError, match="is mlp, which is built by name; give none"):
        cg.load_run(tmp_path / "named", model=TwoLayer())


CODE = """
from torch import nn
__import__("pathlib").Path({mark!r}).touch()

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, classes))
"""


def test_a_folders_python_file_is_not_run_unasked(tmp_path: Path) -> None:
    file, mark = tmp_path / "net.py", tmp_path / "mark"
    file.write_text(CODE.format(mark=str(mark)))
    data = made_data(dtype=np.float32)
    run = cg.train("fedrep", data, model=f"{file}:Net", rounds=1, out=tmp_path / "run")
    mark.unlink()
    with pytest.raises(ConfigError, match=r"net.py:Net', whose code would be run: .* --trust-code"):
        cg.load_run(tmp_path / "run")
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    assert_same_models(run, cg.load_run(tmp_path / "run", model=net), data.x_test[:3], data.clients)
    assert not mark.exists()
    assert_same_models(run, cg.load_run(tmp_path / "run", trust_code=True), data.x_test[:3], data.clients)
    assert mark.exists()


@dataclass(frozen=True)
class Unlisted(Algorithm):
    shared = ("body",)
    personal = ("head",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        return client.send("body")


own(Unlisted)


def test_an_algorithm_of_ones_own(tmp_path: Path) -> None:
    data = made_data(dtype=np.float32)
    run = cg.train(Unlisted(), data, model="mlp", rounds=1, out=tmp_path)
    with pytest.raises(ConfigError, match="unknown algorithm 'unlisted'"):
        cg.load_run(tmp_path)
    assert_same_models(run, cg.load_run(tmp_path, algorithm=Unlisted()), data.x_test[:3], data.clients)


# -- memory, processes, folders ---------------------------------------------------------------------------------------


def test_clients_folders_of_a_run_without_a_folder_live_as_long_as_the_run() -> None:
    folders: list[Path] = []

    def seen(engine: Any) -> None:
        assert isinstance(engine, MessageEngine)
        folders.append(engine.folder)

    with engines_changed(seen):
        run = cg.train("fedrep", digits(), engine="messages", **DIGITS)
    assert folders[0].is_dir()
    assert_same_models(run, cg.train("fedrep", digits(), engine="serial", **DIGITS), digits().x_test[:3], 5)
    del run
    gc.collect()
    assert not folders[0].exists()
    with engines_changed(seen), pytest.raises(ZeroDivisionError):
        cg.train("fedrep", digits(), engine="messages", on_round=lambda row: 1 / 0, **DIGITS)
    assert not folders[1].exists()


def test_the_clients_state_is_not_copied_into_the_run() -> None:
    kept: list[Any] = []
    with engines_changed(lambda engine: kept.append(engine.store)):  # type: ignore[attr-defined]
        run = cg.train("ditto", digits(), engine="serial", **DIGITS)
    mine = run.trained.own(0)
    assert {n: t.data_ptr() for n, t in mine.items()} == {n: t.data_ptr() for n, t in kept[0].get(0).items()}


def test_a_killed_run_gives_the_models_of_its_checkpoint(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise ValueError("enough")

    for engine in ("serial", "messages"):
        out = tmp_path / engine
        with pytest.raises(ValueError, match="enough"):
            cg.train("fedrep", digits(), engine=engine, on_round=stop, out=out, **DIGITS | {"rounds": 4})
        run = cg.load_run(out)
        assert not run.finished
        assert "2 of 4" in repr(run)
        assert len(run.history) == 2
        short = cg.train("fedrep", digits(), engine=engine, **DIGITS)
        assert_same_models(run, short, digits().x_test[:3], 5)
        with pytest.raises(RunError, match="is not finished"):
            _ = run.personal_accuracy


# -- predictions ------------------------------------------------------------------------------------------------------


def test_other_tasks_and_several_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)
            self.head = nn.Linear(5, 2)

        def forward(self, place: Tensor, size: Tensor) -> Tensor:
            return self.head(torch.cat([self.table(place), size], 1))

    def part(n: int) -> tuple[Any, Any]:
        return {"place": rng.integers(0, 5, n), "size": rng.normal(size=(n, 2))}, rng.normal(size=(n, 2))

    data = cg.FederatedDataset.from_arrays([(*part(6), *part(3)) for _ in range(3)], task="regression")
    run = cg.train("fedrep", data, model=Two(), rounds=1, lr=0.01, out=tmp_path)
    x, _ = part(4)
    assert run.predict(x, client=1).shape == (4, 2)
    loaded = cg.load_run(tmp_path, model=Two())
    np.testing.assert_array_equal(loaded.predict(x, client="1"), run.predict(x, client=1))
    for each in (run, loaded):
        with pytest.raises(DataError, match=r"samples that are a mapping of the arrays place \[\], size \[2\]"):
            each.predict(x["size"], client=0)
        with pytest.raises(DataError, match=r"arrays place \[\] were given, but the run was trained on place"):
            each.predict({"place": x["place"]}, client=0)
    with pytest.raises(ConfigError, match="a run for regression has no accuracy"):
        _ = run.personal_accuracy


def test_read_only_samples_are_read() -> None:
    data = digits()
    run = cg.train("fedavg", data, **DIGITS)
    x = data.x_test[:5].copy()
    x.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(run.predict(x, 0), run.predict(data.x_test[:5].copy(), 0))


def test_what_predict_refuses() -> None:
    run = cg.train("fedrep", digits(), engine="serial", **DIGITS)
    x = digits().x_test[:3]
    np.testing.assert_array_equal(run.predict(torch.from_numpy(x), client=0), run.predict(x, 0))
    np.testing.assert_array_equal(run.predict(x.reshape(3, -1).tolist(), client=0), run.predict(x, client="0"))
    with pytest.raises(ConfigError, match="this run has no client '9'; it has 5, from '0' to '4'"):
        run.predict(x, client=9)
    with pytest.raises(DataError, match="must be an array of numbers"):
        run.predict(["a"], client=0)
    with pytest.raises(DataError, match="samples that are one array, and dict was given"):
        run.predict({"x": x}, client=0)
    with pytest.raises(DataError, match="sample 1 has a value that is not finite"):
        run.predict(np.where(np.arange(3)[:, None, None, None] == 1, np.nan, x), client=0)
    assert run.predict(x[:0], client=0).shape == (0, 10)


def test_what_is_finite_and_too_large_for_the_networks_numbers_is_refused() -> None:
    """It became infinite on its way into the network, which then answered NaN, and class 0."""
    drawn, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    for dtype, std, large in (("float32", 1.0, 1e39), ("float32", 1e-30, 1e10), ("float64", 1e-300, 1e10)):
        x, scale = drawn * std, Preprocess(mean=(0.0,) * 3, std=(std,) * 3)
        data = cg.FederatedDataset.from_arrays([(x[:30], y[:30], x[30:], y[30:])] * 2, preprocess=scale)
        run = cg.train("fedavg", data, model="linear", rounds=1, dtype=dtype)
        assert np.isfinite(run.predict(x[:2], client=0)).all()
        with pytest.raises(DataError, match=f"sample 1 has a value that is too large for this run, .* in {dtype}"):
            run.predict(np.stack([x[0], x[1] + large]), client=0)


# -- for people -------------------------------------------------------------------------------------------------------


def test_an_undefined_figure_is_no_text_and_names_stay() -> None:
    """A client whose test rows are of one class has no AUC."""
    pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(9, 2)), np.arange(9) % 2, rng.normal(size=(4, 2)), np.arange(4) % k) for k in (2, 1)]
    data = cg.FederatedDataset.from_arrays(parts, client_names=["a", ""], classes=2)
    table = cg.train("fedavg", data, rounds=1, model="linear").to_pandas()
    assert table["personal_auc"].isna().tolist() == [False, True]
    assert table["personal_auc"].dtype == np.float64
    assert table["name"].tolist() == ["a", ""]


def test_fine_tuning_leaves_no_global_model() -> None:
    run = cg.train("fedavg", digits(), engine="serial", finetune_epochs=1, **DIGITS)
    with pytest.raises(ConfigError, match=r"has no global model; name a client \(the head before it is not kept\)"):
        run.model(None)


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    run = cg.train("fedrep", digits(), engine="serial", out=tmp_path, **DIGITS)
    for each in (run, cg.load_run(tmp_path)):
        clients, rounds = each.to_pandas(), each.to_pandas("rounds")
        assert clients["personal_accuracy"].mean() == pytest.approx(run.personal_accuracy["mean"])
        assert clients["global_accuracy"].isna().all()
        assert rounds["round"].tolist() == [1, 2]
        assert rounds["global_accuracy"].isna().all()
        assert rounds["global_accuracy"].dtype == np.float64
        assert isinstance(clients, pd.DataFrame)
        assert all(np.issubdtype(kind, np.number) for name, kind in clients.dtypes.items() if name != "name")
    with pytest.raises(ConfigError, match="'clients' and 'rounds', not 'all'"):
        run.to_pandas("all")  # type: ignore[arg-type]


def test_tables_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    run = cg.train("fedavg", digits(), engine="serial", **DIGITS)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="to_pandas needs pandas: pip install pandas"):
        run.to_pandas()


def test_a_run_says_what_it_is() -> None:
    run = cg.train("fedavg", digits(), engine="serial", **DIGITS)
    text = repr(run)
    assert "method: fedavg" in text
    assert "rounds: 2" in text
    assert len(text) < 300
    assert f"{run.personal_accuracy['mean']:.4g}" in text
    page = run._repr_html_()
    assert page.startswith("<table>")
    assert "global accuracy" in page


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_predictions_are_computed_as_the_runs_own_tests(algorithm: str, precision: str, tmp_path: Path) -> None:
    """Each client's accuracy is that of its predictions, also where products are coarse."""
    settings: dict[str, Any] = {"clients": 6, "partition": "dirichlet:0.3", "seed": 2, "engine": "serial", "rounds": 3}
    cg.train(algorithm, "digits", precision=precision, out=tmp_path, **settings)
    run, data = cg.load_run(tmp_path), cg.load_data("digits", clients=6, partition="dirichlet:0.3", seed=2)
    for client, row in enumerate(run.clients):
        rows = data.test_indices(client)
        said = run.predict(data.x_test[rows], client=client if algorithm == "fedrep" else None)
        right = said.argmax(1) == data.y_test[rows]
        # Heads of several clients are tested side by side: of bfloat16 numbers the last bit may fall otherwise.
        bits = 2 / len(rows) if (algorithm, precision) == ("fedrep", "bf16") else 1e-9
        assert right.mean() == pytest.approx(row["personal_accuracy"], abs=bits)
    strict = replace(run.trained, config=run.config.model_copy(update={"precision": "fp32"}))
    said, strictly = (
        predictions_of(one, data.x_test, None if algorithm == "fedavg" else 0) for one in (run.trained, strict)
    )
    assert said.dtype == strictly.dtype
    assert np.array_equal(said, strictly) == (precision == "fp32")
