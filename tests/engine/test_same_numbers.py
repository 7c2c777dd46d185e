"""Invariant 1: the same numbers in every engine, for every algorithm and every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import FederatedDataset, train
from commonground.algorithms import registry
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.models import ConvNet
from tests.helpers import (
    ENGINES,
    EXACT,
    Dropping,
    TwoLayer,
    Whole,
    assert_same_run,
    assert_tensors_close,
    digits,
    dropping_chain,
    fitting,
    images,
    made_data,
    mlp_options,
    normed,
    rows_without_time,
    seeded,
    train_whole,
)

pytestmark = pytest.mark.engine

ALGORITHMS = sorted(registry)


@cache
def on_digits(algorithm: str, engine: str, workers: int = 2, dtype: str = "float32") -> Whole:
    """Three rounds on clients of unequal sizes, most of them sampled."""
    return train_whole(
        algorithm, digits(), engine=engine, workers=workers, dtype=dtype, model="mlp",
        model_options=mlp_options(algorithm, [8]),
        participation=0.8, **fitting(algorithm, {"batch_size": 16, "weight_decay": 1e-3}),
    )  # fmt: skip


def assert_equal_runs(one: Whole, other: Whole) -> None:
    """Bit for bit, as far as weights go; figures of a test may be summed in another order."""
    assert one.sha == other.sha
    assert_same_run(one, other, 0.0)
    np.testing.assert_array_equal(one.losses, other.losses)
    assert [c["personal_accuracy"] for c in one.run.clients] == [c["personal_accuracy"] for c in other.run.clients]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_processes_equal_serial(algorithm: str, workers: int) -> None:
    serial, processes = on_digits(algorithm, "serial"), on_digits(algorithm, "processes", workers)
    assert_equal_runs(serial, processes)
    assert str(rows_without_time(serial.run.history)) == str(rows_without_time(processes.run.history))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_messages_equal_serial(algorithm: str) -> None:
    serial, messages = on_digits(algorithm, "serial"), on_digits(algorithm, "messages")
    assert_equal_runs(serial, messages)
    assert str(rows_without_time(serial.run.history)) == str(rows_without_time(messages.run.history))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_batched_is_within_rounding_of_serial(algorithm: str, dtype: str, tolerance: float) -> None:
    serial, batched = on_digits(algorithm, "serial", dtype=dtype), on_digits(algorithm, "batched", dtype=dtype)
    assert_same_run(serial, batched, tolerance)
    if dtype == "float64":
        mine, theirs = ([c["personal_accuracy"] for c in w.run.clients] for w in (serial, batched))
        assert mine == theirs


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep"])
def test_accuracy_after_30_rounds(algorithm: str) -> None:
    runs = [
        train(algorithm, digits(every=1), engine=engine, rounds=30, model="mlp", batch_size=16, seed=1, eval_every=10)
        for engine in ("serial", "batched")
    ]
    one, other = (run.personal_accuracy["mean"] for run in runs)
    assert one > 0.6
    assert one == pytest.approx(other, abs=0.01)


def test_fine_tuning() -> None:
    runs = [
        train_whole("fedavg", made_data(), model=seeded(TwoLayer), engine=e, dtype="float64", finetune_epochs=3)
        for e in ENGINES
    ]
    for run in runs[1:]:
        assert_same_run(runs[0], run, 1e-9)
    assert len({run.sha for run in (runs[0], runs[1], runs[3])}) == 1
    for field in ("personal_accuracy", "test_loss"):  # of the tuned models, not of the global one
        figures = [[row[field] for row in run.run.clients] for run in runs]
        for other in figures[1:]:
            assert other == pytest.approx(figures[0], abs=1e-9)
    untuned = train_whole("fedavg", made_data(), model=seeded(TwoLayer), dtype="float64")
    for mine, theirs in zip(runs[0].run.clients, untuned.run.clients, strict=True):
        assert mine["test_loss"] != theirs["test_loss"]


# -- models ---------------------------------------------------------------------------------------------------------


class ScaledHead(nn.Linear):
    """A head that derives from nn.Linear but is another function."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2.0


class Scaled(TwoLayer):
    """A model whose output is not its head's output, though it looks so before training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Shortcut(TwoLayer):
    """A second way to the output which starts at zero, as LoRA's B or FedRoD's second head do."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(4, 3)
        nn.init.zeros_(self.side.weight)
        nn.init.zeros_(self.side.bias)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.side(x)


class InPlace(TwoLayer):
    """A model that changes its input in place, as users' models do to scale it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


class HeadOfTwo(nn.Module):
    """A head of two layers, in a module of its own."""

    groups = {"head": ["top"]}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.top = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.first(x))


def subclassed_head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), ScaledHead(5, 3))


def no_bias() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))


def in_place_relu() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


VECTOR_MODELS: dict[str, Callable[[], nn.Module]] = {
    "not a chain": TwoLayer,
    "dropout in a chain": dropping_chain,
    "dropout, not a chain": Dropping,
    "head of two layers": HeadOfTwo,
    "in-place activation": in_place_relu,
    "head without bias": no_bias,
    "head derived from nn.Linear": subclassed_head,
    "output scaled by a trained number": Scaled,
    "second way that starts at zero": Shortcut,
    "input changed in place": InPlace,
}
SOME = ("fedrep", "fedavg", "lg-fedavg", "fedsgd", "local")


def on_model(algorithm: str, engine: str, model: nn.Module, data: FederatedDataset, **settings: Any) -> Whole:
    options = {"head_epochs": 3} if algorithm == "fedrep" else {}
    settings = fitting(algorithm, {"local_epochs": 2, **settings})
    return train_whole(algorithm, data, model=model, engine=engine, options=options, **settings)


@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize("kind", VECTOR_MODELS)
def test_models_of_vectors(kind: str, algorithm: str) -> None:
    go = partial(on_model, algorithm, data=made_data((5, 3, 8, 1, 11)), dtype="float64")
    runs = {e: go(engine=e, model=seeded(VECTOR_MODELS[kind])) for e in ENGINES}
    for engine in EXACT:
        assert_equal_runs(runs["serial"], runs[engine])
    assert_same_run(runs["serial"], runs["batched"], 1e-9)


@pytest.mark.parametrize("kind", VECTOR_MODELS)
def test_features_computed_once_change_no_number(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedRep with the cut (features once per head phase, gradient of the head written out) and without."""
    go = partial(on_model, "fedrep", "serial", data=made_data((5, 3, 8)), dtype="float64")
    cut = go(model=seeded(VECTOR_MODELS[kind]))
    monkeypatch.setattr(Setup, "split", lambda self, trained: None)
    plain = go(model=seeded(VECTOR_MODELS[kind]))
    assert_same_run(cut, plain, 1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg", "lg-fedavg"])
def test_convolutions(algorithm: str, dropout: float) -> None:
    def run(engine: str, dtype: str = "float32") -> Whole:
        model = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=dropout)
        return on_model(algorithm, engine, model, images(), rounds=2, dtype=dtype)

    serial = run("serial")
    for engine in EXACT:
        assert_equal_runs(serial, run(engine))
    assert_same_run(serial, run("batched"), 1e-4)
    assert_same_run(run("serial", "float64"), run("batched", "float64"), 1e-9)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("algorithm", SOME)
def test_batch_norm(algorithm: str, momentum: float | None) -> None:
    """Statistics follow their group; the cumulative kind (momentum None) counts batches, which is state too."""
    data = made_data((6, 4, 8, 2))
    model = partial(seeded, normed, momentum=momentum)
    serial = on_model(algorithm, "serial", model(), data)
    for engine in EXACT:
        assert_equal_runs(serial, on_model(algorithm, engine, model(), data))
    if momentum is None:
        with pytest.raises(ModelError, match="BatchNorm layer '1'"):
            on_model(algorithm, "batched", model(), data)
        return
    go = partial(on_model, algorithm, data=data, dtype="float64")
    assert_same_run(go("serial", model=model()), go("batched", model=model()), 1e-9)


def test_batch_norm_statistics_travel_and_are_averaged() -> None:
    data = made_data((8, 8))
    run = on_model("fedrep", "serial", seeded(normed), data, rounds=1)
    mean, variance = run.run.shared["1.running_mean"], run.run.shared["1.running_var"]
    assert not torch.equal(mean, torch.zeros_like(mean))
    assert not torch.equal(variance, torch.ones_like(variance))
    assert "1.num_batches_tracked" not in run.run.shared


def test_batch_norm_of_a_frozen_body_keeps_its_statistics() -> None:
    run = on_model("fedrep", "serial", seeded(normed), made_data((8, 8)), rounds=1)
    no_body = train_whole(
        "fedrep", made_data((8, 8)), model=seeded(normed), rounds=1, options={"head_epochs": 3, "body_epochs": 0}
    )
    start = seeded(normed).state_dict()
    assert torch.equal(no_body.run.shared["1.running_mean"], start["1.running_mean"])
    assert not torch.equal(run.run.shared["1.running_mean"], start["1.running_mean"])


def test_batch_norm_and_a_last_batch_of_one_is_refused_in_one_sentence() -> None:
    """A size such as 5 with batches of 4 leaves one sample alone, of which no variance exists."""
    with pytest.raises(ModelError, match="BatchNorm"):
        on_model("fedavg", "serial", seeded(normed), made_data((5, 4)))


class ChannelDropout(nn.Sequential):
    """A layer that draws from PyTorch's global generator unless someone keys it."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 3, 5), nn.Dropout2d(0.5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(27, 3)
        )


def test_other_random_layers_are_keyed_or_refused() -> None:
    """nn.Dropout2d and its like must not draw from the global generator: invariant 2."""
    data = images()
    try:
        one = on_model("fedavg", "serial", seeded(ChannelDropout), data)
    except ModelError:
        return
    torch.manual_seed(12345)
    assert_equal_runs(one, on_model("fedavg", "serial", seeded(ChannelDropout), data))
    assert_equal_runs(one, on_model("fedavg", "processes", seeded(ChannelDropout), data))


# -- the starting point ---------------------------------------------------------------------------------------------


def test_a_run_does_not_depend_on_the_global_generator_or_on_runs_before() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 (the global state is what is tested)
    one = on_model("fedrep", "serial", seeded(Dropping), made_data())
    torch.manual_seed(2)
    torch.rand(7)
    assert_equal_runs(one, on_model("fedrep", "serial", seeded(Dropping), made_data()))


def test_a_module_may_be_given_twice() -> None:
    """Training leaves the caller's module as it was: comparing two methods with it starts both at the same weights."""
    model = seeded(TwoLayer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = on_model("fedavg", "serial", model, made_data())
    assert_tensors_close(dict(model.state_dict()), before, 0.0)
    assert_equal_runs(first, on_model("fedavg", "serial", model, made_data()))


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_to_train(engine: str) -> None:
    """Zero local epochs leave every weight as it was."""
    run = on_model("fedavg", engine, seeded(TwoLayer), made_data()).run  # two epochs: something happens
    idle = train_whole("fedavg", made_data(), model=seeded(TwoLayer), engine=engine, local_epochs=0, dtype="float64")
    start = {n: v.double() for n, v in seeded(TwoLayer).state_dict().items()}
    assert_tensors_close(idle.run.shared, start, 1e-12)
    assert any(not torch.equal(run.shared[n], v.float()) for n, v in start.items())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_without_body(engine: str) -> None:
    """FedRep on softmax regression is Local Only on the heads: nothing travels."""
    run = train_whole("fedrep", made_data(), model="linear", engine=engine)
    assert run.run.shared == {}
    assert run.run.summary["bytes_up"] == run.run.summary["bytes_down"] == 0


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        *((algorithm, {}) for algorithm in ("scaffold", "feddyn", "fedmtl")),
        *(("fedavg", {"aggregate": aggregate}) for aggregate in ("trimmed:0.2", "clip:0.01", "median")),
    ],
)
def test_the_server_adds_up_the_same_layout(algorithm: str, more: dict[str, Any]) -> None:
    """Weights of images lie channels last in an engine's memory, and not in what travels: sums over nine clients have
    other last digits then.
    """
    rng = np.random.default_rng(0)
    sizes = [(6 + i, 3) for i in range(9)]
    clients = [[(rng.normal(size=(n, 8, 8, 2)), rng.integers(0, 2, n)) for n in both] for both in sizes]
    data = FederatedDataset.from_arrays([(*train_rows, *test_rows) for train_rows, test_rows in clients], classes=2)
    net = partial(seeded, lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)))
    settings: dict[str, Any] = {"rounds": 3, "lr": 0.1, "workers": 1, "dtype": "float64", "batch_size": 8, **more}
    runs = [train(algorithm, data, model=net(), engine=engine, **settings) for engine in ("serial", "messages")]
    assert runs[0].summary["weights_sha256"] == runs[1].summary["weights_sha256"]


def test_gradients_at_other_weights_of_stacked_clients_have_statistics_of_their_own() -> None:
    net = partial(seeded, lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))
    settings: dict[str, Any] = {"rounds": 2, "batch_size": 4, "dtype": "float64", "options": {"option": "I"}}
    runs = [train("scaffold", made_data((8, 12, 8)), model=net(), engine=e, **settings) for e in ("serial", "batched")]
    for name, value in runs[0].trained.shared.items():
        assert_tensors_close({name: value}, {name: runs[1].trained.shared[name]}, 1e-12)
