"""What a user's module draws in its ``forward`` follows from the run's seed, in every engine that can give each client
its own draws; the others refuse it. Global generators stay as the user left them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commonground import load_run, train
from commonground.adapt import adapt
from commonground.errors import ConfigError, ModelError
from tests.helpers import EXACT, made_data, rows_without_time, seeded, train_whole

OWN_NUMPY, OWN_TORCH, OWN_PYTHON = np.random.default_rng(), torch.Generator(), random.Random()

Draw = Callable[["Noisy", Tensor], Tensor]


class Noisy(nn.Module):
    """A network with something random between body and head."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.draw(self, torch.tanh(self.first(x))))


def training(draw: Draw) -> Draw:
    return lambda net, h: draw(net, h) if net.training else h


DRAWS: dict[str, Draw] = {
    "dropout": training(lambda net, h: F.dropout(h, 0.3)),
    "dropout in tests as well": lambda net, h: F.dropout(h, 0.3),
    "rand_like": lambda net, h: h + 0.1 * torch.rand_like(h),
    "randn": training(lambda net, h: h + 0.1 * torch.randn(6)),
    "bernoulli": training(lambda net, h: h * torch.bernoulli(torch.full_like(h, 0.5))),
    "randperm": training(lambda net, h: h[:, torch.randperm(6)]),
    "uniform_": training(lambda net, h: h + torch.empty_like(h).uniform_()),
    "rrelu": training(lambda net, h: F.rrelu(h, training=True)),
    "numpy": lambda net, h: h * float(np.random.rand()),  # noqa: NPY002 - the generator that users' modules draw from
    "python": training(lambda net, h: h * random.random()),
    "a generator of NumPy's": training(lambda net, h: h * float(OWN_NUMPY.random())),
    "a generator of PyTorch's": training(lambda net, h: h + torch.rand(6, generator=OWN_TORCH)),
    "a generator of Python's": training(lambda net, h: h * OWN_PYTHON.random()),
    "now and then": training(lambda net, h: F.dropout(h, 0.5) if float(h.detach()[0, 0]) > 0.5 else h),
}


def disturb() -> None:
    """What a user may have drawn before, never the same."""
    for one in (torch.random, np.random, random):
        one.seed()
    OWN_PYTHON.seed()
    OWN_TORCH.seed()


def states() -> list[Any]:
    _, key, place, *_ = np.random.get_state()  # noqa: NPY002 - as above
    found = [torch.get_rng_state().tolist(), np.asarray(key).tolist(), place, random.getstate()]
    return [*found, OWN_NUMPY.bit_generator.state, OWN_PYTHON.getstate()]


def run(draw: str, engine: str, method: str = "fedrep", **settings: Any) -> Any:
    disturb()
    before = states()
    whole = train_whole(method, made_data(), model=seeded(Noisy, DRAWS[draw]), engine=engine, rounds=2, **settings)
    assert states() == before  # the user's own draws go on as if nothing had been
    return whole


@pytest.mark.engine
@pytest.mark.parametrize("draw", DRAWS)
def test_draws_of_a_forward_are_keyed(draw: str) -> None:
    wanted = run(draw, "serial", metrics="full")
    assert run(draw, "serial", seed=2).sha != wanted.sha
    for engine in EXACT:
        got = run(draw, engine)
        assert got.sha == wanted.sha
        assert got.losses == wanted.losses
        assert got.run.personal == wanted.run.personal


def test_draws_differ_between_clients_rounds_and_steps() -> None:
    seen: list[Tensor] = []

    def remember(net: Noisy, h: Tensor) -> Tensor:
        if net.training:
            seen.append(torch.rand(2))
        return h

    data = made_data((8, 8))
    train("fedavg", data, model=seeded(Noisy, remember), engine="serial", rounds=2, batch_size=4, local_epochs=1)
    used = torch.stack(seen[2:])  # two are of the trial
    assert len(used) == 2 * 2 * 2
    assert len(used.unique(dim=0)) == len(used)


@pytest.mark.parametrize("method", ["perfedavg", "fedbabu", "ditto"])
def test_other_ways_of_training_and_testing(method: str) -> None:
    """Gradients asked for one by one, and training before a test that is forgotten."""
    one = run("dropout in tests as well", "serial", method)
    assert [run("dropout in tests as well", engine, method).sha for engine in EXACT] == [one.sha] * 2
    again = run("dropout in tests as well", "messages", method)
    assert rows_without_time(again.run.history) == rows_without_time(one.run.history)


def test_after_a_stop_the_draws_are_those_of_an_unbroken_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": seeded(Noisy, DRAWS["dropout in tests as well"]), "rounds": 4, "seed": 3}
    settings |= {"finetune_epochs": 2, "participation": 0.5, "batch_size": 4}
    whole = train("fedavg", made_data(), engine="serial", **settings)
    for engine in ("serial", *EXACT):
        folder = tmp_path / engine
        disturb()
        train("fedavg", made_data(), engine=engine, out=folder, on_round=lambda row: row["round"] < 2, **settings)
        disturb()
        resumed = train("fedavg", made_data(), engine=engine, out=folder, resume=True, **settings)
        assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
        assert resumed.personal == whole.personal
    x = made_data().x_test[:4]
    loaded = load_run(tmp_path / "serial", model=seeded(Noisy, DRAWS["dropout in tests as well"], seed=9))
    first = whole.predict(x, 1)
    disturb()
    np.testing.assert_array_equal(loaded.predict(x, 1), first)
    np.testing.assert_array_equal(whole.predict(x, 1), first)
    assert not np.array_equal(whole.predict(x, 2), first)


def test_new_clients_are_served_with_keyed_draws(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, classes)\n"
        "    def forward(self, x):\n"
        "        return self.head(nn.functional.dropout(torch.tanh(self.first(x)), 0.3))\n"
    )
    done = train("fedrep", made_data(), model=f"{file}:Net", rounds=1, engine="serial")
    results = []
    for _ in range(2):
        disturb()
        results.append([r.to_dict() for r in adapt(done, made_data(seed=1), [1], epochs=2, repeats=1)])
    assert results[0] == results[1]


@pytest.mark.parametrize("draw", ["dropout", "dropout in tests as well", "numpy", "a generator of PyTorch's"])
def test_stacked_clients_cannot_have_their_own_draws(draw: str) -> None:
    with pytest.raises(ConfigError, match=r"'batched' .* cannot give each the draws .* --engine processes or serial"):
        run(draw, "batched")
    assert run(draw, "auto").run.summary["engine"] == "processes"


def test_draws_that_no_trial_has_seen_are_refused_when_stacked() -> None:
    def late(net: Noisy, h: Tensor) -> Tensor:
        calls.append(0)
        return h * float(np.random.rand()) if len(calls) > 60 else h  # noqa: NPY002 - as above

    calls: list[int] = []
    with pytest.raises(ConfigError, match="'batched' cannot give to each client"):
        train("local", made_data((20, 20)), model=seeded(Noisy, late), engine="batched", rounds=30, eval_every=30)


@pytest.mark.parametrize(
    "draw",
    [
        lambda net, h: h * float(np.random.default_rng().random()),
        training(lambda net, h: h * random.SystemRandom().random()),
    ],
)
def test_what_no_seed_keys_is_refused(draw: Draw) -> None:
    with pytest.raises(ModelError, match=r"gives other outputs when it is asked the same again .* no seed keys"):
        train("fedavg", made_data(), model=seeded(Noisy, draw), engine="serial", rounds=1)


class Counting(nn.Module):
    """Counts its calls, in training or in evaluation as well."""

    def __init__(self, training_only: bool) -> None:
        super().__init__()
        self.head, self.calls, self.training_only = nn.Linear(4, 3), 0, training_only

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training or not self.training_only
        return self.head(x) * (1 + 0.001 * self.calls)


def test_a_test_may_not_depend_on_what_a_forward_counts() -> None:
    """In training it may: the count begins anew with every client and round."""
    train("fedavg", made_data(), model=Counting(True), engine="serial", rounds=1)
    with pytest.raises(ModelError, match=r"same seed: it draws .* or depends on what its forward changes, which tests"):
        train("fedavg", made_data(), model=Counting(False), engine="serial", rounds=1)


class OneDropout(nn.Module):
    """One dropout layer in two places of different width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.drop = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.first(self.drop(x)))))


def test_a_dropout_layer_that_is_used_twice_draws_twice() -> None:
    runs = {e: train_whole("fedrep", made_data(), model=seeded(OneDropout), engine=e) for e in ("serial", *EXACT)}
    assert len({whole.sha for whole in runs.values()}) == 1
    with pytest.raises(ConfigError, match="cannot give each the draws"):
        train_whole("fedrep", made_data(), model=seeded(OneDropout), engine="batched")


def test_a_file_that_draws_when_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import numpy as np\nimport random\nimport torch\nfrom torch import nn\n"
        "FIXED = torch.randn(4, 4) * np.random.rand() * random.random()\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__(nn.Linear(4, classes))\n"
        "        with torch.no_grad():\n"
        "            self[0].weight.mul_(np.random.rand())\n"
        "    def forward(self, x):\n"
        "        return super().forward(x @ FIXED)\n"
    )
    shas = set()
    for _ in range(2):
        disturb()
        done = train("fedavg", made_data(), model=f"{file}:Net", head="0", rounds=1, engine="serial")
        shas.add(done.summary["weights_sha256"])
    assert len(shas) == 1
