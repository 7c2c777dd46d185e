"""FedBABU: a round and the fine-tuning before a test by hand (Oh et al. 2022, Algorithm 1), in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commonground import train
from commonground.algorithms.fedbabu import FedBABU
from commonground.errors import ModelError
from tests.algorithms.reference import (
    ALL,
    BODY,
    EPOCHS,
    HEAD,
    SETTINGS,
    loss,
    mean,
    network,
    part,
    plan_batches,
    problem,
    sgd,
    start,
)
from tests.helpers import ENGINES, EXACT, TwoLayer, assert_same_run, assert_tensors_close, seeded, train_whole


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tune", ["head", "all"])
def test_a_round_by_hand(tune: Any, engine: str) -> None:
    data, first = problem(), start()
    sent = [part(sgd(first, BODY, plan_batches(data, c, 1, 1, epochs=EPOCHS)), BODY) for c in range(3)]
    shared = mean(sent, [1.0] * 3) | part(first, HEAD)
    algorithm = FedBABU(tune_epochs=4, tune=tune)
    got = train_whole(algorithm, data, model=network(), **(SETTINGS | {"engine": engine}))
    assert_tensors_close(got.run.shared, shared, 1e-12)
    assert got.personal == [{}] * 3  # the tuning is for the test alone
    for c, row in enumerate(got.run.clients):
        index = data.test_indices(c)
        tuned = sgd(shared, HEAD if tune == "head" else ALL, plan_batches(data, c, 1, 1, epochs=4))
        assert row["test_loss"] == pytest.approx(loss(tuned, data.x_test[index], data.y_test[index]), abs=1e-12)


def test_two_accuracies() -> None:
    run = train("fedbabu", "digits", clients=20, classes_per_client=5, rounds=10, eval_every=10, engine="batched")
    assert run.personal_accuracy["mean"] > 0.55
    assert run.global_accuracy is not None
    assert 0.2 < run.global_accuracy < run.personal_accuracy["mean"]
    assert "local training" in run.summary["personal_accuracy_of"]


def test_the_same_everywhere() -> None:
    settings = SETTINGS | {"rounds": 2, "participation": 0.6}
    runs = {e: train_whole("fedbabu", problem(), model=seeded(TwoLayer), **(settings | {"engine": e})) for e in ENGINES}
    for engine in EXACT:
        assert runs[engine].sha == runs["serial"].sha
    assert_same_run(runs["serial"], runs["batched"], 1e-9)


def test_only_the_body_is_sent() -> None:
    run = train("fedbabu", problem(), model=network(), **SETTINGS)
    assert run.history[0]["bytes_up"] == 3 * 8 * 25
    np.testing.assert_array_equal(run.shared["head.weight"].numpy(), start()["head.weight"])


def test_a_model_without_a_body_is_refused() -> None:
    with pytest.raises(ModelError, match="FedBABU trains nothing but the body, which this model lacks"):
        train("fedbabu", "digits", clients=5, model="linear", rounds=1)
