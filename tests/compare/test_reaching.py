"""What it costs to reach a target: which rounds count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from commonground.compare import compare
from commonground.compare.reaching import what_it_costs
from commonground.errors import ConfigError
from commonground.tasks import CLASSIFICATION, Headline, Target

ACCURACY = Headline.of(CLASSIFICATION)


def a_run(personal: list[float], final: float, shared: list[float] | None = None, tuned: int = 0, kept: int = 0) -> Any:
    """Of rounds that each send ten bytes in a second."""
    rows = [
        {"round": n, "personal_accuracy": own, "global_accuracy": whole, "bytes_up": 6, "bytes_down": 4, "seconds": 1.0}
        for n, (own, whole) in enumerate(zip(personal, shared or personal, strict=True), 1)
    ]
    sent = {"bytes_up": 6 * len(rows), "bytes_down": 4 * len(rows), "seconds": float(len(rows)), "rounds": len(rows)}
    early = {"early_stopping": {"best_round": kept}} if kept else {}
    summary = {"personal_accuracy": {"mean": final}, **sent, **early}
    return SimpleNamespace(history=rows, summary=summary, config=SimpleNamespace(finetune_epochs=tuned))


def test_up_to_the_first_round_that_does() -> None:
    target = Target(ACCURACY, 0.8)
    found = what_it_costs(target, [a_run([0.5, 0.9, 0.7], 0.7), a_run([0.8, 0.1, 0.1], 0.1), a_run([0.1], 0.1)])
    assert found == {"target": 0.8, "bytes": 15.0, "seconds": 1.5, "rounds": 1.5, "reached": 2}
    assert what_it_costs(target, [a_run([0.1], 0.1)]) is None


def test_of_what_is_tuned_at_the_end_the_global_models() -> None:
    """Fine-tuning takes the global model and puts a client's own of the rounds before aside."""
    run = a_run([0.2, 0.4, 0.6], 0.9, shared=[0.4, 0.8, 0.8], tuned=1)
    found = what_it_costs(Target(ACCURACY, 0.6), [run])
    assert found is not None
    assert (found["rounds"], found["bytes"]) == (2, 20)
    found = what_it_costs(Target(ACCURACY, 0.85), [run])  # only by fine-tuning
    assert found is not None
    assert (found["rounds"], found["bytes"]) == (3, 30)


def test_not_by_a_round_after_the_one_that_is_kept() -> None:
    run = a_run([0.5, 0.7, 0.75, 0.82, 0.7], 0.75, kept=3)
    assert what_it_costs(Target(ACCURACY, 0.8), [run]) is None
    found = what_it_costs(Target(ACCURACY, 0.7), [run])
    assert found is not None
    assert found["rounds"] == 2


def test_the_last_bits_of_a_mean_do_not_matter() -> None:
    mean = (0.4 + 1.0 + 1.0) / 3
    assert mean < 0.8
    assert Target(ACCURACY, 0.8).reached_by(mean)
    assert not Target(ACCURACY, 0.8).reached_by(0.7999999)
    assert not Target(ACCURACY, 0.8).reached_by(None)


def test_two_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of target, as a number, and to_metric"):
        compare(["fedavg"], "digits", 1, target=0.5, to_metric=0.9)
