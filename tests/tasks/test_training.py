"""Regression and several labels trained: by hand, by every method in every engine, as scikit-learn measures them."""

from __future__ import annotations

import csv
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, mean_absolute_error, mean_squared_error, r2_score
from torch import nn

from commonground import FederatedDataset, train
from commonground.algorithms import registry
from commonground.compare import validation_split
from commonground.data import IID, Column, Dirichlet, Features, Shards, Source, deal, limit_samples
from commonground.engine.run import load_run
from commonground.errors import ConfigError, DataError, ModelError
from commonground.tasks import MultiLabel, Regression
from tests.helpers import (
    ENGINES,
    TwoLayer,
    Whole,
    assert_same_run,
    fitting,
    made_data,
    mlp_options,
    seeded,
    suited,
    train_whole,
)

FOR_CLASSES = sorted(name for name, cls in registry.items() if cls.needs_classes)
METHODS = sorted(set(registry) - set(FOR_CLASSES))


@cache
def numbers() -> FederatedDataset:
    """Two targets around 100 that depend on four inputs; clients of unequal size, one with a single test sample."""
    return _made("regression")


@cache
def labels() -> FederatedDataset:
    """Three labels that depend on four inputs."""
    return _made("multilabel")


def _made(task: str) -> FederatedDataset:
    rng = np.random.default_rng(0)
    slope = rng.normal(size=(4, 2 if task == "regression" else 3))

    def part(n: int) -> tuple[Any, Any]:
        x = rng.normal(size=(n, 4))
        y = np.tanh(x @ slope) + 0.1 * rng.normal(size=(n, slope.shape[1]))
        return x, 100 + 20 * y if task == "regression" else (y > 0).astype(int)

    parts = [(*part(n), *part(test)) for n, test in ((5, 3), (3, 1), (8, 6), (1, 4))]
    learnt = Regression.standardised(np.concatenate([y for _, y, _, _ in parts])) if task == "regression" else task
    return FederatedDataset.from_arrays(parts, name=task, task=learnt)


DATA = {"regression": numbers, "multilabel": labels}


def test_the_data_sets() -> None:
    assert numbers().task == Regression.standardised(numbers().y_train)
    assert labels().task == MultiLabel()
    assert (numbers().classes, labels().classes) == (2, 3)
    assert numbers().class_counts().tolist() == [[5, 5], [3, 3], [8, 8], [1, 1]]
    counts = [labels().y_train[labels().train_indices(c)].sum(0).tolist() for c in range(4)]
    assert labels().class_counts().tolist() == counts
    assert repr(numbers()).endswith(", 2 targets>")
    assert "3 labels" in repr(labels())
    plain = FederatedDataset.from_arrays([(np.eye(3), np.arange(3.0)) * 2], task="regression")
    assert (plain.task, plain.y_train.shape, plain.classes) == (Regression(), (3, 1), 1)
    fingerprints = {
        FederatedDataset.from_arrays([(np.eye(2), np.array([[0.0, 1.0], [1.0, 1.0]])) * 2], task=task).fingerprint()
        for task in ("regression", "multilabel", Regression((1.0, 2.0), (1.0, 1.0)))
    }
    assert len(fingerprints) == 3


# -- one round by hand ------------------------------------------------------------------------------------------------


class Line(nn.Sequential):
    """ŷ = w·x + b, which starts at zero."""

    groups = {"head": ["0"]}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("weighting", "w", "b"), [("uniform", 0.5, 0.2), ("samples", 0.8, 1 / 3)])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_round_of_fedavg_on_a_line(engine: str, weighting: str, w: float, b: float, scaled: bool) -> None:
    """At w = b = 0 the gradients are −2·mean(x·y) and −2·mean(y).

    The first client's samples (1, 2), (3, 4) give −14 and −6, the second's (2, −1) gives 4 and 2. At the rate 0.1 their
    models are (1.4, 0.6) and (−0.4, −0.2). With targets in units of 10 about 50 nothing of this changes.
    """
    mean, std = (50.0, 10.0) if scaled else (0.0, 1.0)

    def column(*values: float) -> Any:
        return np.array(values, dtype=float)[:, np.newaxis]

    # Tested at w = ½, b = 0.2: the first client is off by −1 at x = 2, the second by −3 at 0 and −4 at 2.
    data = FederatedDataset.from_arrays(
        [
            (column(1, 3), np.array([2, 4]) * std + mean, column(2), np.array([2.2]) * std + mean),
            (column(2), np.array([-1]) * std + mean, column(0, 2), np.array([3.2, 5.2]) * std + mean),
        ],
        task=Regression((mean,), (std,)) if scaled else Regression(),
    )
    run = train("fedavg", data, model=Line(), rounds=1, lr=0.1, momentum=0, batch_size=9, local_epochs=1, engine=engine,
                workers=2, dtype="float64", weighting=weighting)  # fmt: skip
    assert run.shared["0.weight"].item() == pytest.approx(w, abs=1e-14)
    assert run.shared["0.bias"].item() == pytest.approx(b, abs=1e-14)
    losses = [(4 + 16) / 2, 1.0]  # before the step
    assert run.history[0]["train_loss"] == pytest.approx(float(np.mean(losses)), abs=1e-12)
    if weighting == "samples":
        return
    rmse = np.array([1.0, math.sqrt((9 + 16) / 2)]) * std
    assert [c["personal_rmse"] for c in run.clients] == pytest.approx(rmse.tolist(), abs=1e-12)
    assert [c["personal_mae"] for c in run.clients] == pytest.approx([std, 3.5 * std], abs=1e-12)
    assert [c["test_loss"] for c in run.clients] == pytest.approx([1.0, 12.5], abs=1e-12)
    # One sample has no spread; the other client's is 2, and its squared errors are 25.
    assert run.clients[0]["personal_r2"] == ""
    assert run.clients[1]["personal_r2"] == pytest.approx(1 - 25 / 2, abs=1e-10)
    summary = run.summary
    assert (summary["task"], summary["metric"]) == ("regression", "rmse")
    assert run.personal["mean"] == summary["global_rmse"] == pytest.approx(rmse.mean(), abs=1e-12)
    assert summary["metrics"]["rmse"]["over_rows"] == pytest.approx(std * math.sqrt((1 + 9 + 16) / 3), abs=1e-12)
    assert summary["metrics"]["r2"]["mean"] == pytest.approx(-11.5, abs=1e-10)
    for asked in ("personal_accuracy", "global_accuracy"):
        with pytest.raises(ConfigError, match=r"a run for regression has no accuracy; its metric is rmse"):
            getattr(run, asked)


def test_a_round_of_fedavg_on_two_labels() -> None:
    """At zero every probability is ½, so the gradient of a bias is the mean of (½ − y), halved by two labels."""
    x = np.zeros((4, 1))
    y = np.array([[1, 0], [1, 0], [1, 1], [0, 1]])
    model = nn.Sequential(nn.Linear(1, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    data = FederatedDataset.from_arrays([(x, y, x, y)], task="multilabel")
    run = train("fedavg", data, model=model, head="0.*", rounds=1, lr=0.8, momentum=0, batch_size=4, local_epochs=1,
                dtype="float64")  # fmt: skip
    assert run.shared["0.bias"].tolist() == pytest.approx([0.1, 0.0], abs=1e-15)  # −0.8·(½ − ¾)/2 and −0.8·(½ − ½)/2
    assert run.history[0]["train_loss"] == pytest.approx(math.log(2), abs=1e-15)
    # Both labels are said of all four samples: TP = 5, FP = 3.
    assert run.summary["global_f1"] == pytest.approx(10 / 13, abs=1e-15)
    assert run.summary["metrics"]["label_accuracy"]["mean"] == 5 / 8
    assert run.summary["metrics"]["subset_accuracy"]["mean"] == 1 / 4


# -- every method in every engine -------------------------------------------------------------------------------------


def in_every_engine(method: str, data: FederatedDataset, model: Any, **settings: Any) -> dict[str, Whole]:
    settings = {"dtype": "float64", "rounds": 2, "weight_decay": 1e-3, "participation": 0.8} | settings
    settings = fitting(method, settings)
    return {engine: train_whole(method, data, model=model(), engine=engine, **settings) for engine in ENGINES}


def assert_engines_agree(runs: dict[str, Whole]) -> None:
    """Weights bit for bit, stacked within 1e-9; figures of a test may be added up in another order."""
    serial = runs["serial"]
    for engine in ("processes", "messages"):
        assert runs[engine].sha == serial.sha
        assert_same_run(serial, runs[engine], 0.0)
    assert runs["processes"].run.clients == serial.run.clients
    assert_same_run(serial, runs["batched"], 1e-9)
    for engine, whole in runs.items():
        for mine, theirs in zip(serial.run.clients, whole.run.clients, strict=True):
            assert list(mine) == list(theirs)
            for field, value in mine.items():
                close = isinstance(value, float)
                wanted = pytest.approx(value, rel=1e-7, abs=1e-9) if close else value
                assert theirs[field] == wanted, (engine, field)


@pytest.mark.engine
@pytest.mark.parametrize("kind", sorted(DATA))
@pytest.mark.parametrize("method", METHODS)
def test_engines_agree(method: str, kind: str) -> None:
    data = DATA[kind]()
    # One method in two: a model whose head's input the engines have to capture, and a chain that they can cut.
    if METHODS.index(method) % 2:
        runs = in_every_engine(method, data, lambda: suited(method, seeded(TwoLayer, classes=data.classes)))
    else:
        runs = in_every_engine(method, data, lambda: "mlp", model_options=mlp_options(method, [6]))
    assert_engines_agree(runs)
    whole = runs["serial"].run
    assert whole.summary["metric"] == {"regression": "rmse", "multilabel": "f1"}[kind]
    assert all(math.isfinite(row["test_loss"]) for row in whole.clients)


@pytest.mark.parametrize("kind", sorted(DATA))
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "local", "ditto", "scaffold", "fedper", "fedcp", "fedprox"])
def test_something_is_learnt(method: str, kind: str) -> None:
    settings: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": [16]}, "engine": "batched", "seed": 1}
    run = train(method, DATA[kind](), rounds=60, lr=0.1, batch_size=4, **settings)
    losses = [row["train_loss"] for row in run.history]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "settings"), [("fedavg", {"finetune_epochs": 2}), ("perfedavg", {"options": {"adapt_steps": 0}})]
)
def test_fine_tuning_and_a_gradient_step_know_the_task(method: str, settings: dict[str, Any]) -> None:
    assert_engines_agree(in_every_engine(method, numbers(), lambda: seeded(TwoLayer, classes=2), **settings))


@pytest.mark.parametrize("method", FOR_CLASSES)
@pytest.mark.parametrize("kind", sorted(DATA))
def test_methods_for_classes_are_refused(method: str, kind: str) -> None:
    title = registry[method].title.replace("*", r"\*")
    said = f"^{title} is made for classes, and the task of '{kind}' is {kind}; choose a method for any task, such as "
    with pytest.raises(ConfigError, match=said):
        train(method, DATA[kind](), model="mlp", rounds=1)


def test_which_methods_need_classes() -> None:
    assert FOR_CLASSES == ["fedproto", "fedrod", "flute", "flute-star"]


# -- figures as others compute them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_regression_is_measured_as_by_scikit_learn(method: str, tmp_path: Path) -> None:
    data = numbers()
    train(method, data, model="mlp", rounds=3, lr=0.05, batch_size=4, out=tmp_path, dtype="float64")
    summary, run = json.loads((tmp_path / "summary.json").read_text()), load_run(tmp_path)
    assert run.trained.task == data.task
    truth = [data.y_test[data.test_indices(c)] for c in range(data.clients)]
    said = [run.predict(data.x_test[data.test_indices(c)], c) for c in range(data.clients)]
    for name, figure in (
        ("mse", mean_squared_error),
        ("rmse", lambda y, p: math.sqrt(mean_squared_error(y, p))),
        ("mae", mean_absolute_error),
        ("r2", r2_score),
    ):
        found = summary["metrics"][name]
        each = [figure(y, p) for y, p in zip(truth, said, strict=True) if name != "r2" or len(y) > 1]
        assert len(each) == (3 if name == "r2" else 4)
        for key, value in (("mean", np.mean(each)), ("std", np.std(each)), ("min", min(each)), ("max", max(each))):
            assert found[key] == pytest.approx(value, rel=1e-9), (name, key)
        assert found["p90"] == pytest.approx(np.quantile(each, 0.9), rel=1e-9)
        assert found["over_rows"] == pytest.approx(figure(np.concatenate(truth), np.concatenate(said)), rel=1e-9)
        with (tmp_path / "clients.csv").open() as file:
            rows = list(csv.DictReader(file))
        cells = [float(row[f"personal_{name}"]) for row in rows if row[f"personal_{name}"]]
        assert cells == pytest.approx(each, rel=1e-9)
    assert {k: v for k, v in summary["personal_rmse"].items() if k != "last10"} == {
        k: v for k, v in summary["metrics"]["rmse"].items() if k not in ("over_rows", "clients")
    }


def test_labels_are_measured_as_by_scikit_learn(tmp_path: Path) -> None:
    data = labels()
    train("fedper", data, model="mlp", rounds=5, lr=0.2, batch_size=4, out=tmp_path, dtype="float64")
    summary, run = json.loads((tmp_path / "summary.json").read_text()), load_run(tmp_path)
    truth = [data.y_test[data.test_indices(c)] for c in range(data.clients)]
    said = [run.predict(data.x_test[data.test_indices(c)], c) >= 0.5 for c in range(data.clients)]
    each = [f1_score(y, p, average="micro") for y, p in zip(truth, said, strict=True)]
    assert summary["metrics"]["f1"]["mean"] == pytest.approx(np.mean(each), abs=1e-12)
    whole = f1_score(np.concatenate(truth), np.concatenate(said), average="micro")
    assert summary["metrics"]["f1"]["over_rows"] == pytest.approx(whole, abs=1e-12)
    right = [(y == p).mean() for y, p in zip(truth, said, strict=True)]
    assert summary["metrics"]["label_accuracy"]["mean"] == pytest.approx(np.mean(right), abs=1e-12)
    exact = [(y == p).all(1).mean() for y, p in zip(truth, said, strict=True)]
    assert summary["metrics"]["subset_accuracy"]["mean"] == pytest.approx(np.mean(exact), abs=1e-12)


# -- data sets and comparisons ----------------------------------------------------------------------------------------


def test_validation_and_limits_keep_the_task() -> None:
    for data in (numbers(), labels()):
        for smaller in (validation_split(data, 0.3, 0), limit_samples(data, "train", 1, 0)):
            assert smaller.task == data.task
            assert set(smaller.train_index) < set(data.train_index)
            assert smaller.y_train.dtype == data.y_train.dtype
    assert limit_samples(numbers(), "train", 1, 0).train_sizes.tolist() == [1, 1, 1, 1]


def test_sources_of_other_tasks_are_dealt_without_classes() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    columns = {"ward": np.arange(40) % 3}
    source = Source("sizes", x, y, x, y, 2, ("height", "weight"), task=Regression.standardised(y),
                    train_columns=columns, test_columns=columns)  # fmt: skip
    for partition in (IID(), Column("ward")):
        data = deal(source, partition, 3, 0)
        assert data.task == source.task
        assert np.array_equal(data.y_train[data.train_indices(1)], y[data.train_indices(1)])
        assert sorted(data.train_index) == list(range(40))
    for by_class in (Shards(1), Dirichlet(1.0)):
        with pytest.raises(DataError, match="deals samples by class, and 'sizes' is for regression; take iid or a"):
            deal(source, by_class, 3, 0)
    with pytest.raises(DataError, match="the features partition needs samples with classes, and 'sizes' has targets"):
        deal(source, Features(0.5), 3, 0)


@pytest.mark.parametrize("task", ["classification", None])
def test_one_class_is_nothing_to_learn(task: str | None) -> None:
    said = "^'arrays' has one class only, '0', so that nothing is to be learnt; of numbers the task is regression$"
    x, y = np.ones((3, 2)), np.zeros(3, dtype=int)
    with pytest.raises(DataError, match=said):
        FederatedDataset.from_arrays([(x, y, x, y)], **({} if task is None else {"task": task}))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="-1") as refused:  # labels of -1 and 0, whose largest is the only class
        FederatedDataset.from_arrays([(x, y - [1, 0, 1], x, y)])
    assert "one class" not in str(refused.value)
    with pytest.raises(DataError, match="'made' has one class only"):
        made_data(classes=1)
    # A single number or label is no single class, and a class may be missing from the samples.
    for other in ("regression", "multilabel"):
        assert FederatedDataset.from_arrays([(x, y, x, y)], task=other).classes == 1
    assert FederatedDataset.from_arrays([(x, y, x, y)], class_names=["no", "yes"]).classes == 2


def test_targets_that_do_not_fit() -> None:
    x, y = np.ones((3, 2)), np.array([0.0, math.nan, 1.0])
    with pytest.raises(DataError, match="a target of train sample 1 of 'arrays' is not a finite number"):
        FederatedDataset.from_arrays([(x, y, x, np.zeros(3))], task="regression")
    with pytest.raises(DataError, match="the labels of test sample 2 of 'arrays' are not zeros and ones"):
        FederatedDataset.from_arrays([(x, np.eye(3), x, np.eye(3) * [1, 1, 2])], task="multilabel")
    with pytest.raises(DataError, match=r"y_train is float64 of shape .*; one row of whole numbers is needed"):
        FederatedDataset.from_arrays([(x, np.zeros(3), x, np.zeros(3))])
    with pytest.raises(ModelError, match=r"outputs of shape \(3,\), but the data has 2 targets"):
        train("fedavg", numbers(), model=seeded(TwoLayer), rounds=1)


def test_single_precision_is_trained_as_such() -> None:
    run = train("fedavg", numbers(), model="mlp", rounds=1, dtype="float32", engine="batched")
    assert all(value.dtype == torch.float32 for value in run.shared.values())


@pytest.mark.parametrize("seed", [0, 11, 23])
def test_the_default_learning_rate_suits_numbers(seed: int) -> None:
    """Each client has its own slopes; FedRep's R² is 0.2 to 0.4 at 0.05, the rate for classes."""
    rng = np.random.default_rng(seed)

    def client() -> tuple[Any, ...]:
        slopes, x = rng.normal(size=3), rng.normal(size=(60, 3))
        y = x @ slopes + x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=60)
        return x[:48], y[:48], x[48:], y[48:]

    parts = [client() for _ in range(12)]
    task = Regression.standardised(np.concatenate([part[1] for part in parts])[:, None])
    run = train("fedrep", FederatedDataset.from_arrays(parts, task=task), rounds=20, seed=seed)
    assert run.config.lr == 0.02
    assert run.summary["metrics"]["r2"]["over_rows"] > 0.8
