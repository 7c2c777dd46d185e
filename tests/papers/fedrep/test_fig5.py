"""FedRep's Figure 5 in miniature: what is trained, what is claimed, and seeds with which training diverges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import load_data, train
from commonground.data import limit_samples
from commonground.errors import ConfigError, NotFiniteError
from commonground.papers import experiments
from commonground.papers.experiment import Request
from commonground.papers.outcome import Outcome
from commonground.statistics import accuracy_interval

TINY: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "train_samples": 40,
    "test_samples": 20,
    "participation": 0.5,
    "rounds": 3,
    "batch_size": 8,
    "local_epochs": [1, 3],
    "head_epochs": [1, 3],
    "precision": "fp32",
}


def measured(folder: Path, seeds: int, **changed: Any) -> Outcome:
    return experiments["fedrep-fig5"].run(Request(folder, seeds=seeds, quiet=True, overrides={**TINY, **changed}))


def plain(method: str, seed: int, **settings: Any) -> tuple[float, list[float]]:
    data = load_data("digits", 4, classes_per_client=2, seed=seed)
    data = limit_samples(limit_samples(data, "train", 40, seed), "test", 20, seed)
    shared = {"rounds": 3, "batch_size": 8, "lr": 0.1, "participation": 0.5, "eval_last": 10, "seed": seed}
    run = train(method, data, **{**shared, **settings})
    which = "personal" if method == "fedrep" else "global"
    mean = run.summary["personal_accuracy"]["last10"] if method == "fedrep" else run.summary["global_accuracy_last10"]
    return mean, [client[f"{which}_accuracy"] for client in run.clients]


def test_points_and_claims_are_those_of_the_runs(tmp_path: Path) -> None:
    outcome = measured(tmp_path, 2)
    runs = {
        ("FedAvg", 1): [plain("fedavg", seed, local_epochs=1) for seed in (0, 1)],
        ("FedAvg", 3): [plain("fedavg", seed, local_epochs=3) for seed in (0, 1)],
        ("FedRep", 1): [plain("fedrep", seed, options={"head_epochs": 1}) for seed in (0, 1)],
        ("FedRep", 3): [plain("fedrep", seed, options={"head_epochs": 3}) for seed in (0, 1)],
    }
    lines = outcome.figures["accuracy by local epochs"].lines
    for (name, E), found in runs.items():
        at = list(lines[name].x).index(E)
        expected = accuracy_interval([mean for mean, _ in found], [np.array(each) for _, each in found])
        got = [float(band[at]) for band in (lines[name].mean, lines[name].low or [], lines[name].high or [])]
        assert got == pytest.approx(expected, abs=1e-12)
    first, second = outcome.claims
    assert first.claim == "FedRep with 3 head epochs is not below FedRep with 1"
    assert second.claim == "FedAvg does not gain from 3 local epochs over 1 (positive: 1 better)"
    for claim, (more, fewer) in ((first, (("FedRep", 3), ("FedRep", 1))), (second, (("FedAvg", 1), ("FedAvg", 3)))):
        gaps = [100 * (one[0] - other[0]) for one, other in zip(runs[more], runs[fewer], strict=True)]
        assert claim.measured == pytest.approx(np.mean(gaps), abs=1e-9)
        assert (claim.seeds, claim.holds) == (2, None)
    assert any("4 clients of 40 training images" in note and "50% of them" in note for note in outcome.notes)


def test_every_number_of_epochs_is_compared_with_the_one_before_and_with_the_first(tmp_path: Path) -> None:
    outcome = measured(tmp_path, 1, head_epochs=[1, 2, 4], local_epochs=[1, 2], rounds=1)
    assert [claim.claim.split(" (")[0] for claim in outcome.claims] == [
        "FedRep with 2 head epochs is not below FedRep with 1",
        "FedRep with 4 head epochs is not below FedRep with 2",
        "FedRep with 4 head epochs above FedRep with 1",
        "FedAvg does not gain from 2 local epochs over 1",
    ]


def test_what_diverges_is_told_and_left_out(tmp_path: Path) -> None:
    """A point with no seed left is no point of its line; the other method's claims stand."""
    outcome = measured(tmp_path, 2, lr=1e30)
    assert outcome.claims == []
    assert outcome.figures == {}
    assert [row["seeds"] for row in outcome.tables[0].rows] == [0, 0, 0, 0]
    assert "FedAvg with 3 local epochs diverged with seeds 0, 1, which are left out wherever it is compared." in (
        outcome.notes
    )


def test_a_seed_that_diverges_is_left_out_of_its_point_and_its_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trains(algorithm: str, data: Any, **settings: Any) -> Any:
        if (algorithm, settings.get("local_epochs"), settings["seed"]) == ("fedavg", 3, 1):
            raise NotFiniteError("training diverged")
        return train(algorithm, data, **settings)

    monkeypatch.setattr("commonground.papers.sweep.train", trains)
    outcome = measured(tmp_path, 3, rounds=1)
    assert [row["seeds"] for row in outcome.tables[0].rows] == [3, 3, 3, 2]
    assert [claim.seeds for claim in outcome.claims] == [3, 2]
    accuracy = {
        epochs: [plain("fedavg", seed, rounds=1, local_epochs=epochs)[0] for seed in (0, 2)] for epochs in (1, 3)
    }
    gap = 100 * (np.mean(accuracy[1]) - np.mean(accuracy[3]))
    assert outcome.claims[1].measured == pytest.approx(gap, abs=1e-9)
    assert "FedAvg with 3 local epochs diverged with seed 1, which is left out wherever it is compared." in (
        outcome.notes
    )


@pytest.mark.parametrize("epochs", [[1], [2, 1], [1, 1], [0, 1]])
def test_epochs_are_a_growing_list(epochs: list[int], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^local_epochs is \[.*\]; name at least two whole numbers from 1 on, growing"
    ):
        measured(tmp_path, 1, local_epochs=epochs)
    with pytest.raises(ConfigError, match=r"head_epochs is \["):
        measured(tmp_path, 1, head_epochs=epochs)
