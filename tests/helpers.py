"""What several tests share: small federated problems, small models, and runs whose personal tensors can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from commonground import FederatedDataset, Run, load_data, train
from commonground.algorithms import Algorithm, Tensors, registry, yardsticks
from commonground.data.sources import Source
from commonground.engine.backends.base import Engine, StoreEngine
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.messages import MessageEngine
from commonground.models import groups_of, set_groups, tensors_of

# By its full name: the package gives the function of the same name precedence over the module.
training = import_module("commonground.engine.loop")

ENGINES = ("serial", "processes", "batched", "messages")
EXACT = ("processes", "messages")  # equal to serial bit for bit

FREE = ("seconds", "eval_seconds")  # fields of a round's line that may differ between two runs


# -- data -----------------------------------------------------------------------------------------------------------


def labelled(train: list[int], test: list[int], seed: int = 0) -> Source:
    """A source with this many samples of each class, in random order; a sample's value is its own number."""
    rng = np.random.default_rng(seed)
    y_train, y_test = (rng.permutation(np.repeat(np.arange(len(each)), each)) for each in (train, test))
    return Source(
        name="labelled",
        x_train=np.arange(len(y_train), dtype=np.float32)[:, np.newaxis],
        y_train=y_train,
        x_test=np.arange(len(y_test), dtype=np.float32)[:, np.newaxis],
        y_test=y_test,
        classes=len(train),
        class_names=tuple(f"class {label}" for label in range(len(train))),
    )


def made_data(
    sizes: Sequence[int] = (5, 3, 8, 1),
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    *,
    test: int = 4,
    dtype: Any = np.float64,
    seed: int = 0,
    **fields: Any,
) -> FederatedDataset:
    """Gaussian samples with random labels: client i has ``sizes[i]`` training and ``test`` test samples."""
    rng = np.random.default_rng(seed)

    def part(n: int) -> tuple[Any, Any]:
        return rng.normal(size=(n, *shape)).astype(dtype), rng.integers(0, classes, n)

    return FederatedDataset.from_arrays(
        [(*part(n), *part(test)) for n in sizes], name="made", classes=classes, **fields
    )


@cache
def digits(clients: int = 5, every: int = 5) -> FederatedDataset:
    """Every fifth of the digits over clients of very unequal sizes and classes."""
    data = load_data("digits", clients, partition="dirichlet:0.5", seed=3)
    kept = [data.train_indices(c)[::every] for c in range(clients)]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in kept])])
    return replace(data, train_index=np.concatenate(kept), train_offsets=offsets)


def images(sizes: Sequence[int] = (7, 12, 4)) -> FederatedDataset:
    """16×16 images with two channels."""
    return made_data(sizes, (16, 16, 2), dtype=np.float32)


# -- models ---------------------------------------------------------------------------------------------------------


def seeded(model_class: Any, *args: Any, seed: int = 0, **options: Any) -> nn.Module:
    """A model whose initial weights depend on ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = model_class(*args, **options)
        return model


class TwoLayer(nn.Module):
    """A network that is no ``nn.Sequential``: the engines have to capture its head's input by a hook."""

    groups: Mapping[str, Sequence[str]] = {"head": ["head"]}

    def __init__(self, inputs: int = 4, hidden: int = 5, classes: int = 3) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, classes)  # defined first on purpose: order of definition is not order of use
        self.first = nn.Linear(inputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))


class Dropping(nn.Module):
    """A body with dropout, written by a user; the head comes after another dropout."""

    groups: Mapping[str, Sequence[str]] = {"head": ["head"]}

    def __init__(self, inputs: int = 4, hidden: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.inner = nn.Sequential(nn.Tanh(), nn.Dropout(0.3))
        self.second = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.second(self.inner(self.first(x))))))


def dropping_chain(inputs: int = 4, hidden: int = 6, classes: int = 3) -> nn.Sequential:
    """A chain with dropout before a hidden layer and before the head."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(hidden, classes),
    )


def normed(inputs: int = 4, hidden: int = 6, classes: int = 3, **norm: Any) -> nn.Sequential:
    """A chain with BatchNorm in its body."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden, **norm), nn.ReLU(), nn.Linear(hidden, classes)
    )


class Normalised(nn.Module):
    """A model behind a LayerNorm of its input.

    Args:
        model: whose groups stay what they are.
        shape: of one sample as the model sees it.
    """

    def __init__(self, model: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.norm, self.net = nn.LayerNorm(tuple(shape), dtype=next(model.parameters()).dtype), model
        set_groups(self, {name: [f"net.{p}" for p in patterns] for name, patterns in groups_of(model).items()})

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.norm(x))


NEED_NORM = ("fedbn",)
"""Methods that refuse a model without normalisation layers."""


def suited(method: str, model: nn.Module, shape: Sequence[int] = (4,)) -> nn.Module:
    """The model as this method can train it."""
    return Normalised(model, shape) if method in NEED_NORM else model


def mlp_options(method: str, hidden: Sequence[int]) -> dict[str, Any]:
    """Options of the model ``mlp`` with which this method can train it, in any engine."""
    return {"hidden": list(hidden)} | ({"norm": "layer"} if method in NEED_NORM else {})


# -- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """A run with what it leaves at the clients.

    Attributes:
        run: as ``train`` returns it.
        personal: every client's personal tensors at the end.
        initial: a client's personal tensors before its first round.
    """

    run: Run
    personal: list[Tensors]
    initial: Tensors

    @property
    def sha(self) -> str:
        return str(self.run.summary["weights_sha256"])

    @property
    def losses(self) -> list[float]:
        """Mean training loss of every round; NaN where nothing was trained."""
        return [np.nan if row["train_loss"] is None else row["train_loss"] for row in self.run.history]


def personal_tensors(engine: Engine) -> list[Tensors]:
    """Copies of every client's personal tensors, wherever the engine keeps them."""

    def of(client: int) -> Tensors:
        if isinstance(engine, StoreEngine):
            return engine.store.get(client)
        assert isinstance(engine, MessageEngine)
        return MessageClient(engine.setup, client, engine.folder / f"client-{client}")._newest(1_000_000)

    return [{n: t.clone() for n, t in of(c).items()} for c in range(engine.setup.data.clients)]


@contextmanager
def engines_changed(change: Callable[[Engine], None]) -> Iterator[None]:
    """Inside, every engine that a run makes is handed to ``change`` first."""
    make = training.make_engine

    def changed(*args: Any, **kwargs: Any) -> Engine:
        engine = make(*args, **kwargs)
        change(engine)
        return engine

    with patch.object(training, "make_engine", changed):
        yield


SMALL: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 0.1, "engine": "serial", "workers": 2, "seed": 1}


def fitting(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for all methods without those that say nothing to this one, which it refuses."""
    return {name: value for name, value in settings.items() if name not in dict((registry | yardsticks)[method].unused)}


def train_whole(algorithm: str | Algorithm, data: FederatedDataset, **settings: Any) -> Whole:
    """``train`` with small defaults; also gives the personal tensors (after fine-tuning those of fine-tuning)."""
    found: list[tuple[list[Tensors], Tensors]] = []

    def record(engine: Engine) -> None:
        close = engine.close
        initial = {n: t.clone() for n, t in engine.setup.initial_personal.items()}

        def reading_close() -> None:
            found.append((personal_tensors(engine), initial))
            close()

        engine.close = reading_close  # type: ignore[method-assign]

    with engines_changed(record):
        usual = fitting(algorithm, SMALL) if isinstance(algorithm, str) and algorithm in registry else SMALL
        run = train(algorithm, data, **(usual | settings))
    # The engine of fine-tuning closes first; a run that was finished before makes none.
    return Whole(run, *(found[0] if found else ([], {})))


class Notes:
    """An observer that hears what a run says, and fails after a round."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after = stop_after
        self.said: list[str] = []

    def begin(self, setup: Any, engine: str, done: int) -> None:
        self.done = done

    def round(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self.stop_after:
            raise ValueError("the display broke")

    def note(self, text: str) -> None:
        self.said.append(text)

    def end(self) -> None: ...


def rows_without_time(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A run's rounds without what differs from run to run."""
    return [{k: v for k, v in row.items() if k not in FREE} for row in rows]


def as_numpy(tensors: Tensors) -> dict[str, Any]:
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}


def weights_of(model: nn.Module) -> dict[str, Any]:
    """A model's tensors as NumPy arrays, in float64."""
    return {name: value.astype(np.float64) for name, value in as_numpy(tensors_of(model)).items()}


def assert_tensors_close(got: Tensors, wanted: Any, tolerance: float) -> None:
    """Same names, and every value within an absolute tolerance."""
    assert set(got) == set(wanted)
    for name, value in got.items():
        other = wanted[name]
        other = other.detach().numpy() if isinstance(other, Tensor) else other
        np.testing.assert_allclose(value.numpy(), other, rtol=0, atol=tolerance, err_msg=name)


def assert_same_run(one: Whole, other: Whole, tolerance: float) -> None:
    """Shared tensors, every personal tensor, every round's loss and, in double precision, every client's test agree."""
    assert_tensors_close(one.run.shared, other.run.shared, tolerance)
    assert len(one.personal) == len(other.personal)
    for mine, theirs in zip(one.personal, other.personal, strict=True):
        assert_tensors_close(mine, theirs, tolerance)
    np.testing.assert_allclose(one.losses, other.losses, rtol=0, atol=max(tolerance, 1e-12) * 10)
    if tolerance <= 1e-8:  # in single precision a sample between two classes may be counted otherwise
        assert [_tested(row) for row in one.run.clients] == [_tested(row) for row in other.run.clients]


def _tested(row: Mapping[str, Any]) -> dict[str, Any]:
    """A client's accuracies."""
    return {name: value for name, value in row.items() if name.endswith("accuracy")}


# -- algorithms -----------------------------------------------------------------------------------------------------

A = TypeVar("A", bound=type[Algorithm])


def own(cls: A) -> A:
    """Name an algorithm defined by a test after its definition, so that it never enters the registry."""
    cls.name = cls.title = cls.__name__.lower()
    cls.source = "a test"
    return cls


def spoil(path: Path, content: bytes = b"half a fi") -> None:
    """Leave what a process killed in the middle of writing ``path`` leaves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.part").write_bytes(content)
