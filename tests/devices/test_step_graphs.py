"""Steps recorded and replayed give what steps started one by one do. No GPU is needed: a recording is played by running
its function again on the tensors that it was recorded with, as a graph does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from commonground import Run, train
from commonground.algorithms import registry
from commonground.config import RunConfig
from commonground.engine.clients import step_graphs
from commonground.engine.clients.optimizers import Rates
from commonground.engine.clients.step_graphs import RecordedStep, StepGraphs, alike_steps
from commonground.engine.prepare import prepare_setup
from commonground.errors import ModelError
from commonground.models import MLP, ConvNet
from tests.helpers import TwoLayer, fitting, images, made_data, seeded, suited

ALGORITHMS = sorted(registry)


class Player:
    """A graph without a GPU: replayed, it computes its function again and writes into the same result."""

    def __init__(self, function: Callable[[], Tensor | None], result: Tensor | None) -> None:
        self._function, self._result = function, result

    def replay(self) -> None:
        made = self._function()
        if self._result is not None:
            assert made is not None
            self._result.copy_(made)


class Pretended(StepGraphs):
    """Records without a GPU. As there, nothing is computed meanwhile: what the function changes is put back."""

    def __init__(self, changed: Callable[[], list[Tensor]] = list) -> None:
        self.count, self._changed = 0, changed

    def record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        self.count += 1
        before = [value.clone() for value in self._changed()]
        result = function()
        for value, old in zip(self._changed(), before, strict=True):
            value.copy_(old)
        return Player(function, result), result


def test_a_step_is_computed_then_recorded_then_replayed() -> None:
    """Worked by hand: x ← x + a, giving 10x, for a = 1, 2, 3, 4 and x = 0 at first."""
    x, runs = torch.zeros(1), []

    def add(a: Tensor) -> Tensor:
        runs.append(1)
        x.add_(a)
        return 10 * x

    graphs = Pretended(lambda: [x])
    step = RecordedStep(add, graphs)
    given = [float(step(torch.tensor([a]))) for a in (1.0, 2.0, 3.0, 4.0)]
    assert given == [10.0, 30.0, 60.0, 100.0]
    assert graphs.count == 1


def test_other_arguments_have_a_recording_of_their_own() -> None:
    total = torch.zeros(())

    def add(value: Tensor | None, factor: float) -> None:
        total.add_(factor * (1.0 if value is None else value.sum()))

    graphs = Pretended(lambda: [total])
    step = RecordedStep(add, graphs)
    for _ in range(3):
        step(None, 1.0)
        step(torch.ones(2), 1.0)
        step(torch.ones(3), 1.0)
        step(torch.ones(3), 10.0)
    assert float(total) == 3 * (1 + 2 + 3 + 30)
    assert graphs.count == 4


def test_results_are_not_overwritten_by_later_steps() -> None:
    step = RecordedStep(lambda a: 2 * a, Pretended())
    given = [step(torch.tensor(float(a))) for a in range(5)]
    assert [float(one) for one in given] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("error", [RuntimeError, ModelError])
def test_what_cannot_be_recorded_is_computed(error: type[Exception]) -> None:
    class Refusing(Pretended):
        def record(self, function: Callable[[], Any]) -> Any:
            super().record(lambda: None)
            raise error("operation not permitted when stream is capturing")

    graphs = Refusing()
    step = RecordedStep(lambda a: a + 1, graphs)
    assert [int(step(torch.tensor(a))) for a in range(5)] == [1, 2, 3, 4, 5]
    assert graphs.count == 1


def test_too_little_memory_is_heard_of() -> None:
    class Full(Pretended):
        def record(self, function: Callable[[], Any]) -> Any:
            raise torch.OutOfMemoryError

    step = RecordedStep(lambda a: a + 1, Full())
    step(torch.zeros(1))
    with pytest.raises(torch.OutOfMemoryError):
        step(torch.zeros(1))


def test_only_many_steps_that_differ_in_tensors_are_recorded() -> None:
    sgd = Rates(lr=0.1, momentum=0.9, weight_decay=0.0)
    assert alike_steps(sgd, [0.1] * 4)
    assert not alike_steps(sgd, [0.1] * 3)
    assert not alike_steps(sgd, [0.1] * 4 + [0.05])
    adam = Rates(lr=0.1, momentum=0.9, weight_decay=0.0, optimizer="adam")  # its steps are counted in Python
    assert not alike_steps(adam, [0.1] * 4)


def test_code_of_others_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "StepGraphs", lambda device: "recorded")

    def found(model: torch.nn.Module, device: str = "cuda") -> Any:
        config = RunConfig.make({"algorithm": "fedavg", "model": "made", "rounds": 1})
        setup = prepare_setup(config, made_data((5, 3)), model)
        with monkeypatch.context() as patched:
            patched.setattr(type(setup), "device", torch.device(device))
            return step_graphs.step_graphs(setup)

    ours = seeded(MLP, (4,), 3, hidden=[6])
    assert found(ours) == "recorded"
    assert found(ours, "cpu") is None
    assert found(seeded(TwoLayer)) is None
    hooked = seeded(MLP, (4,), 3, hidden=[6])
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    assert found(hooked) is None


def _run(method: str, monkeypatch: pytest.MonkeyPatch, graphs: StepGraphs | None, kind: str) -> Run:
    monkeypatch.setattr("commonground.engine.clients.stacked.step_graphs", lambda setup: graphs)
    model: torch.nn.Module
    settings = fitting(method, {"batch_size": 3, "weight_decay": 1e-3, "local_epochs": 3})
    if kind == "chain":
        data, model = made_data((5, 3, 8, 2, 6)), suited(method, seeded(TwoLayer))
    else:
        data, settings["augment"] = images((7, 12, 4)), "flip-crop"
        net = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.3)
        model = suited(method, net, (2, 16, 16))
    return train(method, data, model=model, engine="batched", rounds=3, seed=1, dtype="float64", **settings)


@pytest.mark.parametrize("kind", ["chain", "convolutions"])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_method_is_the_same_bit_for_bit(method: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of one to four batches an epoch, whose last one is shorter."""

    class Playing(Pretended):
        """Here the function is not run while it is recorded: only its replay counts."""

        def record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
            self.count += 1
            return Player(function, None), function

    def replay(self: Any, leaves: list[Any]) -> Any:
        if self._inputs:
            torch._foreach_copy_(self._inputs, [leaves[place] for place in self._places])
        return self._result()

    monkeypatch.setattr(step_graphs._Recording, "replay", replay)
    graphs = Playing()
    plain, replayed = _run(method, monkeypatch, None, kind), _run(method, monkeypatch, graphs, kind)
    assert plain.summary["weights_sha256"] == replayed.summary["weights_sha256"]
    assert [row["train_loss"] for row in plain.history] == [row["train_loss"] for row in replayed.history]
    if method in ("fedrep", "fedavg", "flute", "ditto"):
        assert graphs.count >= 3
