"""FedRep*: the schedule of Liu et al. 2024, §7.2."""

from __future__ import annotations

import pytest

from commonground import train
from tests.algorithms.reference import (
    BODY,
    EPOCHS,
    HEAD,
    SETTINGS,
    mean,
    network,
    part,
    plan_batches,
    problem,
    sgd,
    start,
)
from tests.helpers import ENGINES, assert_tensors_close, train_whole


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_by_hand(engine: str) -> None:
    """Ten epochs on the head under the old body, then the body's epochs under the new head."""
    data, own = problem(), []
    for c in range(3):
        w = sgd(start(), HEAD, plan_batches(data, c, 1, 1, epochs=10))
        own.append(sgd(w, BODY, plan_batches(data, c, 1, 2, epochs=EPOCHS)))
    got = train_whole("fedrep-star", data, model=network(), **(SETTINGS | {"engine": engine}))
    assert_tensors_close(got.run.shared, mean([part(w, BODY) for w in own], [1.0] * 3), 1e-12)
    for mine, wanted in zip(got.personal, own, strict=True):
        assert_tensors_close(mine, part(wanted, HEAD), 1e-12)


def test_learns() -> None:
    run = train("fedrep-star", "digits", clients=20, classes_per_client=5, rounds=10, eval_every=10, engine="batched")
    assert run.personal_accuracy["mean"] > 0.85
