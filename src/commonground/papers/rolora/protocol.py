"""What RoLoRA's experiments have in common: the methods, how their learning rates are chosen, what runs cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.engine.backends.base import payload_bytes
from commonground.errors import ConfigError
from commonground.papers.request import Request, Settings
from commonground.papers.sweep import ArmResults, RateChoice, SweepArm, sweep

__all__ = ["METHODS", "After", "Costs", "Found", "Protocol", "measure", "names_of"]

METHODS = {"LoRA": "lora", "FFA-LoRA": "ffa-lora", "FlexLoRA": "flexlora", "RoLoRA": "rolora"}
"""The paper's names of the methods and ours."""


class Protocol(Settings):
    """How a learning rate is chosen and what is reported, the same for every method.

    Attributes:
        rates: the grid.
        choose: ``validation``: the rate with the best validation accuracy is used for all seeds, and the test accuracy
            after the last round is reported; ``best-on-test``: the paper's way (Section 6: "we obtain the best
            performance on test set"): every rate is trained, and the best test accuracy over rounds and rates is
            reported, which is optimistic.
        validation: share of the training samples that judges the rates.
        tuning_seeds: seeds (the first ones) whose validation accuracies are averaged for that.
        eval_every: rounds between tests.
        momentum: of SGD; the paper names no optimiser.
        engine, workers, threads: how a run is computed; by default what suits the model and the machine.
    """

    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    choose: Literal["validation", "best-on-test"] = "validation"
    validation: float = Field(default=0.2, gt=0, lt=1)
    tuning_seeds: int = Field(default=1, ge=1)
    eval_every: int = Field(default=1, ge=1)
    momentum: float = Field(default=0.5, ge=0, lt=1)
    engine: Literal["auto", "serial", "processes", "batched"] = "auto"
    workers: int | None = Field(default=None, ge=1)
    threads: int = Field(default=1, ge=1)

    def check(self) -> None:
        """Refuse an empty grid, values that are no rates, and values given twice."""
        if not self.rates or min(self.rates) <= 0 or len(set(self.rates)) != len(self.rates):
            raise ConfigError(f"rates is {list(self.rates)}; it must be at least one positive number, each named once")

    def choice(self) -> RateChoice:
        """The same for a sweep."""
        return RateChoice(self.rates, self.choose, self.validation, self.tuning_seeds)

    def run_settings(self, rounds: int) -> dict[str, Any]:
        """What all runs of so many rounds share."""
        return {
            "optimizer": "sgd",
            "momentum": self.momentum,
            "engine": self.engine,
            "workers": self.workers,
            "threads": self.threads,
            "eval_every": min(self.eval_every, rounds),
        }

    def says(self) -> str:
        """The protocol in a sentence."""
        grid = ", ".join(f"{rate:g}" for rate in self.rates)
        if self.choose == "best-on-test":
            return (
                f"Best on the test set, as in the paper: of the rates {grid} and all tested rounds, the best mean test "
                "accuracy for each method; such numbers are optimistic."
            )
        if len(self.rates) == 1:
            return f"All methods use the learning rate {grid}; accuracies are those after the last round."
        return (
            f"Each method's learning rate is chosen from {grid} on {100 * self.validation:g} % of the training samples "
            f"({self.tuning_seeds} seed{'s' if self.tuning_seeds > 1 else ''}); accuracies are test accuracies after "
            "the last round (--set choose=best-on-test reports the paper's best on the test set)."
        )


@dataclass(frozen=True)
class Costs:
    """What a run cost, and how exact its averages were.

    Attributes:
        bytes_up: of a client in a round, on average.
        factors_up: of these, what is factors and no task head.
        uploaded: bytes of all clients together after each tested round.
        error: aggregation error in each round that has one (rounds before anything was learnt have none).
        seconds: of all rounds.
        scores: what the experiment made of the finished run, by name.
    """

    bytes_up: float
    factors_up: float
    uploaded: list[float]
    error: list[float]
    seconds: float
    scores: dict[str, float]


Found = ArmResults[Costs]
"""What the sweeps of these experiments give for a method under a condition."""
After = Callable[[Run, FederatedDataset], dict[str, float]]


def names_of(methods: Sequence[str]) -> dict[str, str]:
    """The paper's names of chosen methods and ours, in the paper's order.

    Raises:
        ConfigError: one is unknown, or none is named.
    """
    by_ours = {ours: name for name, ours in METHODS.items()}
    chosen = {METHODS.get(m, m) for m in methods}
    for method in chosen:
        if method not in by_ours:
            raise ConfigError(f"unknown method '{method}'; known are {', '.join(by_ours)}")
    if not chosen:
        raise ConfigError(f"methods is empty; name at least one of {', '.join(by_ours)}")
    return {name: ours for name, ours in METHODS.items() if ours in chosen}


def measure(
    arms: Sequence[SweepArm],
    seeds: Sequence[int],
    protocol: Protocol,
    request: Request,
    notes: list[str],
    after: After | None = None,
) -> dict[tuple[str, str], Found]:
    """Choose a learning rate for every arm and train it with every seed; what is finished already is only read.

    Args:
        arms: methods under conditions.
        seeds: of the runs.
        protocol: how rates are chosen, and what all runs share.
        request: where to, and how loudly.
        notes: remarks are added to these.
        after: what to make of every run that counts, for :attr:`Costs.scores`.

    Returns:
        By (condition, name of the method).

    Raises:
        UpdateError: an arm diverged with every rate.
    """
    protocol.check()
    common = [
        dataclasses.replace(arm, settings={**protocol.run_settings(arm.settings["rounds"]), **arm.settings})
        for arm in arms
    ]

    def read(run: Run, data: FederatedDataset) -> Costs:
        return _costs(run, {} if after is None else after(run, data))

    return sweep(common, seeds, request, read, protocol.choice(), notes)


def _costs(run: Run, scores: dict[str, float]) -> Costs:
    which = "personal_accuracy" if run.global_accuracy is None else "global_accuracy"
    up = run.summary["bytes_up"] / sum(row["participants"] for row in run.history)
    head = payload_bytes({n: v for n, v in run.shared.items() if not n.endswith(("lora_A", "lora_B"))})
    total = np.cumsum([row["bytes_up"] for row in run.history])
    return Costs(
        up,
        up - head,
        [float(total[row["round"] - 1]) for row in run.history if row[which] is not None],
        [row["aggregation_error"] for row in run.history if row.get("aggregation_error") is not None],
        run.summary["seconds"],
        scores,
    )
