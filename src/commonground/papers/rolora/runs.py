"""What RoLoRA's experiments have in common: four methods in several conditions, each with its own learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from commonground.compare.grid import validation_split
from commonground.compare.progress import ComparisonProgress, Step
from commonground.data import FederatedDataset
from commonground.engine import Run, train
from commonground.engine.backends.base import payload_bytes
from commonground.errors import ConfigError, UpdateError
from commonground.papers.base import Request, Settings
from commonground.report.format import slug

__all__ = [
    "METHODS",
    "Arm",
    "Measured",
    "Protocol",
    "Result",
    "Values",
    "check_methods",
    "measure",
    "names_of",
]

METHODS = {"LoRA": "lora", "FFA-LoRA": "ffa-lora", "FlexLoRA": "flexlora", "RoLoRA": "rolora"}
"""The paper's names of the methods and ours."""


Values = npt.NDArray[np.float64]


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
class Arm:
    """A method under a condition.

    Attributes:
        condition: for example ``SST-2, 3 clients, rank 4``.
        name: of the method, as in the paper.
        algorithm: ours.
        data: the clients' samples for a seed.
        settings: of the run, but for seed and learning rate.
    """

    condition: str
    name: str
    algorithm: str
    data: Callable[[int], FederatedDataset]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """One run's figures.

    Attributes:
        accuracy: after the last round, over all test samples.
        rounds, curve: tested rounds and the accuracy in each (mean over clients, whose test parts differ by at most
            one sample).
        bytes_up: of a client in a round, on average.
        factors_up: of these, what is factors and no task head.
        uploaded: bytes of all clients together after each tested round.
        error: aggregation error in each round that has one (rounds before anything was learnt have none).
        seconds: of all rounds.
        folder: of the run.
        extra: what the experiment made of the finished run.
    """

    accuracy: float
    rounds: list[int]
    curve: list[float]
    bytes_up: float
    factors_up: float
    uploaded: list[float]
    error: list[float]
    seconds: float
    folder: Path | None
    extra: Any = None


@dataclass
class Measured:
    """A method under a condition, measured.

    Attributes:
        rate: the learning rate used.
        scores: mean validation (or best test) accuracy of every rate; None where training diverged.
        results: one per seed.
        best_on_test: whether accuracies are the best ones on the test set.
    """

    rate: float
    scores: dict[float, float | None]
    results: list[Result]
    best_on_test: bool = False

    @property
    def accuracies(self) -> Values:
        """What is reported, in percent, one per seed."""
        return np.array([100 * _reported(result, self.best_on_test) for result in self.results])

    @property
    def curves(self) -> Values:
        """Test accuracies [seeds, tested rounds], as shares."""
        return np.array([result.curve for result in self.results])


def _reported(result: Result, best: bool) -> float:
    return max(result.curve) if best else result.accuracy


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


def check_methods(values: Mapping[str, Any]) -> None:
    """Refuse unknown methods of some settings before anything is read."""
    names_of(values["methods"])


After = Callable[[Run, FederatedDataset], Any]


def measure(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    protocol: Protocol,
    request: Request,
    notes: list[str],
    after: After | None = None,
) -> dict[tuple[str, str], Measured]:
    """Choose a learning rate for every arm and train it with every seed; what is finished already is only read.

    Args:
        arms: methods under conditions.
        seeds: of the runs.
        protocol: how rates are chosen.
        request: where to, and how loudly.
        notes: remarks are added to these.
        after: what to make of every run that counts, for :attr:`Result.extra`.

    Returns:
        By (condition, name of the method).

    Raises:
        UpdateError: an arm diverged with every rate.
    """
    protocol.check()
    return _Measuring(arms, seeds, protocol, request, notes, after).run()


class _Measuring:
    def __init__(
        self,
        arms: Sequence[Arm],
        seeds: Sequence[int],
        protocol: Protocol,
        request: Request,
        notes: list[str],
        after: After | None,
    ) -> None:
        self.arms, self.seeds, self.protocol, self.request, self.notes = arms, list(seeds), protocol, request, notes
        self.after = after
        self.observer = ComparisonProgress(request.quiet)
        self.tuning = self.seeds[: protocol.tuning_seeds]
        plan = [(arm, seed, rate if tried else None) for arm in arms for rate, seed, tried in self._plan()]
        self.steps = [
            Step(n, len(plan), f"{arm.name}, {arm.condition}", seed, int(arm.settings["rounds"]), _candidate(rate))
            for n, (arm, seed, rate) in enumerate(plan, 1)
        ]
        self.observer.plan(self.steps)
        self.next = iter(self.steps)

    def _plan(self) -> list[tuple[float, int, bool]]:
        """(rate, seed, whether it is only tried) of one arm's runs; the rate of the others is not known yet."""
        rates = self.protocol.rates
        if self.protocol.choose == "best-on-test":
            return [(rate, seed, True) for rate in rates for seed in self.seeds]
        tried = [(rate, seed, True) for rate in rates for seed in self.tuning] if len(rates) > 1 else []
        return [*tried, *((rates[0], seed, False) for seed in self.seeds)]

    def run(self) -> dict[tuple[str, str], Measured]:
        return {(arm.condition, arm.name): self._measure(arm) for arm in self.arms}

    def _measure(self, arm: Arm) -> Measured:
        folder = self.request.folder / "runs" / slug(arm.condition) / arm.algorithm
        rates = self.protocol.rates
        if self.protocol.choose == "best-on-test":
            return self._best_on_test(arm, folder)
        scores: dict[float, float | None] = {}
        if len(rates) > 1:
            for rate in rates:
                tried = [self._try(arm, rate, seed, folder / "tuning") for seed in self.tuning]
                finished = [r.accuracy for r in tried if r is not None]
                scores[rate] = float(np.mean(finished)) if len(finished) == len(tried) else None
        order = sorted((r for r in scores if scores[r] is not None), key=lambda r: -(scores[r] or 0)) or list(rates[:1])
        if scores and all(score is None for score in scores.values()):
            raise UpdateError(f"{arm.name}, {arm.condition}: training diverged with every rate of the grid")
        for rate in order:
            results: list[Result] = []
            for seed in self.seeds:
                result = self._one(arm, arm.data(seed), rate, seed, folder, next(self.next, self.steps[-1]))
                if result is None:
                    break
                results.append(result)
            if len(results) == len(self.seeds):
                return Measured(rate, scores, results)
            self.notes.append(
                f"{arm.name}, {arm.condition}: the rate {rate:g} chosen on validation data diverged with seed "
                f"{self.seeds[len(results)]}; the next best one was taken."
            )
        raise UpdateError(f"{arm.name}, {arm.condition}: training diverged with every rate that validation allowed")

    def _best_on_test(self, arm: Arm, folder: Path) -> Measured:
        found: dict[float, list[Result]] = {}
        scores: dict[float, float | None] = {}
        for rate in self.protocol.rates:
            tried = [self._one(arm, arm.data(s), rate, s, folder, next(self.next)) for s in self.seeds]
            finished = [result for result in tried if result is not None]
            complete = len(finished) == len(tried)
            scores[rate] = float(np.mean([max(r.curve) for r in finished])) if complete else None
            found[rate] = finished
        usable = {rate: score for rate, score in scores.items() if score is not None}
        if not usable:
            raise UpdateError(f"{arm.name}, {arm.condition}: training diverged with every rate of the grid")
        rate = max(usable, key=lambda r: usable[r])
        return Measured(rate, scores, found[rate], best_on_test=True)

    def _try(self, arm: Arm, rate: float, seed: int, folder: Path) -> Result | None:
        inner = validation_split(arm.data(seed), self.protocol.validation, seed)
        return self._one(arm, inner, rate, seed, folder, next(self.next), tested="last")

    def _one(
        self,
        arm: Arm,
        data: FederatedDataset,
        rate: float,
        seed: int,
        folder: Path,
        step: Step,
        tested: Literal["all", "last"] = "all",
    ) -> Result | None:
        """One run; None if it diverged."""
        settings = dict(arm.settings)
        every = settings["rounds"] if tested == "last" else min(self.protocol.eval_every, settings["rounds"])
        try:
            run = train(
                arm.algorithm,
                data,
                out=folder / f"lr-{rate:g}" / f"seed-{seed}",
                resume=True,
                observer=self.observer.step(step),
                lr=rate,
                seed=seed,
                momentum=self.protocol.momentum,
                engine=self.protocol.engine,
                workers=self.protocol.workers,
                threads=self.protocol.threads,
                eval_every=every,
                **settings,
            )
        except UpdateError as error:
            self.observer.note(f"{arm.name}, {arm.condition}, rate {rate:g}, seed {seed}: {error}")
            return None
        result = result_of(run)
        if self.after is None or tested == "last":
            return result
        return dataclasses.replace(result, extra=self.after(run, data))


def _candidate(rate: float | None) -> dict[str, float] | None:
    return None if rate is None else {"lr": rate}


def result_of(run: Run) -> Result:
    """The figures of a finished run."""
    personal = run.global_accuracy is None
    which = "personal_accuracy" if personal else "global_accuracy"
    count = np.array([client["test_samples"] for client in run.clients], dtype=float)
    each = np.array([client[which] for client in run.clients], dtype=float)
    tested = [row for row in run.history if row[which] is not None]
    uploads = sum(row["participants"] for row in run.history)
    up = run.summary["bytes_up"] / uploads
    head = payload_bytes({n: v for n, v in run.shared.items() if not n.endswith(("lora_A", "lora_B"))})
    total = np.cumsum([row["bytes_up"] for row in run.history])
    return Result(
        float((count * each).sum() / count.sum()),
        [row["round"] for row in tested],
        [row[which] for row in tested],
        up,
        up - head,
        [float(total[row["round"] - 1]) for row in tested],
        [row["aggregation_error"] for row in run.history if row.get("aggregation_error") is not None],
        run.summary["seconds"],
        run.folder,
    )
