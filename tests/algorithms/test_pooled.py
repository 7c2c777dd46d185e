"""The pooled yardstick: one model on the rows of all clients, and nothing that a federated method does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from commonground import FederatedDataset, compare, load_run, train
from commonground.algorithms import registry, yardsticks
from commonground.data import add_feature_noise
from commonground.engine.clients.batches import batch_schedule
from commonground.errors import ConfigError
from tests.algorithms.reference import BATCH, LR, MOMENTUM, SEED, SETTINGS, network, problem
from tests.helpers import ENGINES, assert_tensors_close, digits, images, normed, seeded


def by_torch(data: FederatedDataset, rounds: int, steps: int) -> dict[str, torch.Tensor]:
    """Plain SGD over all training rows, with the batches of one client that owns them all."""
    model = network().double()
    x, y = torch.from_numpy(data.x_train[data.train_index]), torch.from_numpy(data.y_train[data.train_index])
    for round in range(1, rounds + 1):
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)  # fresh in every round
        plan = batch_schedule(SEED, round, 0, 1, size=len(y), batch_size=BATCH, steps=steps)
        for order, count in zip(plan.order, plan.counts, strict=True):
            rows = torch.from_numpy(order[:count])
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_plain_training_on_all_rows(engine: str) -> None:
    """Clients of 5, 3 and 8 rows take 2 · (2 + 1 + 2) = 10 steps together in two epochs."""
    run = train("pooled", problem(), model=network(), engine=engine, **(SETTINGS | {"rounds": 2}))
    assert_tensors_close(run.shared, by_torch(problem(), 2, 10), 1e-12)
    half = train("pooled", problem(), model=network(), participation=0.67, **SETTINGS)  # two of three
    assert_tensors_close(half.shared, by_torch(problem(), 1, 7), 1e-12)  # 20/3
    own = SETTINGS | {"local_epochs": 1, "local_steps": 4}
    counted = train("pooled", problem(), model=network(), **own)
    assert_tensors_close(counted.shared, by_torch(problem(), 1, 12), 1e-12)
    more = train("pooled", problem(), model=network(), options={"steps": 7}, **SETTINGS)
    assert_tensors_close(more.shared, by_torch(problem(), 1, 7), 1e-12)


def test_it_is_tested_on_every_clients_own_rows() -> None:
    data = problem()
    run = train("pooled", data, model=network(), **(SETTINGS | {"rounds": 2}))
    assert len(run.clients) == data.clients
    for client, row in enumerate(run.clients):
        rows = data.test_indices(client)
        right = run.predict(data.x_test[rows], client=client).argmax(1) == data.y_test[rows]
        assert row["personal_accuracy"] == pytest.approx(right.mean())
    assert run.summary["bytes_up"] == run.summary["bytes_down"] == 0
    assert (
        "not federated: 10 steps of 4 rows in a round (as many as a round's clients take together)"
        in run.summary["personal_accuracy_of"]
    )


def test_every_row_has_its_own_clients_noise() -> None:
    """Noise is a client's own, also where its rows are trained on with others'."""
    data = add_feature_noise(images(), 0.5, 3)
    assert data.noise is not None
    others = data.noise.images.copy()
    others[1] = others[2]  # of one client among three
    changed = dataclasses.replace(data, noise=dataclasses.replace(data.noise, images=others))
    shas = {train("pooled", each, rounds=1, model="mlp", seed=1).summary["weights_sha256"] for each in (data, changed)}
    assert len(shas) == 2


def test_settings_of_training_hold_for_it_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 6, "seed": 1, "model": "mlp", "model_options": {"hidden": [8]}}
    plain = train("pooled", digits(), **settings)
    for more in (
        {"optimizer": "adamw"}, {"class_weights": "balanced"}, {"validation_fraction": 0.2, "early_stopping": 2},
        {"finetune_epochs": 2}, {"train_samples": 5},
    ):  # fmt: skip
        run = train("pooled", digits(), out=tmp_path / next(iter(more)), **settings, **more)
        assert run.summary["weights_sha256"] != plain.summary["weights_sha256"], more
        predicted = load_run(tmp_path / next(iter(more))).predict(digits().x_test[:3], client=1)
        np.testing.assert_array_equal(predicted, run.predict(digits().x_test[:3], client=1))


def test_beside_local_only_in_a_comparison(tmp_path: Path) -> None:
    comparison = compare(["fedavg", "pooled"], digits(), 1, tmp_path, rounds=2, model="linear")
    titles = [entry["title"] for entry in comparison.result["methods"]]
    assert titles == ["FedAvg", "Pooled (not federated)", "Local Only"]
    note = next(note for note in comparison.footnotes() if note.startswith("Pooled"))
    assert "which is not federated" in note
    assert "Pooled (not federated)" in (tmp_path / "report.html").read_text("utf-8")


def test_it_is_no_federated_method() -> None:
    assert "pooled" not in registry
    assert set(yardsticks) == {"pooled"}
    with pytest.raises(ConfigError, match="has one model, and --batch-norm local leaves each client statistics"):
        train("pooled", images(), model=seeded(normed), rounds=1, batch_norm="local")
