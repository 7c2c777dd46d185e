"""SCAFFOLD by hand, in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commonground import train
from commonground.engine.loop import sample_clients
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    LR,
    SETTINGS,
    Weights,
    gradient,
    network,
    plan_batches,
    problem,
    samples,
    start,
)
from tests.helpers import ENGINES, Whole, assert_same_run, assert_tensors_close, dropping_chain, made_data, seeded
from tests.helpers import train_whole as whole

STEP = 0.7  # η_g
CLIENTS = 3


def by_hand(option: str, participants: list[list[int]]) -> tuple[Weights, Weights, list[Weights]]:
    """x, c and every c_i after as many rounds as there are lists of participants."""
    data, x = problem(), start()
    c = {n: np.zeros_like(x[n]) for n in ALL}
    own = [dict(c) for _ in range(CLIENTS)]
    for round, chosen in enumerate(participants, start=1):
        models, changes = [], []
        for i in chosen:
            y = dict(x)
            batches = plan_batches(data, i, round, 1, epochs=EPOCHS)
            for rows, labels in batches:
                g = gradient(y, rows, labels)
                y = {n: y[n] - LR * (g[n] - own[i][n] + c[n]) for n in ALL}  # no momentum
            if option == "I":
                new = gradient(x, *samples(data, i))
            else:
                new = {n: own[i][n] - c[n] + (x[n] - y[n]) / (len(batches) * LR) for n in ALL}
            models.append(y)
            changes.append({n: new[n] - own[i][n] for n in ALL})
            own[i] = new
        x = {n: x[n] + STEP * sum(y[n] - x[n] for y in models) / len(chosen) for n in ALL}
        c = {n: c[n] + sum(change[n] for change in changes) / CLIENTS for n in ALL}
    return x, c, own


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds_by_hand(engine: str, option: str, participation: float) -> None:
    settings: dict[str, Any] = SETTINGS | {"engine": engine, "rounds": 3, "participation": participation}
    got = whole("scaffold", problem(), model=network(), **settings, options={"option": option, "server_step": STEP})
    participants = [sample_clients(got.run.config, CLIENTS, r) for r in (1, 2, 3)]
    assert {len(p) for p in participants} == ({3} if participation == 1 else {2})
    x, c, own = by_hand(option, participants)
    assert_tensors_close(got.run.shared, x | {f"c/{n}": v for n, v in c.items()}, 1e-11)
    for mine, wanted in zip(got.personal, own, strict=True):
        assert_tensors_close(mine, {f"c_i/{n}": v for n, v in wanted.items()}, 1e-11)


def test_the_mean_of_the_clients_controls_is_the_servers() -> None:
    got = whole("scaffold", problem(), model=network(), **(SETTINGS | {"rounds": 4, "participation": 0.67}))
    for name in ALL:
        own = np.mean([mine[f"c_i/{name}"].numpy() for mine in got.personal], axis=0)
        np.testing.assert_allclose(own, got.run.shared[f"c/{name}"].numpy(), rtol=0, atol=1e-12)
        assert np.abs(own).max() > 1e-3


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree_with_dropout(engine: str) -> None:
    def run(engine: str) -> Whole:
        return whole("scaffold", made_data(), model=seeded(dropping_chain), engine=engine, dtype="float64")

    assert_same_run(run("serial"), run(engine), 1e-9 if engine == "batched" else 0.0)


def test_fine_tuning_after_it() -> None:
    one, other = (
        whole("scaffold", problem(), model=network(), **SETTINGS, engine=e, finetune_epochs=2)
        for e in ("serial", "batched")
    )
    assert_same_run(one, other, 1e-9)


def test_learns() -> None:
    run = train("scaffold", "digits", clients=20, classes_per_client=5, rounds=30, engine="batched", eval_every=30)
    assert run.personal_accuracy["mean"] > 0.5
