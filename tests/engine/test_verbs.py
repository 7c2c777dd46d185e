"""The verbs themselves, each against NumPy in every engine, by algorithms defined here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from commonground import FederatedDataset
from commonground.algorithms import Algorithm, Client, Output, Tensors
from commonground.errors import CommonGroundError
from tests.algorithms.reference import (
    ALL,
    BODY,
    HEAD,
    LR,
    SETTINGS,
    SIZES,
    Weights,
    gradient,
    mean,
    network,
    plan_batches,
    problem,
    samples,
    sgd,
    start,
)
from tests.helpers import (
    ENGINES,
    Whole,
    assert_same_run,
    assert_tensors_close,
    dropping_chain,
    fitting,
    own,
    seeded,
    train_whole,
)

pytestmark = pytest.mark.engine

MU, SHIFT, PULL = 0.4, 0.05, 0.1

Expected = Callable[[FederatedDataset, int], Weights]
"""What a client sends in the first round."""


@dataclass(frozen=True)
class Shared(Algorithm):
    """Everything is shared and averaged; what happens at a client is filled in below."""

    shared = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        self.work(client)
        return client.send("all")

    def work(self, client: Client) -> None:
        raise NotImplementedError


@own
class Proximal(Shared):
    """FedProx: μ/2 ‖w − w_received‖² is added to the loss."""

    def work(self, client: Client) -> None:
        def distance(now: Tensors, received: Tensors) -> Tensor:
            return 0.5 * MU * sum((((now[n] - received[n]) ** 2).sum() for n in received), torch.zeros(()))

        client.fit("all", epochs=2, penalty=distance)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        first, w = start(), start()
        velocity = {n: np.zeros_like(v) for n, v in w.items()}
        for x, y in plan_batches(data, client, 1, 1, epochs=2):
            g = gradient(w, x, y)
            for n in ALL:
                velocity[n] = 0.5 * velocity[n] + g[n] + MU * (w[n] - first[n])
                w[n] = w[n] - LR * velocity[n]
        return w


@own
class Corrected(Shared):
    """A constant is added to every gradient of the body, as SCAFFOLD adds its controls."""

    def work(self, client: Client) -> None:
        shift = {n: torch.full_like(v, SHIFT) for n, v in client.received.items() if n in BODY}
        client.fit("all", epochs=2, correction=shift)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        velocity = {n: np.zeros_like(v) for n, v in w.items()}
        for x, y in plan_batches(data, client, 1, 1, epochs=2):
            g = gradient(w, x, y)
            for n in ALL:
                velocity[n] = 0.5 * velocity[n] + g[n] + (SHIFT if n in BODY else 0.0)
                w[n] = w[n] - LR * velocity[n]
        return w


@own
class CorrectedHead(Shared):
    """A correction in the head phase, in which features are computed once."""

    def work(self, client: Client) -> None:
        shift = {n: torch.full_like(v, SHIFT) for n, v in client.get("head").items()}
        client.fit("head", epochs=2, momentum=0.0, correction=shift)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        for x, y in plan_batches(data, client, 1, 1, epochs=2):
            g = gradient(w, x, y)
            w |= {n: w[n] - LR * (g[n] + SHIFT) for n in HEAD}
        return w


@own
class FeatureLoss(Shared):
    """Cross-entropy plus the squared norm of what the head sees (FLUTE's λ1 term), first on the head, then on all."""

    def work(self, client: Client) -> None:
        def loss(out: Output, y: Tensor) -> Tensor:
            return F.cross_entropy(out.logits, y, reduction="none") + PULL * out.features.square().sum(1)

        client.fit("head", epochs=1, momentum=0.0, loss=loss)
        client.fit("all", epochs=2, momentum=0.0, loss=loss)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = sgd(start(), HEAD, plan_batches(data, client, 1, 1, epochs=1), momentum=0.0)
        for x, y in plan_batches(data, client, 1, 2, epochs=2):
            g = gradient(w, x, y)
            hidden = np.tanh(x @ w["fc.weight"].T + w["fc.bias"])
            back = PULL * 2 * hidden / len(y) * (1 - hidden**2)
            g["fc.weight"] = g["fc.weight"] + back.T @ x
            g["fc.bias"] = g["fc.bias"] + back.sum(0)
            w = {n: w[n] - LR * g[n] for n in ALL}
        return w


@own
class Steps(Shared):
    """Three steps, as Local SGD takes I."""

    def work(self, client: Client) -> None:
        client.fit("all", steps=3)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        batches = plan_batches(data, client, 1, 1, steps=3)
        assert len(batches) == 3
        return sgd(start(), ALL, batches)


@own
class HeadSteps(Shared):
    """Steps on the head: fewer than an epoch for one client, more for another."""

    def work(self, client: Client) -> None:
        client.fit("head", steps=1)
        client.fit("head", steps=3)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = sgd(start(), HEAD, plan_batches(data, client, 1, 1, steps=1))
        return sgd(w, HEAD, plan_batches(data, client, 1, 2, steps=3))


@own
class SomeSamples(Shared):
    """Six samples: 4 + 1 + 1, 3 + 3 and 4 + 2."""

    def work(self, client: Client) -> None:
        client.fit("all", samples=6)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        batches = plan_batches(data, client, 1, 1, samples=6)
        assert [len(y) for _, y in batches] == [[4, 1, 1], [3, 3], [4, 2]][client]
        return sgd(start(), ALL, batches)


@own
class Overrides(Shared):
    """Own rates, momentum, decay and batch size in one call; the run's in the next, whose momentum starts at zero."""

    def work(self, client: Client) -> None:
        client.fit("all", epochs=1, lr=0.05, momentum=0.9, weight_decay=0.2, batch_size=2)
        client.fit("all", epochs=1)
        client.fit("all", epochs=1, momentum=0.0)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        velocity = {n: np.zeros_like(v) for n, v in w.items()}
        for x, y in plan_batches(data, client, 1, 1, 2, epochs=1):
            g = gradient(w, x, y)
            for n in ALL:
                velocity[n] = 0.9 * velocity[n] + g[n] + 0.2 * w[n]
                w[n] = w[n] - 0.05 * velocity[n]
        w = sgd(w, ALL, plan_batches(data, client, 1, 2, epochs=1))
        return sgd(w, ALL, plan_batches(data, client, 1, 3, epochs=1), momentum=0.0)


@own
class ByHand(Shared):
    """SGD written with the lower verbs: what fit does without momentum."""

    def work(self, client: Client) -> None:
        for batch in client.batches(epochs=2):
            client.step(client.gradient("all", batch))

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        return sgd(start(), ALL, plan_batches(data, client, 1, 1, epochs=2), momentum=0.0)


@own
class Meta(Shared):
    """PerFedAvg, first order: the gradient at w − lr·g(w) moves w."""

    def work(self, client: Client) -> None:
        for batch in client.batches(epochs=1):
            g = client.gradient("all", batch)
            ahead = {n: v - 0.1 * g[n] for n, v in client.get("all").items()}
            client.step(client.gradient("all", batch, at=ahead), lr=0.2)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        for x, y in plan_batches(data, client, 1, 1, epochs=1):
            g = gradient(w, x, y)
            g = gradient({n: w[n] - 0.1 * g[n] for n in ALL}, x, y)
            w = {n: w[n] - 0.2 * g[n] for n in ALL}
        return w


@own
class Anchored(Shared):
    """Variance reduction: the gradient at the received weights is subtracted, their full gradient added."""

    def work(self, client: Client) -> None:
        full = client.gradient("all")
        for batch in client.batches(epochs=1):
            here = client.gradient("all", batch)
            there = client.gradient("all", batch, at=client.received)
            client.step({n: here[n] - there[n] + full[n] for n in here})

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        full = gradient(start(), *samples(data, client))
        for x, y in plan_batches(data, client, 1, 1, epochs=1):
            here, there = gradient(w, x, y), gradient(start(), x, y)
            w = {n: w[n] - LR * (here[n] - there[n] + full[n]) for n in ALL}
        return w


@own
class HeadAt(Shared):
    """The gradient of the head alone at another body."""

    def work(self, client: Client) -> None:
        other = {n: 0.5 * v for n, v in client.get("body").items()}
        client.step(client.gradient("head", at=other))

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        g = gradient(w | {n: 0.5 * w[n] for n in BODY}, *samples(data, client))
        return w | {n: w[n] - LR * g[n] for n in HEAD}


@own
class GetAndSet(Shared):
    """Weights are read, changed and put back in every step, by those who have a batch."""

    def work(self, client: Client) -> None:
        for _ in client.batches(epochs=2):
            client.set({n: 0.9 * v + 0.1 for n, v in client.get("head").items()})

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        for _ in plan_batches(data, client, 1, 1, epochs=2):
            w |= {n: 0.9 * w[n] + 0.1 for n in HEAD}
        return w


@own
class TwoStreams(Shared):
    """Two streams of batches side by side: one for the step ahead, one for the gradient there."""

    def work(self, client: Client) -> None:
        for one, other in zip(client.batches(epochs=1), client.batches(epochs=1), strict=True):
            g = client.gradient("all", one)
            ahead = {n: v - 0.1 * g[n] for n, v in client.get("all").items()}
            client.step(client.gradient("all", other, at=ahead))

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = start()
        streams = [plan_batches(data, client, 1, phase, epochs=1) for phase in (1, 2)]
        for one, other in zip(*streams, strict=True):
            g = gradient(w, *one)
            g = gradient({n: w[n] - 0.1 * g[n] for n in ALL}, *other)
            w = {n: w[n] - LR * g[n] for n in ALL}
        return w


@own
class BrokenOff(Shared):
    """A loop that is left early must not leave anybody behind as inactive."""

    def work(self, client: Client) -> None:
        for batch in client.batches(epochs=4):
            client.step(client.gradient("all", batch))
            break
        client.fit("all", epochs=1)

    @staticmethod
    def expected(data: FederatedDataset, client: int) -> Weights:
        w = sgd(start(), ALL, plan_batches(data, client, 1, 1, epochs=4)[:1], momentum=0.0)
        return sgd(w, ALL, plan_batches(data, client, 1, 2, epochs=1))


VERBS: list[Any] = [
    Proximal, Corrected, CorrectedHead, FeatureLoss, Steps, HeadSteps, SomeSamples, Overrides, ByHand, Meta, Anchored,
    HeadAt, GetAndSet, TwoStreams, BrokenOff,
]  # fmt: skip


def run(algorithm: Algorithm, engine: str, **settings: Any) -> Whole:
    return train_whole(algorithm, problem(), model=network(), **(SETTINGS | {"engine": engine} | settings))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_verb(verb: Any, engine: str) -> None:
    data = problem()
    wanted = mean([verb.expected(data, c) for c in range(len(SIZES))], [1.0] * len(SIZES))
    assert_tensors_close(run(verb(), engine).run.shared, wanted, 1e-12)


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_losses_are_the_same_in_every_engine(verb: Any) -> None:
    """The training loss of a round, too; clients that run out of batches first included."""
    runs = {engine: run(verb(), engine, rounds=2) for engine in ENGINES}
    for engine in ("processes", "messages"):
        assert runs[engine].sha == runs["serial"].sha
        np.testing.assert_array_equal(runs[engine].losses, runs["serial"].losses)
    assert_same_run(runs["serial"], runs["batched"], 1e-10)


@own
class ListFirst(Shared):
    """All batches of two epochs, taken before the first is used."""

    def work(self, client: Client) -> None:
        for batch in list(client.batches(epochs=2)):
            client.step(client.gradient("all", batch))


@own
class TwoBatchesAtOnce(Shared):
    """The batch before is used again after the present one."""

    def work(self, client: Client) -> None:
        kept = None
        for batch in client.batches(epochs=2):
            client.step(client.gradient("all", batch))
            if kept is not None:
                client.step(client.gradient("all", kept))
            kept = batch


@pytest.mark.parametrize("engine", ["serial", "processes", "messages"])
def test_a_batch_may_be_used_later(engine: str) -> None:
    data = problem()
    wanted = mean([ByHand.expected(data, c) for c in range(3)], [1.0] * 3)
    kept = train_whole(ListFirst(), data, model=network(), **(SETTINGS | {"engine": engine}))
    assert_tensors_close(kept.run.shared, wanted, 1e-12)


def test_two_batches_of_different_size_with_dropout() -> None:
    """Masks belong to a batch: one used again after a smaller one keeps its own."""
    runs = {
        engine: train_whole(
            TwoBatchesAtOnce(), problem(), model=seeded(dropping_chain), **(SETTINGS | {"engine": engine})
        )
        for engine in ("serial", "processes")
    }
    assert runs["serial"].sha == runs["processes"].sha


@own
class Wrong(Shared):
    """Asks for epochs and steps at once."""

    def work(self, client: Client) -> None:
        client.fit("all", epochs=1, steps=1)


@own
class NoSuchGroup(Shared):
    """Trains a group that the model does not have."""

    def work(self, client: Client) -> None:
        client.fit("tail")


@own
class Crash(Shared):
    """A fault in somebody's own algorithm."""

    def work(self, client: Client) -> None:
        raise ZeroDivisionError("in the algorithm")


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_calls_are_one_sentence(engine: str) -> None:
    with pytest.raises(CommonGroundError, match="exactly one of epochs, steps and samples"):
        run(Wrong(), engine)
    with pytest.raises(CommonGroundError, match="no group 'tail'; it has all, body, head, lower, upper"):
        run(NoSuchGroup(), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_in_an_algorithm_is_not_hidden(engine: str) -> None:
    says = r"failed: ZeroDivisionError in .*test_verbs\.py, line \d+: in the algorithm"
    with pytest.raises(CommonGroundError, match=says) as error:
        run(Crash(), engine)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", ["cosine", "halve:0.5", "exponential:0.5"])
def test_schedules_reach_the_clients(schedule: str, engine: str) -> None:
    """Two rounds of one full batch without momentum, each with its own rate."""
    rates = {"cosine": (LR, LR / 2), "halve:0.5": (LR, LR / 2), "exponential:0.5": (LR, LR / 2)}[schedule]
    data, w = problem(), start()
    for rate in rates:
        grads = [gradient(w, *samples(data, c)) for c in range(3)]
        w = {n: w[n] - rate * sum(g[n] for g in grads) / 3 for n in ALL}
    for algorithm in ("fedavg", "fedsgd"):
        settings = SETTINGS | {
            "rounds": 2,
            "lr_schedule": schedule,
            "momentum": 0.0,
            "batch_size": 8,
            "local_epochs": 1,
        }
        got = train_whole(algorithm, data, model=network(), engine=engine, **fitting(algorithm, settings))
        assert_tensors_close(got.run.shared, w, 1e-12)
        assert [row["lr"] for row in got.run.history] == pytest.approx(rates)
