"""Local SGD against Parallel SGD on images with heterogeneous features: settings, data and runs of section 8."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from commonground.data import FederatedDataset, Source, add_feature_noise, load_source
from commonground.data.augment import Augment
from commonground.data.dealing import deal as deal_source
from commonground.data.feature_partition import Features
from commonground.engine import Run
from commonground.engine.evaluation import blocks_of, evaluate_block
from commonground.engine.prepare import prepare_setup
from commonground.engine.scores import Scores
from commonground.errors import ConfigError, UpdateError
from commonground.keys import numpy_stream
from commonground.papers.request import Request, Settings, value_for
from commonground.papers.sweep import ArmResults, SweepArm, sweep
from commonground.statistics import Values, detectable_difference

__all__ = [
    "Accuracies",
    "ImageCase",
    "ImageSettings",
    "NoiseSettings",
    "deal",
    "image_notes",
    "measure",
    "name_of",
    "paper_settings",
    "power_row",
    "small_settings",
]

SEEDS = 3

_Figures = tuple[float, float, Tensor, float]  # of a run, see _read


class ImageSettings(Settings):
    """What an experiment on images is run with.

    Attributes:
        data: any labelled image set by name.
        clients: N.
        intervals: I; 1 is Parallel SGD, which the others are compared with.
        heterogeneity: h.
        augment: ways of changing training images, by name.
        total_steps, lr: T and η, by way of augmentation where they differ; η is halved after 1/2 and 3/4 of T.
        batch_size: of each client.
        weight_decay: the paper names none; its code has 5e-4.
        model_options: of the ResNet (``width``, ``blocks``, ``stem``, ``norm``).
        train_samples, test_samples: images of all clients together, equally many of each class; 0 for all there are.
        engine, workers: how a run is computed.
    """

    data: str = "cifar10"
    clients: int = Field(default=8, ge=2)
    intervals: tuple[int, ...] = (1, 8, 16, 32)
    heterogeneity: tuple[float, ...] = (0.25, 0.5)
    augment: tuple[Augment, ...] = ("flip-crop", "none")
    total_steps: int | dict[str, int] = 16384
    lr: float | dict[str, float] = 0.01
    batch_size: int = Field(default=64, ge=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    model_options: dict[str, Any] = Field(default_factory=dict)
    train_samples: int = Field(default=0, ge=0)
    test_samples: int = Field(default=0, ge=0)
    engine: Literal["auto", "serial", "processes", "batched"] = "auto"
    workers: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        """Refuse empty or repeated values, intervals below 1 and steps that are missing.

        Raises:
            ConfigError: in one sentence.
        """
        for name in ("intervals", "heterogeneity", "augment"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} is {list(values)}; name at least one, and each once")
        if min(self.intervals) < 1:
            raise ConfigError(f"intervals is {list(self.intervals)}; every interval must be at least 1")
        for way in self.augment:
            if self.steps_of(way) < max(self.intervals):
                raise ConfigError(
                    f"an interval of {max(self.intervals)} steps does not fit into total_steps={self.steps_of(way)}"
                )
            if not self.lr_of(way) > 0:
                raise ConfigError(f"lr is {self.lr_of(way)}; it must be positive")
        for h in self.heterogeneity:
            Features(h)

    def with_parallel(self) -> list[int]:
        """The intervals in order, the first of them 1.

        Raises:
            ConfigError: Parallel SGD (1) or something to compare with it is missing.
        """
        if 1 not in self.intervals or len(self.intervals) < 2:
            raise ConfigError(
                f"intervals is {list(self.intervals)}; it must have 1 (Parallel SGD) and at least one more"
            )
        return sorted(self.intervals)

    def steps_of(self, augment: str) -> int:
        """T."""
        return int(value_for(self.total_steps, augment, "total_steps", f"augment={augment}"))

    def lr_of(self, augment: str) -> float:
        """η."""
        return float(value_for(self.lr, augment, "lr", f"augment={augment}"))


class NoiseSettings(ImageSettings):
    """As :class:`ImageSettings`, with feature noise.

    Attributes:
        noises: ρ.
    """

    noises: tuple[float, ...] = (0.03125, 0.0625, 0.125, 0.25)

    def check(self) -> None:
        """Refuse negative or repeated strengths of noise as well."""
        super().check()
        if not self.noises or min(self.noises) < 0 or len(set(self.noises)) != len(self.noises):
            raise ConfigError(f"noises is {list(self.noises)}; name at least one number from 0 on, and each once")


def _listed(options: Mapping[str, Any]) -> str:
    said = {k: "-".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in options.items()}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def paper_settings(settings: type[Any], **changed: Any) -> Any:
    """Section 8.1's settings."""
    values = {
        "total_steps": {"flip-crop": 65536, "none": 16384},
        "lr": {"flip-crop": 0.03, "none": 0.01},
        "model_options": {"stem": "imagenet", "norm": "batch"},
    }
    return settings(**{**values, **changed})


def small_settings(settings: type[Any], **changed: Any) -> Any:
    """What two cores can do: a narrow, short ResNet and a part of the images, with the paper's batch size and number of
    epochs (167 without augmentation).
    """
    values = {
        "intervals": (1, 4, 16, 64),
        "heterogeneity": (0.5,),
        "augment": ("none",),
        "total_steps": 1024,
        "lr": 0.05,
        "model_options": {"stem": "imagenet", "norm": "batch", "width": 16, "blocks": [1, 1, 1]},
        "train_samples": 3200,
    }
    return settings(**{**values, **changed})


@dataclass(frozen=True)
class ImageCase:
    """A method (its interval I) under a condition: heterogeneity h, augmentation and feature noise ρ."""

    interval: int
    heterogeneity: float
    augment: Augment = "none"
    noise: float = 0.0

    @property
    def condition(self) -> str:
        """All but the interval, in words."""
        noise = f", noise {self.noise:g}" if self.noise else ""
        return f"h = {self.heterogeneity:g}, augmentation {self.augment}{noise}"


def name_of(interval: int) -> str:
    """A method as the paper's tables name it."""
    return "Parallel SGD" if interval == 1 else f"Local SGD (I = {interval})"


@dataclass(frozen=True)
class Accuracies:
    """What the seeds of a case gave.

    Attributes:
        seeds: those of all cases.
        test, train: [seeds] accuracies of the final global model, in percent.
        filters: per seed the first convolution's weights [filters, channels, height, width].
        seconds: of all rounds, per seed.
    """

    seeds: list[int]
    test: Values
    train: Values
    filters: list[Tensor] = field(repr=False)
    seconds: Values


def deal(settings: ImageSettings, request: Request, h: float, noise: float, seed: int) -> FederatedDataset:
    """A seed's images at the clients, with parity labels and feature noise."""
    data = deal_source(_source(settings, request.data_dir, seed), Features(h), settings.clients, seed)
    return add_feature_noise(data, noise, seed)


def _source(settings: ImageSettings, data_dir: str | None, seed: int) -> Source:
    """The images, or equally many of each class, other ones for every seed."""
    source = load_source(settings.data, data_dir)
    changed: dict[str, Any] = {}
    for split, wanted in (("train", settings.train_samples), ("test", settings.test_samples)):
        y = getattr(source, f"y_{split}")
        if wanted and wanted < len(y):
            rng = numpy_stream(seed, "images", split)
            each = np.full(source.classes, wanted // source.classes) + (
                np.arange(source.classes) < wanted % source.classes
            )
            rows = np.concatenate([rng.permutation(np.flatnonzero(y == k))[:n] for k, n in enumerate(each.tolist())])
            rows.sort()
            changed |= {f"x_{split}": getattr(source, f"x_{split}")[rows], f"y_{split}": y[rows]}
    return replace(source, **changed) if changed else source


def measure(
    settings: ImageSettings, cases: Sequence[ImageCase], seeds: Sequence[int], request: Request, notes: list[str]
) -> dict[ImageCase, Accuracies]:
    """Train and test every case with every seed; finished runs in the folder are taken as they are.

    Seeds stay paired: one with which some case diverges is left out of all of them, and a note says so.

    Raises:
        UpdateError: no seed is left.
    """
    dealt = cache(lambda h, noise, seed: deal(settings, request, h, noise, seed))
    arms = {case: _arm(settings, case, partial(dealt, case.heterogeneity, case.noise)) for case in cases}
    found = sweep(list(arms.values()), seeds, request, _read)
    measured = {case: found[arm.key] for case, arm in arms.items()}
    for case, of_case in measured.items():
        notes += [
            f"{name_of(case.interval)}, {case.condition}, diverged with seed {seed}, which is left out of all "
            f"comparisons: {what}"
            for seed, what in of_case.diverged.items()
        ]
    lost = {seed for of_case in measured.values() for seed in of_case.diverged}
    kept = [seed for seed in seeds if seed not in lost]
    if not kept:
        raise UpdateError(f"no seed is left of {len(seeds)}: {notes[-1]}")
    return {case: _joined(of_case, seeds, kept) for case, of_case in measured.items()}


def _arm(settings: ImageSettings, case: ImageCase, data: Callable[[int], FederatedDataset]) -> SweepArm:
    """A case as a sweep trains it."""
    total = settings.steps_of(case.augment)
    rounds = math.ceil(total / case.interval)
    run: dict[str, Any] = {
        "model": "resnet18",
        "model_options": settings.model_options,
        "options": {"total_steps": total} | ({"steps": case.interval} if case.interval > 1 else {}),
        "rounds": rounds,
        "batch_size": settings.batch_size,
        "lr": settings.lr_of(case.augment),
        "weight_decay": settings.weight_decay,
        "augment": case.augment,
        "eval_every": rounds,
        "engine": settings.engine,
        "workers": settings.workers,
    }
    algorithm = "local-sgd" if case.interval > 1 else "parallel-sgd"
    folder = f"h-{case.heterogeneity:g}-{case.augment}-noise-{case.noise:g}-interval-{case.interval}"
    return SweepArm(case.condition, name_of(case.interval), algorithm, data, run, folder)


def _read(run: Run, data: FederatedDataset) -> _Figures:
    """Test and training accuracy in percent, the first convolution's weights, seconds."""
    count = np.array([c["test_samples"] for c in run.clients], dtype=float)
    right = count * np.array([c["global_accuracy"] for c in run.clients], dtype=float)
    first = next(value for value in run.shared.values() if value.ndim == 4)
    test = 100 * right.sum() / count.sum()
    return test, training_accuracy(run, data), first, float(run.summary["seconds"])


def _joined(measured: ArmResults[_Figures], seeds: Sequence[int], kept: list[int]) -> Accuracies:
    """One case with the seeds that no case has lost."""
    runs = dict(zip([seed for seed in seeds if seed not in measured.diverged], measured.details, strict=True))
    test, train, filters, seconds = zip(*(runs[seed] for seed in kept), strict=True)
    return Accuracies(kept, np.array(test), np.array(train), list(filters), np.array(seconds))


def training_accuracy(run: Run, data: FederatedDataset) -> float:
    """Accuracy of a run's final shared model on all clients' training samples, not augmented, in percent."""
    on_train = replace(
        data,
        x_test=data.x_train,
        y_test=data.y_train,
        origin=replace(data.origin, test_names=None),
        test_index=data.train_index,
        test_offsets=data.train_offsets,
    )
    setup = prepare_setup(run.config, on_train)
    blocks = blocks_of(range(data.clients), on_train.test_sizes)
    scores = Scores.join([evaluate_block(setup, block, run.shared, {}, stack=False) for block in blocks])
    return float(100 * scores.sums["accuracy"].sum() / scores.count.sum())


def power_row(differences: Values) -> dict[str, float]:
    """How small a difference so many seeds can show.

    Args:
        differences: [seeds] paired differences in percentage points.

    Returns:
        Mean and standard deviation, and the true difference that a 95 % interval of this spread would find with 80 %
        probability.
    """
    if len(differences) < 2:
        return {"difference": round(float(differences.mean()), 2)}
    return {
        "difference": round(float(differences.mean()), 2),
        "standard deviation": round(float(differences.std(ddof=1)), 2),
        "shown with 80 % power": round(detectable_difference(differences), 2),
    }


def image_notes(settings: ImageSettings, request: Request) -> list[str]:
    """What was reduced and what the paper leaves open, in sentences."""
    notes = []
    if request.scale == "small":
        network = _listed(settings.model_options)
        sizes = [f"{n or 'all'} {what}" for n, what in
                 ((settings.train_samples, "training"), (settings.test_samples, "test"))]  # fmt: skip
        notes.append(
            f"Reduced: a ResNet ({network}) in place of ResNet-18, {' and '.join(sizes)} images of {settings.data}, "
            f"batches of {settings.batch_size} per client (paper: 64), {settings.total_steps} steps "
            f"(paper: 16,384 without and 65,536 with augmentation), η = {settings.lr} (paper: 0.01 and 0.03)."
        )
    return [
        *notes,
        "η is halved after 1/2 and 3/4 of the steps; data order continues over rounds; weight decay "
        f"{settings.weight_decay:g} (the paper names none, its code has 5e-4); no momentum.",
        "BatchNorm's statistics are averaged with the model. The paper's code averages parameters only and tests with "
        "each worker's own statistics, and runs Parallel SGD as one client whose BatchNorm sees batches of N · B; here "
        "Parallel SGD is Local SGD with I = 1, so that nothing but I differs.",
        "Test images are dealt to the clients as training images are; accuracies are over all of them.",
    ]
