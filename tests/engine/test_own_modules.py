"""Modules as users write them: tied weights, submodules used twice, statistics and counters of their own, hooks. They
train to the same numbers in every engine that takes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import load_run, train
from commonground.errors import ConfigError, ModelError
from commonground.models import Groups, tensors_of
from tests.helpers import EXACT, assert_same_run, assert_tensors_close, made_data, seeded, train_whole


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.c = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.c(torch.tanh(self.a(x)))))


class TiedHead(nn.Module):
    """A head whose weight is the first layer's, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Linear(4, 3, bias=False), nn.Linear(3, 4), nn.Linear(4, 3)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.embed(x)))))


class Untied(nn.Module):
    """What :class:`Tied` and :class:`Twice` compute, in plain tensors."""

    groups: Mapping[str, Sequence[str]] = {"head": ["head"]}

    def __init__(self, tied: nn.Module, names: Mapping[str, str]) -> None:
        super().__init__()
        state = tied.state_dict()
        self.names = dict(names)
        for part in {*names.values()}:
            self.register_parameter(part, nn.Parameter(state[part.replace("_", ".")].clone()))
        self.head = nn.Linear(4, 3)
        self.head.load_state_dict({n.removeprefix("head."): t for n, t in state.items() if n.startswith("head.")})

    def forward(self, x: Tensor) -> Tensor:
        for layer in "ab":
            weight, bias = (getattr(self, self.names[f"{layer}_{kind}"]) for kind in ("weight", "bias"))
            x = torch.tanh(nn.functional.linear(x, weight, bias))
        return self.head(x)


def shared_chain() -> nn.Sequential:
    layer, bend = nn.Linear(4, 4), nn.Tanh()
    return nn.Sequential(layer, bend, layer, bend, nn.Linear(4, 3))


TIED: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied, "twice": Twice, "tied head": TiedHead, "chain": shared_chain,
}  # fmt: skip
DOUBLE: dict[str, Any] = {"dtype": "float64", "rounds": 2}


@pytest.mark.engine
@pytest.mark.parametrize("kind", TIED)
@pytest.mark.parametrize("method", ["fedrep", "fedavg", "scaffold", "ditto", "fedper"])
def test_tied_modules_in_every_engine(method: str, kind: str) -> None:
    runs = {
        engine: train_whole(method, made_data(), model=seeded(TIED[kind]), engine=engine, **DOUBLE)
        for engine in ("serial", "batched", *EXACT)
    }
    for engine in EXACT:
        assert_same_run(runs[engine], runs["serial"], 0.0)
    assert_same_run(runs["batched"], runs["serial"], 1e-12)
    assert sum(t.numel() for t in runs["serial"].run.model(1).parameters()) == sum(
        t.numel() for t in TIED[kind]().parameters()
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("tied", {"a_weight": "a_weight", "b_weight": "a_weight", "a_bias": "a_bias", "b_bias": "b_bias"}),
        ("twice", {"a_weight": "a_weight", "b_weight": "a_weight", "a_bias": "a_bias", "b_bias": "a_bias"}),
    ],
)
def test_tied_tensors_train_as_the_one_tensor_that_they_are(kind: str, names: dict[str, str]) -> None:
    tied = seeded(TIED[kind])
    for method in ("fedrep", "fedavg"):
        got = train_whole(method, made_data(), model=tied, engine="serial", **DOUBLE)
        wanted = train_whole(method, made_data(), model=Untied(tied, names), engine="serial", **DOUBLE)
        renamed = {n.replace(".", "_", 1) if not n.startswith("head") else n: t for n, t in got.run.shared.items()}
        assert_tensors_close(renamed, wanted.run.shared, 1e-14)


def test_a_tied_tensor_has_one_group() -> None:
    model = TiedHead()
    assert list(tensors_of(model)) == ["embed.weight", "inner.weight", "inner.bias", "head.bias"]
    groups = Groups(model)
    assert groups.names("head") == ("embed.weight", "head.bias")
    assert groups.names("body") == ("inner.weight", "inner.bias")
    with pytest.raises(ModelError, match=r"'embed.weight' is both in "):
        Groups(model, {"body": ["embed", "inner"], "head": ["head"]})


def test_a_run_of_a_tied_module_is_kept_and_read(tmp_path: Path) -> None:
    model, x = seeded(Tied), made_data().x_test[:4]
    settings: dict[str, Any] = {"model": model, "rounds": 3, "engine": "serial"}
    whole = train("fedrep", made_data(), **settings)
    train("fedrep", made_data(), out=tmp_path, on_round=lambda row: row["round"] < 2, **settings)
    resumed = train("fedrep", made_data(), out=tmp_path, resume=True, **settings)
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
    loaded = load_run(tmp_path, model=Tied())
    np.testing.assert_array_equal(loaded.predict(x, 2), whole.predict(x, 2))
    kept = loaded.model(2)
    assert isinstance(kept, Tied)
    assert kept.a.weight is kept.b.weight


def test_an_activation_that_a_chain_uses_twice_is_used_twice() -> None:
    """The head's features are computed once per phase: from all layers before it."""
    bend = nn.Tanh()
    once = seeded(lambda: nn.Sequential(nn.Linear(4, 5), bend, nn.Linear(5, 6), bend, nn.Linear(6, 3)))
    twice = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)))
    for engine in ("serial", "batched"):
        got, wanted = (train_whole("fedrep", made_data(), model=m, engine=engine) for m in (once, twice))
        assert_same_run(got, wanted, 0.0)


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_hook_of_a_chain_is_part_of_it() -> None:
    chain = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    hooked, written = copy.deepcopy(chain), nn.Sequential(*copy.deepcopy(chain).children(), Halved())
    hooked.register_forward_hook(lambda module, inputs, out: out / 2)
    settings: dict[str, Any] = {"engine": "serial", "head": "2"}
    got, wanted = (train_whole("fedrep", made_data(), model=m, **settings) for m in (hooked, written))
    assert_same_run(got, wanted, 1e-6)


class Counting(nn.Module):
    """Statistics, a counter and a number of its own, changed in training.

    Args:
        anew: whether it puts new tensors in the place of the old ones.
    """

    mean: Tensor
    count: Tensor

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.first, self.head, self.anew = nn.Linear(4, 5), nn.Linear(5, 3), anew
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            self.calls += 1
            if self.anew:
                self.mean, self.count = mean, self.count + 1
            else:
                self.mean.copy_(mean)
                self.count.add_(1)
        return self.head(torch.tanh(h - self.mean / (1 + self.count + self.calls)))


@pytest.mark.engine
@pytest.mark.parametrize("method", ["fedrep", "fedavg", "perfedavg", "local"])
def test_statistics_of_a_users_own(method: str) -> None:
    """They travel with their group; counters belong to no client, and begin anew with each."""
    shas = {
        train_whole(method, made_data(), model=seeded(Counting, anew), engine=engine).sha
        for anew in (False, True)
        for engine in ("serial", *EXACT)
    }
    assert len(shas) == 1
    with pytest.raises(ConfigError, match=r"'batched' .* would change 'mean'"):
        train("fedavg", made_data(), model=seeded(Counting, True), engine="batched", rounds=1)


def test_a_clients_counter_does_not_reach_the_next_client() -> None:
    """A client trains alike whoever was trained before it."""
    alone = train_whole("local", made_data((6, 4)), model=seeded(Counting, False), rounds=1)
    data = made_data((6, 4))
    data = type(data).from_arrays(
        [
            (data.x_train[i], data.y_train[i], data.x_test[t], data.y_test[t])
            for i, t in [(data.train_indices(0), data.test_indices(0))]
        ],
        classes=3,
    )
    first = train_whole("local", data, model=seeded(Counting, False), rounds=1)
    assert_tensors_close(first.personal[0], alone.personal[0], 0.0)
    assert int(alone.run.model(1).get_buffer("count")) == 0


class Remembering(nn.Module):
    """Keeps what it last computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.tanh(self.first(x))
        return self.head(self.last)


class WithUnused(Remembering):
    """Has a layer that its forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


@pytest.mark.parametrize("kind", [Remembering, WithUnused])
@pytest.mark.parametrize("method", ["fedavg", "apfl", "perfedavg"])
def test_harmless_habits(method: str, kind: Any) -> None:
    settings = DOUBLE | {"weight_decay": 0.1}
    one, other = (
        train_whole(method, made_data(), model=seeded(kind), engine=e, **settings) for e in ("serial", "auto")
    )
    assert other.run.summary["engine"] == "batched"
    assert_same_run(one, other, 1e-10)
    other.run.predict(made_data().x_test[:2], 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_type_become_the_runs(dtype: torch.dtype) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))).to(dtype)
    run = train("fedrep", made_data(), model=model, engine="serial", rounds=1)
    assert {t.dtype for t in run.shared.values()} == {torch.float32}
    assert next(model.parameters()).dtype == dtype


def test_an_attribute_that_is_called_groups() -> None:
    model = seeded(nn.Sequential, nn.Linear(4, 3))
    vars(model)["groups"] = 4
    assert train("fedavg", made_data(), model=model, head="0", rounds=1, engine="serial").shared
