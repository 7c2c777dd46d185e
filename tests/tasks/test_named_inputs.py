"""Data sets with several inputs: how they are stored, given to modules, trained in every engine, and refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import FederatedDataset, train
from commonground.data import limit_samples
from commonground.data.formats import pack_named
from commonground.data.model_inputs import ModelInputs
from commonground.engine.predictions import inputs_for
from commonground.engine.run import load_run
from commonground.errors import DataError, ModelError
from commonground.models import call
from tests.helpers import ENGINES, assert_same_run, seeded, train_whole

GROUPS: Mapping[str, Sequence[str]] = {"head": ["head"]}


class Named(nn.Module):
    """Takes its inputs by name, in another order than the data's."""

    groups = GROUPS

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.words = nn.Embedding(5, 3)
        self.body = nn.Linear(3 + 3 + 4, 6)
        self.head = nn.Linear(6, outputs)

    def forward(self, table: Tensor, word: Tensor, image: Tensor) -> Tensor:
        seen = torch.tanh(self.conv(image)).mean((-1, -2))
        joined = torch.cat([seen, self.words(word), table], -1)
        return self.head(torch.tanh(self.body(joined)))


class OneDict(Named):
    """The same, given everything as one dict."""

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(**inputs)


class Anything(Named):
    """The same, for whatever names there are."""

    def forward(self, **inputs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs["table"], inputs["word"], inputs["image"])


class Join(nn.Module):
    """The first layer of a chain, which is given the dict."""

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        word = nn.functional.one_hot(inputs["word"], 5).to(inputs["table"])
        return torch.cat([inputs["image"].flatten(-3), inputs["table"], word], -1)


def chain() -> nn.Sequential:
    return nn.Sequential(Join(), nn.Linear(2 * 4 * 4 + 4 + 5, 6), nn.Tanh(), nn.Linear(6, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "by name": lambda: seeded(Named),
    "one dict": lambda: seeded(OneDict),
    "any names": lambda: seeded(Anything),
    "a chain": lambda: seeded(chain),
}


def inputs_of(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return {
        "image": rng.normal(size=(n, 2, 4, 4)),
        "word": rng.integers(0, 5, n),
        "table": rng.normal(size=(n, 4)),
    }


@cache
def three_inputs() -> FederatedDataset:
    rng = np.random.default_rng(0)

    def part(n: int) -> tuple[Any, Any]:
        return inputs_of(rng, n), rng.integers(0, 3, n)

    return FederatedDataset.from_arrays([(*part(n), *part(test)) for n, test in ((5, 3), (3, 1), (8, 6), (1, 4))])


# -- storage ----------------------------------------------------------------------------------------------------------


def test_inputs_are_stored_and_come_back_by_name() -> None:
    rng = np.random.default_rng(1)
    given = [(inputs_of(rng, n), np.arange(n) % 2, inputs_of(rng, 2), np.array([0, 1])) for n in (3, 4)]
    data = FederatedDataset.from_arrays(given)
    assert data.x_train.dtype.names == ("image", "word", "table")
    assert data.x_train.shape == (7,)
    assert data.numbers_per_sample == 2 * 4 * 4 + 1 + 4
    assert not data.tokens
    for dtype in (torch.float32, torch.float64):
        inputs = ModelInputs(data, dtype)
        for client, (x, y, x_test, _) in enumerate(given):
            for split, index, wanted in (
                ("train", data.train_indices(client), x),
                ("test", data.test_indices(client), x_test),
            ):
                rows, targets = inputs.rows(split, index)
                rows = inputs.arrange(rows)  # arrays with names are given as they are, images too
                assert list(rows) == ["image", "word", "table"]
                for name, value in wanted.items():
                    whole = torch.from_numpy(value)
                    assert torch.equal(rows[name], whole.to(dtype) if name != "word" else whole)
                if split == "train":
                    assert targets.tolist() == y.tolist()


def test_numbers_of_any_kind() -> None:
    packed = pack_named(
        {"a": np.ones(2, np.float16), "b": [1.5, 2.5], "c": np.array([True, False]), "d": np.ones((2, 3), np.uint8)}
    )
    kinds = {name: packed.dtype[name].base for name in packed.dtype.names or ()}
    assert kinds == {"a": np.float32, "b": np.float64, "c": np.int64, "d": np.uint8}
    assert packed["c"].tolist() == [1, 0]


def test_bytes_are_stored_as_bytes_and_reach_the_model_as_whole_numbers() -> None:
    x: dict[str, Any] = {"word": np.array([0, 3, 250], np.uint8), "image": np.ones((3, 2), np.float32)}
    data = FederatedDataset.from_arrays([(x, [0, 1, 0], x, [1, 0, 1])])
    assert data.x_train.dtype["word"] == np.uint8
    inputs = ModelInputs(data, torch.float32)
    rows = inputs.arrange(inputs.rows("train", data.train_indices(0))[0])
    assert (rows["word"].dtype, rows["word"].tolist()) == (torch.int64, [0, 3, 250])


def test_predict_takes_numbers_of_either_kind() -> None:
    run = train("fedrep", three_inputs(), model=seeded(Named), rounds=1, engine="serial")
    x: dict[str, Any] = {
        "image": np.ones((2, 2, 4, 4), np.float32),
        "word": np.array([1, 4]),
        "table": np.ones((2, 4), np.float32),
    }
    wanted = run.predict(x, client=0)
    for other in (
        {**x, "image": np.ones((2, 2, 4, 4), int), "table": [[1] * 4] * 2},
        {**x, "word": np.array([1.0, 4.0])},
        {**x, "word": np.array([1, 4], np.uint8)},
    ):
        assert np.array_equal(run.predict(other, client=0), wanted)
    with pytest.raises(DataError, match="the input 'word' takes whole numbers, and float64 with fractions was given"):
        run.predict({**x, "word": [1.5, 4]}, client=0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "inputs by name need a row each for every sample; there are none"),
        ({"a": np.ones(2), "b": np.ones(3)}, "need a row each for every sample; there are 2 of 'a', 3 of 'b'"),
        ({"my image": np.ones(2)}, "the input 'my image' needs a name that a parameter of the model can have"),
        ({"a": np.array(["x", "y"])}, r"the input 'a' is <U1 of shape \(2,\); rows of numbers are needed"),
        ({"a": np.array(1.0)}, r"the input 'a' is float64 of shape \(\); rows of numbers are needed"),
    ],
)
def test_inputs_that_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        pack_named(inputs)


def test_clients_with_other_inputs_are_refused() -> None:
    rng, y = np.random.default_rng(0), np.array([0, 1])
    one, other = inputs_of(rng, 2), {"image": np.ones((2, 2, 4, 4)), "text": np.ones(2)}
    for first, second in ((one, other), (one, np.ones((2, 3)))):
        with pytest.raises(DataError, match=r"inputs .*, training samples of client 0 image, word, table"):
            FederatedDataset.from_arrays([(first, y, first, y), (second, y, second, y)])
    bad = one | {"table": np.array([[0.0] * 4, [np.nan] * 4])}
    with pytest.raises(DataError, match=r"train sample 1 of 'arrays' \(owned by client 0\) has a value that is not"):
        FederatedDataset.from_arrays([(bad, y, one, y)])


def test_the_fingerprint_is_of_values_alone() -> None:
    """Between the fields of an array there may be bytes that mean nothing."""

    def made() -> FederatedDataset:
        rng = np.random.default_rng(0)
        x: dict[str, Any] = {"word": rng.integers(0, 5, 6), "table": rng.normal(size=(6, 3)).astype(np.float32)}
        return FederatedDataset.from_arrays([(x, np.arange(6) % 2, x, np.arange(6) % 2)])

    data = made()
    assert data.x_train.dtype.itemsize > 8 + 3 * 4
    x = data.x_train.copy()
    x.view(np.uint8).reshape(6, -1)[:, 8 + 3 * 4 :] = 7
    assert replace(data, x_train=x).fingerprint() == data.fingerprint() == made().fingerprint()
    x["table"][5, 2] += 1
    assert replace(data, x_train=x).fingerprint() != data.fingerprint()


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "fedcp", "perfedavg"])
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_engines_agree(kind: str, algorithm: str) -> None:
    runs = {
        engine: train_whole(algorithm, three_inputs(), model=MODELS[kind](), engine=engine, dtype="float64", rounds=2)
        for engine in ENGINES
    }
    serial = runs["serial"]
    for engine in ("processes", "messages"):
        assert runs[engine].sha == serial.sha
        assert_same_run(serial, runs[engine], 0.0)
    assert_same_run(serial, runs["batched"], 1e-9)
    for whole in runs.values():
        assert [c["personal_accuracy"] for c in whole.run.clients] == [
            c["personal_accuracy"] for c in serial.run.clients
        ]
        tested = [c["test_loss"] for c in whole.run.clients]
        assert tested == pytest.approx([c["test_loss"] for c in serial.run.clients], abs=1e-9)


def test_however_the_inputs_are_given() -> None:
    """By name, as a dict or as whatever comes: one function, one run."""
    shas = {
        train_whole("fedrep", three_inputs(), model=MODELS[kind](), dtype="float64").sha
        for kind in ("by name", "one dict", "any names")
    }
    assert len(shas) == 1


def test_every_input_is_used_for_its_own_sample() -> None:
    """One FedAvg step on all samples equals one by PyTorch alone, on the arrays as they were given."""
    rng = np.random.default_rng(5)
    x, y = inputs_of(rng, 7), rng.integers(0, 3, 7)
    data = FederatedDataset.from_arrays([(x, y, x, y)])
    model = seeded(Named).double()
    tensors = {name: torch.from_numpy(value) for name, value in x.items()}
    loss = nn.functional.cross_entropy(model(**tensors), torch.from_numpy(y))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    wanted = {n: (p - 0.3 * g).detach() for (n, p), g in zip(model.named_parameters(), gradients, strict=True)}
    run = train("fedavg", data, model=seeded(Named), rounds=1, lr=0.3, momentum=0, batch_size=7, local_epochs=1,
                dtype="float64")  # fmt: skip
    assert run.history[0]["train_loss"] == pytest.approx(loss.item(), abs=1e-12)
    for name, value in run.shared.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-12)


def test_several_inputs_and_numbers_as_targets() -> None:
    rng = np.random.default_rng(2)
    parts = [(inputs_of(rng, n), rng.normal(size=n), inputs_of(rng, 2), rng.normal(size=2)) for n in (4, 6)]
    data = FederatedDataset.from_arrays(parts, task="regression")
    runs = [
        train_whole("fedrep", data, model=seeded(Named, 1), engine=engine, dtype="float64", rounds=2)
        for engine in ENGINES
    ]
    assert len({run.sha for run in runs if run.run.summary["engine"] != "batched"}) == 1
    assert_same_run(runs[0], runs[ENGINES.index("batched")], 1e-9)
    assert limit_samples(data, "train", 2, 0).x_train.dtype.names == ("image", "word", "table")


def test_a_finished_run_predicts_from_inputs_by_name(tmp_path: Path) -> None:
    data = three_inputs()
    file = tmp_path / "mine.py"
    file.write_text(
        "from tests.tasks.test_named_inputs import Named\n\n\n"
        "class Mine(Named):\n    def __init__(self, shape, classes):\n        super().__init__(classes)\n"
    )
    done = train("fedper", data, model=f"{file}:Mine", rounds=2, out=tmp_path / "run", dtype="float64")
    run = load_run(tmp_path / "run", trust_code=True)
    for client in range(data.clients):
        rows = data.test_indices(client)
        given = inputs_for(run.trained, data.x_test[rows], client)
        assert {name: tuple(value.shape[1:]) for name, value in given.items()} == {
            "image": (2, 4, 4), "word": (), "table": (4,)
        }  # fmt: skip
        right = run.predict(data.x_test[rows], client).argmax(1) == data.y_test[rows]
        assert right.mean() == done.clients[client]["personal_accuracy"]


# -- modules that do not fit ------------------------------------------------------------------------------------------


class OtherNames(Named):
    def forward(self, table: Tensor, token: Tensor, picture: Tensor) -> Tensor:
        return super().forward(table, token, picture)


class OneTensor(Named):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.body(x))


class OneView(Named):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(x.flatten(1))


def test_modules_of_other_names_are_refused() -> None:
    said = (
        r"^the data's inputs are image, word, table, and the model's forward takes table, token, picture; they must "
        r"have the same names \(or it takes one dict\)$"
    )
    with pytest.raises(ModelError, match=said):
        train("fedavg", three_inputs(), model=OtherNames(), rounds=1)


@pytest.mark.parametrize("model", [OneTensor, OneView])
def test_modules_of_one_tensor_are_refused(model: Any) -> None:
    with pytest.raises(ModelError, match=r"^the model cannot take the inputs image, word, table by name: .*dict"):
        train("fedavg", three_inputs(), model=model(), rounds=1)


@pytest.mark.parametrize("model", [{}, {"model": "mlp"}])
def test_the_librarys_own_models_take_one_array(model: dict[str, Any]) -> None:
    said = "^this model takes samples of one array, and these have the inputs image, word, table: give a module"
    with pytest.raises(ModelError, match=said):
        train("fedavg", three_inputs(), rounds=1, **model)


def test_one_input_is_given_as_it_is() -> None:
    """Whatever the parameter is called; a data set's only input may have the name x as well."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), np.arange(4) % 2
    plain, named = (FederatedDataset.from_arrays([(given, y, given, y)]) for given in (x, {"x": x}))
    model = nn.Linear(3, 2)
    runs = [train_whole("fedavg", data, model=deepcopy(nn.Sequential(model)), head="0.*") for data in (plain, named)]
    assert runs[0].sha == runs[1].sha
    tensor = torch.from_numpy(x).float()
    assert torch.equal(call(model, tensor), call(model, {"x": tensor}))


def test_inputs_come_in_any_order() -> None:
    """Of training and test samples, of clients, and of what a model is asked."""
    rng = np.random.default_rng(0)
    a, b, y = (
        rng.normal(size=(8, 4)).astype(np.float32),
        rng.normal(size=(8, 2, 3)).astype(np.float32),
        np.arange(8) % 2,
    )
    one = ({"a": a, "b": b}, y, {"b": b, "a": a}, y)
    other = ({"b": b, "a": a}, y, {"a": a, "b": b}, y)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(10, 3), nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            out: Tensor = self.head(torch.tanh(self.body(torch.cat([a, b.flatten(1)], 1))))
            return out

    data = FederatedDataset.from_arrays([one, other])
    np.testing.assert_array_equal(data.x_train["b"][data.train_indices(1)], b)
    run = train("fedrep", data, model=seeded(Both), rounds=1)
    np.testing.assert_array_equal(run.predict({"b": b, "a": a}, 0), run.predict({"a": a, "b": b}, 0))
    with pytest.raises(DataError, match="do not fit together"):
        FederatedDataset.from_arrays([one, ({"a": a, "c": b}, y, {"a": a, "c": b}, y)])
