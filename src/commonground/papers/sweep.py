"""Grids of runs: methods under conditions with several seeds. What a folder holds already is read, not trained again.

:func:`sweep` trains arms one by one, each with data of its own and, where wanted, a learning rate chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from commonground.compare.progress import ComparisonProgress, Step
from commonground.data import FederatedDataset
from commonground.data.validation import validation_split
from commonground.engine import Run, train
from commonground.errors import UpdateError
from commonground.papers.request import Request
from commonground.report.format import slug
from commonground.statistics import Values

__all__ = ["ArmResults", "RateChoice", "Result", "SweepArm", "pooled_accuracy", "sweep"]

D = TypeVar("D")


@dataclass(frozen=True)
class SweepArm:
    """A method under a condition.

    Attributes:
        condition: for example ``SST-2, 3 clients, rank 4``.
        name: of the method, as in the paper; condition and name together are the arm's key.
        algorithm: ours.
        data: the clients' samples for a seed.
        settings: of the run, but for its seed (and its learning rate, where that is chosen).
        folder: of its runs, beneath ``runs``; by default named by condition and algorithm.
    """

    condition: str
    name: str
    algorithm: str
    data: Callable[[int], FederatedDataset]
    settings: Mapping[str, Any]
    folder: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Condition and name."""
        return self.condition, self.name

    @property
    def title(self) -> str:
        """As progress and messages call it."""
        return f"{self.name}, {self.condition}"

    def place(self, folder: Path) -> Path:
        """Where its runs are, in an experiment's folder."""
        return folder / "runs" / (self.folder or f"{slug(self.condition)}/{self.algorithm}")


@dataclass(frozen=True)
class RateChoice:
    """How an arm's learning rate is chosen.

    Attributes:
        rates: the grid; a single rate is used as it is.
        by: ``validation``: the rate with the best validation accuracy is used for all seeds; if it diverges with one of
            them, the next best. ``best-on-test``: every rate is trained with every seed, and the best test accuracy
            over rounds and rates is reported, which is optimistic.
        validation: share of the training samples that judges the rates.
        tuning_seeds: seeds (the first ones) whose validation accuracies are averaged for that.
    """

    rates: tuple[float, ...]
    by: Literal["validation", "best-on-test"] = "validation"
    validation: float = 0.2
    tuning_seeds: int = 1


@dataclass(frozen=True)
class Result(Generic[D]):
    """One run's figures.

    Attributes:
        accuracy: after the last round, over all test samples, as a share.
        rounds, curve: tested rounds and the accuracy in each (mean over clients).
        details: what the experiment read from the finished run.
    """

    accuracy: float
    rounds: list[int]
    curve: list[float]
    details: D


@dataclass(frozen=True)
class ArmResults(Generic[D]):
    """An arm, measured.

    Attributes:
        results: one per seed.
        rate: the learning rate chosen; None where there was no choice.
        scores: mean validation (or best test) accuracy of every rate; None where training diverged.
        best_on_test: whether accuracies are the best ones on the test set.
        diverged: what happened, by seed; such a seed has no result. Only where no rate is chosen.
    """

    results: list[Result[D]]
    rate: float | None = None
    scores: dict[float, float | None] = field(default_factory=dict)
    best_on_test: bool = False
    diverged: Mapping[int, str] = field(default_factory=dict)

    @property
    def accuracies(self) -> Values:
        """What is reported, in percent, one per seed."""
        return np.array([100 * (max(r.curve) if self.best_on_test else r.accuracy) for r in self.results])

    @property
    def curves(self) -> Values:
        """Test accuracies [seeds, tested rounds], as shares."""
        return np.array([result.curve for result in self.results])

    @property
    def details(self) -> list[D]:
        """What was read from the runs, one per seed."""
        return [result.details for result in self.results]


def sweep(
    arms: Sequence[SweepArm],
    seeds: Sequence[int],
    request: Request,
    read: Callable[[Run, FederatedDataset], D],
    choice: RateChoice | None = None,
    notes: list[str] | None = None,
) -> dict[tuple[str, str], ArmResults[D]]:
    """Train every arm with every seed; what is finished already is only read.

    Args:
        arms: methods under conditions.
        seeds: of the runs.
        request: where to, and how loudly.
        read: what to keep of every run that counts, for :attr:`Result.details`.
        choice: how learning rates are chosen; None where the arms' settings name theirs.
        notes: remarks are added to these.

    Returns:
        By condition and name of the method.

    Raises:
        UpdateError: an arm diverged: with every rate where there is a choice, else with every seed.
    """
    return _Sweep(arms, seeds, request, read, choice, [] if notes is None else notes).run()


class _Sweep(Generic[D]):
    """A sweep in progress."""

    def __init__(
        self,
        arms: Sequence[SweepArm],
        seeds: Sequence[int],
        request: Request,
        read: Callable[[Run, FederatedDataset], D],
        choice: RateChoice | None,
        notes: list[str],
    ) -> None:
        self.arms, self.seeds, self.request, self.read = arms, list(seeds), request, read
        self.choice, self.notes = choice, notes
        self.observer = ComparisonProgress(request.quiet)
        plan = [(arm, seed, rate) for arm in arms for rate, seed in self._plan()]
        steps = [
            Step(n, len(plan), arm.title, seed, int(arm.settings["rounds"]), None if rate is None else {"lr": rate})
            for n, (arm, seed, rate) in enumerate(plan, 1)
        ]
        self.observer.plan(steps)
        self.last = steps[-1:]
        self.steps = iter(steps)

    def _plan(self) -> list[tuple[float | None, int]]:
        """(rate, seed) of one arm's runs; the rate is None where it is not one of several that are tried."""
        counted: list[tuple[float | None, int]] = [(None, seed) for seed in self.seeds]
        if self.choice is None:
            return counted
        if self.choice.by == "best-on-test":
            return [(rate, seed) for rate in self.choice.rates for seed in self.seeds]
        tried = [(rate, seed) for rate in self.choice.rates for seed in self._tuning_seeds(self.choice)]
        return [*tried, *counted] if len(self.choice.rates) > 1 else counted

    def _tuning_seeds(self, choice: RateChoice) -> list[int]:
        return self.seeds[: choice.tuning_seeds]

    def run(self) -> dict[tuple[str, str], ArmResults[D]]:
        return {arm.key: self._measure(arm) for arm in self.arms}

    def _measure(self, arm: SweepArm) -> ArmResults[D]:
        if self.choice is None:
            return self._plain(arm)
        if self.choice.by == "best-on-test":
            return self._best_on_test(arm, self.choice)
        return self._validated(arm, self.choice)

    def _plain(self, arm: SweepArm) -> ArmResults[D]:
        results: list[Result[D]] = []
        diverged: dict[int, str] = {}
        for seed in self.seeds:
            try:
                results.append(self._counted(arm, seed, None))
            except UpdateError as error:
                self.observer.note(f"{arm.title}, seed {seed}: {error}")
                diverged[seed] = str(error)
        if not results:
            raise UpdateError(f"{arm.title}: training diverged with every seed ({diverged[self.seeds[0]]})")
        return ArmResults(results, diverged=diverged)

    def _validated(self, arm: SweepArm, choice: RateChoice) -> ArmResults[D]:
        scores: dict[float, float | None] = {}
        if len(choice.rates) > 1:
            for rate in choice.rates:
                tried = [self._try(arm, choice, rate, seed) for seed in self._tuning_seeds(choice)]
                finished = [accuracy for accuracy in tried if accuracy is not None]
                scores[rate] = float(np.mean(finished)) if len(finished) == len(tried) else None
            if all(score is None for score in scores.values()):
                raise UpdateError(f"{arm.title}: training diverged with every rate of the grid")
        order = sorted((r for r in scores if scores[r] is not None), key=lambda r: -(scores[r] or 0))
        for rate in order or choice.rates[:1]:
            results: list[Result[D]] = []
            for seed in self.seeds:
                try:
                    results.append(self._counted(arm, seed, rate))
                except UpdateError as error:
                    self._tell(arm, rate, seed, error)
                    break
            if len(results) == len(self.seeds):
                return ArmResults(results, rate, scores)
            self.notes.append(
                f"{arm.title}: the rate {rate:g} chosen on validation data diverged with seed "
                f"{self.seeds[len(results)]}; the next best one was taken."
            )
        raise UpdateError(f"{arm.title}: training diverged with every rate that validation allowed")

    def _best_on_test(self, arm: SweepArm, choice: RateChoice) -> ArmResults[D]:
        found: dict[float, list[Result[D]]] = {}
        scores: dict[float, float | None] = {}
        for rate in choice.rates:
            found[rate] = []
            for seed in self.seeds:
                try:
                    found[rate].append(self._counted(arm, seed, rate))
                except UpdateError as error:
                    self._tell(arm, rate, seed, error)
            complete = len(found[rate]) == len(self.seeds)
            scores[rate] = float(np.mean([max(r.curve) for r in found[rate]])) if complete else None
        usable = {rate: score for rate, score in scores.items() if score is not None}
        if not usable:
            raise UpdateError(f"{arm.title}: training diverged with every rate of the grid")
        rate = max(usable, key=lambda r: usable[r])
        return ArmResults(found[rate], rate, scores, best_on_test=True)

    def _try(self, arm: SweepArm, choice: RateChoice, rate: float, seed: int) -> float | None:
        """Accuracy on the validation samples after the last round; None if training diverged."""
        data = validation_split(arm.data(seed), choice.validation, seed)
        folder = arm.place(self.request.folder) / "tuning" / f"lr-{rate:g}"
        try:
            run = self._train(arm, data, seed, folder, {"lr": rate, "eval_every": arm.settings["rounds"]})
        except UpdateError as error:
            self._tell(arm, rate, seed, error)
            return None
        return pooled_accuracy(run)

    def _counted(self, arm: SweepArm, seed: int, rate: float | None) -> Result[D]:
        data, folder = arm.data(seed), arm.place(self.request.folder)
        if rate is None:
            run = self._train(arm, data, seed, folder, {})
        else:
            run = self._train(arm, data, seed, folder / f"lr-{rate:g}", {"lr": rate})
        which = _tested(run)
        tested = [row for row in run.history if row[which] is not None]
        rounds, curve = [row["round"] for row in tested], [row[which] for row in tested]
        return Result(pooled_accuracy(run), rounds, curve, self.read(run, data))

    def _train(self, arm: SweepArm, data: FederatedDataset, seed: int, folder: Path, changed: Mapping[str, Any]) -> Run:
        # Beyond the plan are the runs with the next best rate, after the best one diverged.
        step = next(self.steps, self.last[0])
        return train(
            arm.algorithm,
            data,
            out=folder / f"seed-{seed}",
            resume=True,
            observer=self.observer.step(step),
            seed=seed,
            **{"device": str(self.request.device), **arm.settings, **changed},
        )

    def _tell(self, arm: SweepArm, rate: float, seed: int, error: UpdateError) -> None:
        self.observer.note(f"{arm.title}, rate {rate:g}, seed {seed}: {error}")


def _tested(run: Run) -> str:
    """Which accuracy stands for a method: the global model's where it has one."""
    return "personal_accuracy" if run.global_accuracy is None else "global_accuracy"


def pooled_accuracy(run: Run) -> float:
    """A finished run's accuracy over all test samples, as a share; the global model's where there is one."""
    count = np.array([client["test_samples"] for client in run.clients], dtype=float)
    each = np.array([client[_tested(run)] for client in run.clients], dtype=float)
    return float((count * each).sum() / count.sum())
