"""Sweeps: every arm with every seed, rates chosen as asked, finished runs only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commonground import load_data
from commonground.engine import train
from commonground.errors import UpdateError
from commonground.papers.request import Request
from commonground.papers.sweep import RateChoice, SweepArm, sweep

SETTINGS: dict[str, Any] = {"rounds": 2, "batch_size": 32, "engine": "serial", "eval_every": 1}
TOO_LARGE = 1e30


def arm(name: str = "FedAvg", folder: str = "", **settings: Any) -> SweepArm:
    data = lambda seed: load_data("digits", 3, seed=seed)  # noqa: E731
    return SweepArm("3 clients", name, name.lower(), data, {**SETTINGS, **settings}, folder)


def request(folder: Path, **other: Any) -> Request:
    return Request(folder, quiet=True, **other)


def read(run: Any, data: Any) -> tuple[int, int, float]:
    return run.config.seed, data.clients, run.config.lr


def weights(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


def test_every_arm_with_every_seed(tmp_path: Path) -> None:
    arms = [arm(lr=0.1), arm("FedProx", "near", lr=0.05)]
    found = sweep(arms, [4, 5], request(tmp_path), read)
    assert list(found) == [("3 clients", "FedAvg"), ("3 clients", "FedProx")]
    assert found["3 clients", "FedAvg"].details == [(4, 3, 0.1), (5, 3, 0.1)]
    assert found["3 clients", "FedProx"].details == [(4, 3, 0.05), (5, 3, 0.05)]
    one = found["3 clients", "FedAvg"]
    assert (one.rate, one.scores) == (None, {})
    assert one.curves.shape == (2, 2)  # seeds, tested rounds
    assert one.accuracies.tolist() == [100 * result.accuracy for result in one.results]
    before = weights(tmp_path)
    assert set(before) == {
        f"runs/{place}/seed-{seed}/summary.json" for place in ("3-clients/fedavg", "near") for seed in (4, 5)
    }
    again = sweep(arms, [4, 5], request(tmp_path), read)
    assert again == found
    assert weights(tmp_path) == before  # read, not trained again


def test_the_rate_with_the_best_validation_accuracy(tmp_path: Path) -> None:
    notes: list[str] = []
    choice = RateChoice((TOO_LARGE, 1e-4, 0.3), tuning_seeds=2)
    found = sweep([arm()], [0, 1, 2], request(tmp_path), read, choice, notes)["3 clients", "FedAvg"]
    assert found.rate == 0.3
    assert found.scores[TOO_LARGE] is None
    assert (found.scores[0.3] or 0) > (found.scores[1e-4] or 1)
    assert [lr for _, _, lr in found.details] == [0.3] * 3
    assert notes == []
    tuned = sorted(path.relative_to(tmp_path / "runs" / "3-clients" / "fedavg").parts for path in
                   tmp_path.rglob("summary.json"))  # fmt: skip
    assert [parts[:-1] for parts in tuned if parts[0] == "tuning"] == [
        ("tuning", f"lr-{rate:g}", f"seed-{seed}") for rate in (0.0001, 0.3) for seed in (0, 1)
    ]
    assert sum(parts[0] == "lr-0.3" for parts in tuned) == 3


def test_best_on_test_trains_all_rates_and_takes_the_best_round(tmp_path: Path) -> None:
    choice = RateChoice((TOO_LARGE, 1e-4, 0.3), by="best-on-test")
    found = sweep([arm()], [0, 1], request(tmp_path), read, choice)["3 clients", "FedAvg"]
    assert (found.rate, found.best_on_test, found.scores[TOO_LARGE]) == (0.3, True, None)
    assert found.accuracies.tolist() == (100 * found.curves.max(axis=1)).tolist()
    assert len(list(tmp_path.rglob("summary.json"))) == 4


def test_the_next_best_rate_where_the_best_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(algorithm: Any, data: Any, **settings: Any) -> Any:
        if settings["seed"] == 1 and settings["lr"] == 0.3:
            raise UpdateError("not finite")
        return train(algorithm, data, **settings)

    monkeypatch.setattr("commonground.papers.sweep.train", diverging)
    notes: list[str] = []
    found = sweep([arm()], [0, 1], request(tmp_path), read, RateChoice((0.1, 0.3)), notes)["3 clients", "FedAvg"]
    assert found.rate == 0.1
    assert notes == [
        "FedAvg, 3 clients: the rate 0.3 chosen on validation data diverged with seed 1; the next best one was taken."
    ]


@pytest.mark.parametrize("by", ["validation", "best-on-test"])
def test_no_rate_is_left(by: Any, tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match="FedAvg, 3 clients: training diverged with every rate of the grid"):
        sweep([arm()], [0], request(tmp_path), read, RateChoice((TOO_LARGE, 2 * TOO_LARGE), by=by))
    with pytest.raises(UpdateError, match=r"FedAvg, 3 clients: training diverged with every seed .*finite"):
        sweep([arm(lr=TOO_LARGE)], [0, 1], request(tmp_path / "fixed"), read)


def test_without_a_choice_a_seed_that_diverges_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(algorithm: Any, data: Any, **settings: Any) -> Any:
        if settings["seed"] == 1:
            raise UpdateError("not finite")
        return train(algorithm, data, **settings)

    monkeypatch.setattr("commonground.papers.sweep.train", diverging)
    found = sweep([arm(lr=0.1)], [0, 1, 2], request(tmp_path), read)["3 clients", "FedAvg"]
    assert found.details == [(0, 3, 0.1), (2, 3, 0.1)]
    assert found.diverged == {1: "not finite"}
