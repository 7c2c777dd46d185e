"""One round of every algorithm against its paper's arithmetic in NumPy, in every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from commonground import FederatedDataset
from commonground.algorithms import registry
from commonground.algorithms.head_tuning import HeadTuning
from commonground.engine.loop import sample_clients
from tests.algorithms.reference import (
    ALL,
    BODY,
    EPOCHS,
    HEAD,
    LR,
    SETTINGS,
    SIZES,
    Weights,
    gradient,
    loss,
    mean,
    network,
    part,
    plan_batches,
    problem,
    samples,
    sgd,
    start,
)
from tests.helpers import ENGINES, Whole, assert_tensors_close, fitting, own, suited, train_whole

HEAD_EPOCHS = 3
TOLERANCE = 1e-12


@own
class HeadTuningNamed(HeadTuning):
    """The configuration of a run needs a name."""


Outcome = tuple[Weights, list[Weights]]
"""The server's tensors and every client's own."""


def local(data: FederatedDataset, weights: list[float]) -> Outcome:
    """Each client: epochs of SGD on everything, from the common start."""
    return {}, [sgd(start(), ALL, plan_batches(data, c, 1, 1, epochs=EPOCHS)) for c in range(3)]


def fedavg(data: FederatedDataset, weights: list[float]) -> Outcome:
    """As Local Only, then the mean of all."""
    return mean(local(data, weights)[1], weights), [{}, {}, {}]


def fedsgd(data: FederatedDataset, weights: list[float]) -> Outcome:
    """w − lr · mean of the clients' full gradients."""
    g = mean([gradient(start(), *samples(data, c)) for c in range(3)], weights)
    return {name: value - LR * g[name] for name, value in start().items()}, [{}, {}, {}]


def fedper(data: FederatedDataset, weights: list[float]) -> Outcome:
    """As Local Only; bodies are averaged, heads stay."""
    own = local(data, weights)[1]
    return mean([part(w, BODY) for w in own], weights), [part(w, HEAD) for w in own]


def lg_fedavg(data: FederatedDataset, weights: list[float]) -> Outcome:
    """As Local Only; the upper parts (here the head) are averaged, the lower ones stay."""
    own = local(data, weights)[1]
    return mean([part(w, HEAD) for w in own], weights), [part(w, BODY) for w in own]


def fedrep(data: FederatedDataset, weights: list[float]) -> Outcome:
    """τ_h epochs on the head with the old body, then τ_φ epochs on the body with the new head."""
    own = []
    for c in range(3):
        w = sgd(start(), HEAD, plan_batches(data, c, 1, 1, epochs=HEAD_EPOCHS))
        own.append(sgd(w, BODY, plan_batches(data, c, 1, 2, epochs=EPOCHS)))
    return mean([part(w, BODY) for w in own], weights), [part(w, HEAD) for w in own]


EXPECTED: dict[str, Callable[[FederatedDataset, list[float]], Outcome]] = {
    "local": local,
    "fedavg": fedavg,
    "fedsgd": fedsgd,
    "fedper": fedper,
    "lg-fedavg": lg_fedavg,
    "fedrep": fedrep,
}
OPTIONS: dict[str, Any] = {
    "fedrep": {"head_epochs": HEAD_EPOCHS}, "one-shot": {"halvings": ()}, "pfedme": {"strength": 2.0}
}  # fmt: skip


def run(algorithm: str, engine: str, **settings: Any) -> Whole:
    values = SETTINGS | {"engine": engine, "options": OPTIONS.get(algorithm, {})} | settings
    return train_whole(algorithm, problem(), model=network(), **fitting(algorithm, values))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", EXPECTED)
def test_one_round(algorithm: str, engine: str, weighting: str) -> None:
    weights = [1.0, 1.0, 1.0] if weighting == "uniform" else [float(n) for n in SIZES]
    shared, personal = EXPECTED[algorithm](problem(), weights)
    got = run(algorithm, engine, weighting=weighting)
    assert_tensors_close(got.run.shared, shared, TOLERANCE)
    for mine, wanted in zip(got.personal, personal, strict=True):
        assert_tensors_close(mine, wanted, TOLERANCE)


def test_the_arithmetic_can_tell_right_from_wrong() -> None:
    """The numbers move far more than the tolerance when an order, a weight or a momentum is another one."""
    data = problem()
    uniform, by_samples = [1.0, 1.0, 1.0], [float(n) for n in SIZES]
    right = fedrep(data, uniform)[0]["fc.weight"]
    other_weights = fedrep(data, by_samples)[0]["fc.weight"]
    swapped = []
    for c in range(3):
        w = sgd(start(), BODY, plan_batches(data, c, 1, 1, epochs=EPOCHS))
        swapped.append(part(w, BODY))
    body_first = mean(swapped, uniform)["fc.weight"]
    no_momentum = sgd(start(), ALL, plan_batches(data, 0, 1, 1, epochs=EPOCHS), momentum=0.0)["fc.weight"]
    with_momentum = sgd(start(), ALL, plan_batches(data, 0, 1, 1, epochs=EPOCHS))["fc.weight"]
    for one, other in ((right, other_weights), (right, body_first), (no_momentum, with_momentum)):
        assert np.abs(one - other).max() > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_fine_tuning_of_fedavg(engine: str) -> None:
    """+FT: epochs on the head of the final global model, its body fixed, at every client."""
    data = problem()
    final, _ = fedavg(data, [1.0, 1.0, 1.0])
    heads = [part(sgd(final, HEAD, plan_batches(data, c, 2, 1, epochs=4)), HEAD) for c in range(3)]
    got = run("fedavg", engine, finetune_epochs=4)
    assert_tensors_close(got.run.shared, part(final, BODY), TOLERANCE)
    for mine, wanted in zip(got.personal, heads, strict=True):
        assert_tensors_close(mine, wanted, TOLERANCE)


@pytest.mark.parametrize("engine", ENGINES)
def test_fine_tuning_of_all_layers(engine: str) -> None:
    """Epochs on the whole of the final global model at every client, which then has a model of its own."""
    data = problem()
    final, _ = fedavg(data, [1.0, 1.0, 1.0])
    models = [sgd(final, ALL, plan_batches(data, c, 2, 1, epochs=4)) for c in range(3)]
    got = run("fedavg", engine, finetune_epochs=4, finetune="all")
    assert got.run.shared == {}
    for mine, wanted in zip(got.personal, models, strict=True):
        assert_tensors_close(mine, wanted, TOLERANCE)
    assert got.run.summary["personal_accuracy_of"] == (
        "the final global model after 4 epochs on all its layers by each client"
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_head_tuning_alone(engine: str) -> None:
    """HeadTuning moves the heads only and sends nothing."""
    data = problem()
    got = train_whole(HeadTuningNamed(epochs=3), data, model=network(), **(SETTINGS | {"engine": engine}))
    assert got.run.summary["bytes_up"] == 0
    assert_tensors_close(got.run.shared, part(start(), BODY), TOLERANCE)
    for c in range(3):
        wanted = part(sgd(start(), HEAD, plan_batches(data, c, 1, 1, epochs=3)), HEAD)
        assert_tensors_close(got.personal[c], wanted, TOLERANCE)


@pytest.mark.parametrize("engine", ENGINES)
def test_second_round_goes_on_from_the_first(engine: str) -> None:
    """FedRep, two rounds: heads are kept, bodies replaced by the mean, momentum starts at zero again."""
    data = problem()
    shared, heads = fedrep(data, [1.0, 1.0, 1.0])
    own = []
    for c in range(3):
        w = sgd(shared | heads[c], HEAD, plan_batches(data, c, 2, 1, epochs=HEAD_EPOCHS))
        own.append(sgd(w, BODY, plan_batches(data, c, 2, 2, epochs=EPOCHS)))
    got = run("fedrep", engine, rounds=2)
    assert_tensors_close(got.run.shared, mean([part(w, BODY) for w in own], [1.0, 1.0, 1.0]), TOLERANCE)
    for mine, wanted in zip(got.personal, own, strict=True):
        assert_tensors_close(mine, part(wanted, HEAD), TOLERANCE)


@pytest.mark.parametrize("engine", ENGINES)
def test_train_loss_is_of_the_last_pass_before_each_step(engine: str) -> None:
    """Mean over the clients of the mean loss of the last epoch's samples, each taken before its step."""
    data = problem()
    each = []
    for c in range(3):
        batches = plan_batches(data, c, 1, 1, epochs=EPOCHS)
        per_epoch = len(batches) // EPOCHS
        total = 0.0
        for step in range(per_epoch, len(batches)):
            w = sgd(start(), ALL, batches[:step])
            total += loss(w, *batches[step]) * len(batches[step][1])
        each.append(total / SIZES[c])
    assert run("fedavg", engine).losses[0] == pytest.approx(np.mean(each), abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("decay", [0.1])
def test_weight_decay(engine: str, decay: float) -> None:
    """Weight decay adds decay · w to the gradient; here without momentum, one full batch per client and round."""
    data = problem()
    own = []
    for c in range(3):
        g = gradient(start(), *samples(data, c))
        own.append({name: w - LR * (g[name] + decay * w) for name, w in start().items()})
    got = run("local", engine, weight_decay=decay, momentum=0.0, batch_size=8, local_epochs=1)
    for mine, wanted in zip(got.personal, own, strict=True):
        assert_tensors_close(mine, wanted, TOLERANCE)
    got = run("fedrep", engine, weight_decay=decay, momentum=0.0, batch_size=8, local_epochs=0,
              options={"head_epochs": 1})  # fmt: skip
    for mine, wanted in zip(got.personal, own, strict=True):  # the written-out gradient of linear heads
        assert_tensors_close(mine, part(wanted, HEAD), TOLERANCE)


# -- partial participation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", sorted(registry))
def test_only_participants_change(algorithm: str, engine: str) -> None:
    """Clients that were not sampled keep the personal tensors they had, bit for bit."""
    data = problem((5, 3, 8, 2, 6))
    values = SETTINGS | {"engine": engine, "participation": 0.4, "options": OPTIONS.get(algorithm, {})}
    model = suited(algorithm, network())
    values = fitting(algorithm, values)
    runs = [train_whole(algorithm, data, model=model, **(values | {"rounds": t})) for t in (1, 2)]
    config = runs[0].run.config
    first, second = (set(sample_clients(config, 5, t)) for t in (1, 2))
    assert len(first) == len(second) == 2
    assert first != second, "the seed of this test is to be chosen so that the participants differ"
    before = runs[0].initial
    for c in range(5):
        one, two = runs[0].personal[c], runs[1].personal[c]
        if c not in first:
            assert_tensors_close(one, before, 0.0)
        elif one and not registry[algorithm].may_stay_silent:
            assert any(not torch.equal(v, before[n]) for n, v in one.items())
        if c not in second:
            assert_tensors_close(two, one, 0.0)
    assert [row["rounds"] for row in runs[1].run.clients] == [(c in first) + (c in second) for c in range(5)]


def test_the_mean_is_over_participants_alone() -> None:
    data = problem((5, 3, 8, 2, 6))
    got = train_whole("fedavg", data, model=network(), **(SETTINGS | {"participation": 0.4, "weighting": "samples"}))
    chosen = sample_clients(got.run.config, 5, 1)
    own = [sgd(start(), ALL, plan_batches(data, c, 1, 1, epochs=EPOCHS)) for c in chosen]
    wanted = mean(own, [float(data.train_sizes[c]) for c in chosen])
    assert_tensors_close(got.run.shared, wanted, TOLERANCE)
