"""Local SGD, Parallel SGD and one-shot averaging by hand, against centralised SGD and against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commonground import FederatedDataset, train
from commonground.engine.clients.base import LocalTraining
from commonground.engine.clients.batches import batch_schedule
from commonground.errors import ConfigError, Interrupted
from tests.algorithms.reference import ALL, LR, SEED, mean, network, samples, sgd, start
from tests.algorithms.reference import SETTINGS as COMMON
from tests.helpers import ENGINES, assert_tensors_close, made_data, train_whole

TOLERANCE = 1e-12
METHODS = ("local-sgd", "parallel-sgd", "one-shot")

# These methods have no momentum by default, and count steps.
SETTINGS = {name: value for name, value in COMMON.items() if name not in ("momentum", "local_epochs")}


class TwoNumbers(nn.Module):
    """Logits (0, a·x + b): the only parameters are a and b."""

    groups: Mapping[str, Sequence[str]] = {"head": ["b"], "body": ["a"]}

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(-0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.a * x[:, 0] + self.b
        return torch.stack([torch.zeros_like(z), z], 1)


def one_sample_each() -> FederatedDataset:
    """Client 0 has (x, y) = (2, 1), client 1 has (−1, 1): one sample each, so that every batch is known."""
    return FederatedDataset.from_arrays(
        [(np.array([[x]]), [1], np.array([[x]]), [1]) for x in (2.0, -1.0)], name="two", classes=2
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_three_steps_by_hand(engine: str) -> None:
    # d loss / dz = σ(z) − 1 for y = 1; a and b move by −lr times that, times x and times 1; lr halves after step 1.5.
    ends = []
    for x in (2.0, -1.0):
        a, b = 0.5, -0.25
        for lr in (0.4, 0.4, 0.2):  # done = 0, 1/3, 2/3: one halving, at 1/2
            slope = 1 / (1 + np.exp(-(a * x + b))) - 1
            a, b = a - lr * slope * x, b - lr * slope
        ends.append((a, b))
    run = train(
        "local-sgd",
        one_sample_each(),
        model=TwoNumbers(),
        options={"steps": 3},
        rounds=1,
        lr=0.4,
        dtype="float64",
        engine=engine,
    )
    a, b = np.mean(ends, axis=0)
    assert float(run.shared["a"]) == pytest.approx(a, abs=1e-14)
    assert float(run.shared["b"]) == pytest.approx(b, abs=1e-14)


def ordered(data: FederatedDataset, client: int, first: int, steps: int, batch: int) -> list[tuple[Any, Any]]:
    """A client's batches from step ``first`` of its unending order on."""
    x, y = samples(data, client)
    plan = batch_schedule(SEED, 99, client, 7, size=len(y), batch_size=batch, steps=steps, start=first)
    return [(x[o[:n]], y[o[:n]]) for o, n in zip(plan.order, plan.counts, strict=True)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [None, 0.0, 0.5])
def test_rounds_continue_each_others_data_and_schedule(engine: str, momentum: float | None) -> None:
    data = made_data((5, 3, 8))
    interval, total = 3, 7  # the last of three rounds has one step
    w = start()
    for first in (0, 3, 6):
        steps = min(interval, total - first)
        own = []
        for client in range(3):
            mine, velocity = dict(w), {n: np.zeros_like(v) for n, v in w.items()}
            for step, batch in enumerate(ordered(data, client, first, steps, 4), first):
                before = mine
                moved = sgd(mine, ALL, [batch], 1.0, 0.0)
                velocity = {n: (momentum or 0.0) * velocity[n] + (before[n] - moved[n]) for n in mine}
                rate = LR * 0.5 ** ((step / total >= 0.5) + (step / total >= 0.75))
                mine = {n: before[n] - rate * velocity[n] for n in mine}
            own.append(mine)
        w = mean(own, [1.0, 1.0, 1.0])
    options = {"steps": interval, "total_steps": total}
    given = {} if momentum is None else {"momentum": momentum}
    got = train_whole(
        "local-sgd", data, model=network(), **SETTINGS | given | {"engine": engine, "rounds": 3, "options": options}
    )
    assert got.run.config.momentum == (momentum or 0.0)
    assert_tensors_close(got.run.shared, w, TOLERANCE)
    # Steps 0, 3 and 6 of 7 begin the rounds: the last one stands behind both halvings.
    assert [row["lr"] for row in got.run.history] == [LR, LR, LR / 4]


def test_an_order_goes_on_over_epochs() -> None:
    whole = batch_schedule(1, 1, 0, 1, size=10, batch_size=4, steps=9, start=0)
    pieces = [batch_schedule(1, r, 0, r, size=10, batch_size=4, steps=n, start=s) for r, s, n in ((1, 0, 4), (2, 4, 5))]
    np.testing.assert_array_equal(np.concatenate([p.order for p in pieces]), whole.order)
    for epoch in np.split(whole.order, 3):
        assert sorted(epoch[epoch >= 0]) == list(range(10))
    assert not np.array_equal(whole.order[:3], whole.order[3:6])
    with pytest.raises(ConfigError, match="needs a number of steps"):
        batch_schedule(1, 1, 0, 1, size=10, batch_size=4, epochs=1, start=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_parallel_sgd_is_centralised_sgd_on_the_union_batch(engine: str) -> None:
    data = made_data((8, 8, 8, 8))
    batches = [ordered(data, client, 0, 6, 4) for client in range(4)]
    union = [tuple(np.concatenate([b[t][i] for b in batches]) for i in (0, 1)) for t in range(6)]
    w = start()
    for t, (x, y) in enumerate(union):
        w = sgd(w, ALL, [(x, y)], LR * 0.5 ** ((t / 6 >= 0.5) + (t / 6 >= 0.75)), 0.0)
    got = train_whole("parallel-sgd", data, model=network(), **SETTINGS | {"engine": engine, "rounds": 6})
    assert_tensors_close(got.run.shared, w, TOLERANCE)


def test_one_shot_is_local_sgd_with_one_interval() -> None:
    data = made_data((5, 3, 8))
    whole = train_whole("local-sgd", data, model=network(), **SETTINGS | {"options": {"steps": 12}})
    parts = train_whole("one-shot", data, model=network(), **SETTINGS | {"rounds": 4, "options": {"steps": 3}})
    assert_tensors_close(parts.run.shared, {n: v.numpy() for n, v in whole.run.shared.items()}, TOLERANCE)
    up = [row["bytes_up"] for row in parts.run.history]
    assert up == [0, 0, 0, whole.run.history[0]["bytes_up"]]
    until = [row["global_accuracy"] for row in parts.run.history]
    assert until[0] == until[1] == until[2]


def test_parallel_sgd_is_local_sgd_with_interval_one() -> None:
    data = made_data((5, 3, 8))
    one = train_whole("local-sgd", data, model=network(), **SETTINGS | {"rounds": 5, "options": {"steps": 1}})
    other = train_whole("parallel-sgd", data, model=network(), **SETTINGS | {"rounds": 5})
    assert one.sha == other.sha


@pytest.mark.parametrize("method", METHODS)
def test_engines_agree_and_partial_participation_works(method: str) -> None:
    data = made_data((5, 3, 8, 6))
    values = SETTINGS | {"rounds": 6, "participation": 0.5}
    serial, *others = (train_whole(method, data, model=network(), **values | {"engine": e}) for e in ENGINES)
    for engine, other in zip(ENGINES[1:], others, strict=True):
        assert_tensors_close(other.run.shared, {n: v.numpy() for n, v in serial.run.shared.items()}, 1e-11)
        assert (other.sha == serial.sha) is (engine != "batched")


def test_the_interval_is_the_runs_local_steps_where_none_is_given() -> None:
    data = made_data((5, 3, 8))
    values = SETTINGS | {"rounds": 2}
    one = train_whole("local-sgd", data, model=network(), **values | {"local_steps": 5})
    other = train_whole("local-sgd", data, model=network(), **values | {"options": {"steps": 5}})
    assert one.sha == other.sha


@pytest.mark.parametrize("at", [1, 700, 1500])
def test_resumed_in_the_middle_of_a_long_round(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made_data((5, 3))
    values = SETTINGS | {"rounds": 3, "options": {"steps": 1024}, "engine": "serial"}
    whole = train_whole("local-sgd", data, model=network(), **values)
    # The second client's round 2 breaks off: after that many of the optimiser's steps.
    count, own = 0, torch.optim.SGD.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2048 + at:
            raise KeyboardInterrupt
        return own(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train_whole("local-sgd", data, model=network(), out=tmp_path / "run", **values)
    monkeypatch.setattr(torch.optim.SGD, "step", own)
    again = train_whole("local-sgd", data, model=network(), out=tmp_path / "run", resume=True, **values)
    assert again.sha == whole.sha


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("local-sgd", {"options": {"steps": 3, "total_steps": 10}, "rounds": 3}, r"--rounds 4 does"),
        ("parallel-sgd", {"options": {"total_steps": 10}, "rounds": 3}, r"3 rounds of 1 steps .* --rounds 10 does"),
        ("parallel-sgd", {"options": {"steps": 2}}, "'steps' is 2: input should be 1"),
        ("local-sgd", {"options": {"steps": 0}}, "'steps' is 0"),
        ("local-sgd", {"options": {"halvings": [1.5]}}, "halvings"),
        ("one-shot", {"momentum": 1.0}, "'momentum' is 1.0"),
        ("local-sgd", {"options": {"steps": 5}, "local_steps": 3}, "steps=5 and --local-steps 3 are both I"),
    ],
)
def test_bad_settings(method: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        train(method, made_data((5, 3)), model="linear", **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("algorithm", "rounds"), [("local-sgd", 8), ("one-shot", 1), ("parallel-sgd", 4)])
def test_fine_tuning_goes_on_at_the_rate_of_the_last_step(
    algorithm: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does after a ``--lr-schedule``; the halvings are a schedule, too."""
    seen: list[tuple[str, float]] = []
    fit = LocalTraining.fit

    def watched(self: LocalTraining, group: Any, **given: Any) -> None:
        seen.append((group, given["lr"][-1] if "lr" in given else self.lr))
        fit(self, group, **given)

    monkeypatch.setattr(LocalTraining, "fit", watched)
    train(algorithm, made_data(), model="mlp", rounds=rounds, lr=0.4, finetune_epochs=1, engine="serial")
    assert seen[-1][0] == "head"
    assert seen[-1][1] == seen[-2][1] == pytest.approx(0.1)
