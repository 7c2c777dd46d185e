"""``--dp example``: the noise is what the accountant assumes, one example moves what is sent by no more than it does,
and nothing leaves or stays with a client that was computed of its examples without noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from commonground import FederatedDataset
from commonground.algorithms import Client, Server, Tensors, registry
from commonground.algorithms.fedavg import FedAvg
from commonground.config import RunConfig
from commonground.engine.backends.batched import BatchedEngine
from commonground.engine.backends.serial import run_client
from commonground.engine.clients.batches import Length, TrainLength, batch_schedule
from commonground.engine.clients.optimizers import SequentialOptimizer, StackedOptimizer
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.prepare import prepare_setup
from commonground.engine.private.examples import Counting, passes_of
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError, ConfigError
from commonground.privacy import KeyedNoise, clipped_sums, noisy_means
from tests.helpers import TwoLayer, fitting, made_data, mlp_options, own, seeded

C, Z = 0.5, 2.0
PRIVATE: dict[str, Any] = {"dp": "example", "dp_clip": C, "dp_noise": Z, "dtype": "float64", "device": "cpu"}


class Silence(KeyedNoise):
    def normal(self, shape: Any, *key: Any) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.float64)


def made_setup(data: FederatedDataset, method: str = "fedavg", model: Any = None, **settings: Any) -> Setup:
    values = {"algorithm": method, "engine": "serial", "rounds": 2, **PRIVATE, **settings}
    if isinstance(model, str):
        values, model = values | {"model": model}, None
    loss = values.pop("loss", None)
    return prepare_setup(RunConfig.make(values), data, model, loss=loss)


def sent_by(setup: Setup, client: int = 0, noise: Any = None) -> Tensors:
    return run_client(
        SequentialClient(setup), 1, client, setup.initial_shared, setup.initial_personal, noise=noise
    ).update.tensors


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()])


# -- the formulas -----------------------------------------------------------------------------------------------------


def test_the_case_of_the_docstring() -> None:
    sums = clipped_sums({"a": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, torch.ones(2), 1.0)
    assert sums["a"].tolist() == pytest.approx([0.9, 1.2])
    drawn = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert noisy_means(sums, 0 * drawn, 2.0, [2])["a"].tolist() == pytest.approx([0.45, 0.6])
    assert noisy_means(sums, drawn, 2.0, [2])["a"].tolist() == pytest.approx([1.45, -0.4])


@pytest.mark.parametrize("huge", [1e-3, 1.0, 1e30, math.inf, math.nan])
def test_an_example_moves_the_sum_by_at_most_the_clip_norm(huge: float) -> None:
    """Over all tensors together, of one client and of a cohort, whatever its gradient is."""
    g = torch.Generator().manual_seed(0)
    gradients = {"w": torch.randn(6, 3, 2, generator=g), "b": torch.randn(6, generator=g)}
    gradients = {name: value.index_fill(0, torch.tensor([4]), huge) for name, value in gradients.items()}
    there, without = torch.ones(6), torch.ones(6).index_fill(0, torch.tensor([4]), 0)
    moved = flat(clipped_sums(gradients, there, C)) - flat(clipped_sums(gradients, without, C))
    length = float(moved.norm())
    assert length <= C * (1 + 1e-5)
    assert length == pytest.approx({1e-3: 1e-3 * math.sqrt(7), 1.0: C, 1e30: C}.get(huge, 0.0), rel=1e-4)
    cohort = clipped_sums({n: v.unflatten(0, (2, 3)) for n, v in gradients.items()}, there.view(2, 3), C)
    assert torch.allclose(flat(cohort).view(-1), flat({n: torch.stack(parts(n, gradients)) for n in gradients}))


def parts(name: str, gradients: Tensors) -> list[Tensor]:
    return [clipped_sums({n: v[i : i + 3] for n, v in gradients.items()}, torch.ones(3), C)[name] for i in (0, 3)]


# -- a client's steps -------------------------------------------------------------------------------------------------


def test_the_noise_of_a_thousand_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the standard deviation Z·C/B in every number, independent from step to step, around the mean of the cut."""
    seen = []

    def noted(self: Any, found: Tensors, lr: float, active: Any) -> None:
        seen.append(torch.stack([flat({n: v[c] for n, v in found.items()}) for c in range(20)]))

    monkeypatch.setattr(StackedOptimizer, "along", noted)
    rows = made_data((4,))
    data = FederatedDataset.from_arrays([(rows.x_train, rows.y_train, rows.x_test, rows.y_test)] * 20, classes=3)
    setup = made_setup(data, model=seeded(TwoLayer), local_steps=50, batch_size=4, engine="batched")
    BatchedEngine(setup).train(1, range(20), setup.initial_shared)
    steps = torch.cat(seen)
    assert steps.shape == (1000, 43)  # all of the same four examples, at the same weights
    std = Z * C / 4
    assert float(steps.var(0).mean()) == pytest.approx(std**2, rel=0.02)  # of 43,000 numbers
    assert float(steps.var(0).max()) < 1.3 * std**2
    assert float(steps.var(0).min()) > 0.75 * std**2
    drawn = steps - steps.mean(0)
    for apart in (1, 20):  # of two clients, and of two steps of one
        assert abs(float((drawn[apart:] * drawn[:-apart]).mean())) < 0.02 * std**2
    seen.clear()
    vars(setup)["noise"] = Silence(0)
    BatchedEngine(setup).train(1, range(20), setup.initial_shared)
    assert float((steps.mean(0) - seen[0][0]).abs().max()) < 5 * std / math.sqrt(1000)


def test_a_smaller_last_batch_has_no_more_noise_and_each_example_counts_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(SequentialOptimizer, "along", lambda self, found, lr, active: seen.append(flat(found).clone()))
    data = made_data((5, 5))
    sent_by(made_setup(data, model=seeded(TwoLayer), batch_size=4), noise=Silence(0))
    pieces = list(seen)
    seen.clear()
    sent_by(made_setup(data, model=seeded(TwoLayer), batch_size=5), noise=Silence(0))
    assert torch.allclose((pieces[0] + pieces[1]) * 4, seen[0] * 5)


def linear(output: Tensor, y: Tensor) -> Tensor:
    """A loss whose gradient does not depend on the weights."""
    return output.sum(1) * (1.0 + y)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddyn"])
def test_a_replaced_example_moves_what_is_sent_as_the_accountant_assumes(method: str) -> None:
    """By η·2C/B in each of P passes if the gradients point apart; noise of the same key does not differ."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 6, 4)), rng.integers(0, 3, (2, 6))
    other = x.copy()
    other[0, 3] = -100 * x[0, 3]
    moved = []
    for rows in (x, other):
        data = FederatedDataset.from_arrays([(r, c, r, c) for r, c in zip(rows, y, strict=True)], classes=3)
        model = seeded(lambda: nn.Sequential(nn.Linear(4, 3, bias=False)))
        keys = {"loss": linear, "lr": 0.1, "momentum": 0.0, "local_epochs": 3, "batch_size": 2}
        setup = made_setup(data, method, model, **keys)
        passes = passes_of(setup, range(1, 2))
        moved.append(flat(sent_by(setup)))
    distance = float((moved[0] - moved[1]).norm())
    assert passes.tolist() == [3, 3]
    most = 3 * 0.1 * 2 * C / 2
    assert distance <= most * (1 + 1e-9)
    if method == "fedavg":
        assert distance == pytest.approx(most)


# -- every method -----------------------------------------------------------------------------------------------------

REFUSED = {
    "apfl", "fedala", "fedcp", "fedproto", "fedrod", "fedsgd", "flute", "flute-star", "l2gd", "moon", "perfedavg",
    "pfedme",
}  # fmt: skip


def of_method(method: str, **settings: Any) -> Setup:
    common = {"local_steps": 2, "model": "mlp", "model_options": mlp_options(method, [6])}
    return made_setup(made_data(), method, **fitting(method, common | settings))


def test_who_is_refused() -> None:
    """A method that takes more of the examples than steps says so before it trains."""
    assert set(registry) > REFUSED
    for method in sorted(REFUSED):
        with pytest.raises(ConfigError, match="--dp example hides examples in the steps of training alone, and"):
            of_method(method, rounds=20)
    with pytest.raises(ConfigError, match="takes gradients of them as well; take another method"):
        made_setup(made_data(), "scaffold", options={"option": "I"})


@pytest.mark.parametrize("method", sorted(set(registry) - REFUSED - {"local"}))
def test_nothing_computed_of_examples_is_without_noise(method: str) -> None:
    """Two clients that differ in nothing but their noise send and keep nothing equal but what training left alone."""
    setup = of_method(method)
    server = Server(dict(setup.initial_shared), clients=4, seed=setup.config.seed)
    received = setup.initial_shared | setup.algorithm.message_to(server, 0)
    counting = Counting(setup)
    counting.begin(1, 0, 0, received, setup.initial_personal)
    untrained = setup.algorithm.client_update(counting, 1)
    alone = {**counting.state, **{n: counting.live[n].clone() for n in setup.personal_names}}
    one, other = (
        run_client(SequentialClient(setup), 1, 0, received, setup.initial_personal, noise=KeyedNoise(seed))
        for seed in (1, 2)
    )
    changed = 0
    for before, mine, theirs in (
        (untrained, one.update.tensors, other.update.tensors),
        (alone, one.personal, other.personal),
    ):
        assert mine is not None
        assert theirs is not None
        for name, value in mine.items():
            moved = (value != before[name]) & value.is_floating_point()
            changed += int(moved.sum())
            assert not (value == theirs[name])[moved].any(), name
    assert changed


@own
@dataclass(frozen=True)
class Peeking(FedAvg):
    """A user's method that sends what no step has hidden."""

    what: str = "features"

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        asked = getattr(client, self.what)
        return client.send({"secret": asked if isinstance(asked, Tensor) else next(iter(asked()))})


@pytest.mark.parametrize("what", ["features", "class_means", "class_counts", "batches"])
def test_a_method_of_ones_own_cannot_look_at_samples(what: str) -> None:
    config = RunConfig.make({"algorithm": "fedavg", **PRIVATE})
    with pytest.raises(CommonGroundError, match="--dp example hides examples in the steps of training alone"):
        prepare_setup(config, made_data(), seeded(TwoLayer), Peeking(what=what))


# -- what is counted --------------------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 23),
    batch=st.integers(1, 9),
    count=st.integers(0, 40),
    kind=st.sampled_from(["epochs", "steps", "samples"]),
)
def test_passes_are_the_uses_of_the_example_that_is_used_most(size: int, batch: int, count: int, kind: str) -> None:
    length: TrainLength = {"epochs": None, "steps": None, "samples": None, "batch_size": batch}
    length[kind] = count  # type: ignore[literal-required]
    order = batch_schedule(0, 1, 0, 1, size=size, **length).order
    uses = np.bincount(order[order >= 0], minlength=size).max(initial=0)
    assert Length(length, False).passes(size) == uses
    if kind == "steps":
        for start in range(5):
            on = batch_schedule(0, 1, 0, 1, size=size, start=start, **length).order
            assert Length(length, True).passes(size) >= np.bincount(on[on >= 0], minlength=size).max(initial=0)


def test_passes_of_a_run() -> None:
    data = made_data((5, 3, 8, 12))
    assert (
        passes_of(made_setup(data, "fedrep", seeded(TwoLayer), options={"head_epochs": 2}), range(1, 3)).tolist()
        == [6] * 4
    )
    steps = made_setup(data, model=seeded(TwoLayer), local_steps=3, batch_size=4)
    assert passes_of(steps, range(1, 3)).tolist() == [4, 6, 4, 2]  # 2, 1, 2 and 3 steps are a pass
    half = made_setup(data, model=seeded(TwoLayer), participation=0.5)
    assert sum(passes_of(half, range(1, 3))) == 4


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dp_clip": None}, r"--dp example needs --dp-clip, the largest L2 norm of an example's gradient"),
        ({"dp_noise": None}, r"--dp example needs --dp-noise, .* or --dp-epsilon, which finds it"),
        ({"dp_where": "client"}, r"--dp-where is a setting of --dp client; with --dp example every client adds noise"),
        ({"dp_adaptive_clip": 0.5}, r"--dp-adaptive-clip is a setting of --dp client"),
        ({"dp_delta": 0.1}, r"--dp-delta 0\.1 must be less than 1/17"),
        ({"dp_epsilon": 8.0}, r"--dp-noise 2 is not the noise of --dp-epsilon 8 in 2 passes over the data, which is"),
        ({"class_weights": "balanced"}, r"--class-weights balanced counts the examples of all clients without noise"),
        ({"feature_noise": 0.2}, r"--feature-noise 0\.2 lets one example enter all samples of another client"),
        ({"model_options": {"norm": "batch"}}, r"the BatchNorm layer 'norm1' lets it enter those of its whole batch"),
        ({"algorithm": "pooled"}, r"--dp example cannot make .* private: all rows are in one place"),
    ],
)  # fmt: skip
def test_settings_that_hide_nothing(settings: dict[str, Any], said: str) -> None:
    method = settings.get("algorithm", "fedavg")
    with pytest.raises(ConfigError, match=said):
        made_setup(made_data(), method, **{"model": "mlp", **{k: v for k, v in settings.items() if k != "algorithm"}})


class Remembering(nn.Module):
    """A model that keeps a mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        out: Tensor = self.head(x)
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(x.unsqueeze(-1))[0][:, -1])
        return out


@pytest.mark.parametrize(
    ("model", "said"),
    [(Remembering, "the model's forward changes 'seen'"), (Recurrent, "for the recurrent layer 'inner'")],
)
def test_models_without_gradients_of_one_example(model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made_setup(made_data(), model=seeded(model))
