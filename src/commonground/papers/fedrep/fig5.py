"""FedRep's Figure 5: more local epochs hurt FedAvg or leave it flat; more head epochs never hurt FedRep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from commonground.data import FederatedDataset, limit_samples, load_data
from commonground.engine import Run
from commonground.errors import ConfigError
from commonground.papers.claims import difference
from commonground.papers.experiment import Experiment, Request, Settings
from commonground.papers.figures import Curve, Figure
from commonground.papers.outcome import Outcome
from commonground.papers.sweep import Arm, accuracies, sweep
from commonground.statistics import Values, accuracy_interval

__all__: list[str] = []

SOURCE = "Collins et al. 2021, Figure 5"
METHODS = ("FedRep", "FedAvg")


class EpochSettings(Settings):
    """What Figure 5 is measured with.

    Attributes:
        data: any labelled data set by name.
        clients, classes_per_client: n and S.
        train_samples, test_samples: of each client; 0 for all it is dealt.
        local_epochs: E of FedAvg's clients; the first is what the others are compared with.
        head_epochs: E of FedRep's clients for the head alone (the body has one).
        participation, rounds, batch_size, lr: r, T, B and the learning rate, those of McMahan et al. (2017) for this
            figure alone.
        precision: how products are computed.
    """

    data: str = "cifar10"
    clients: int = Field(default=100, ge=2)
    classes_per_client: int = Field(default=2, ge=1)
    train_samples: int = Field(default=0, ge=0)
    test_samples: int = Field(default=0, ge=0)
    local_epochs: tuple[int, ...] = (1, 2, 5, 10, 20)
    head_epochs: tuple[int, ...] = (1, 2, 5, 10, 20)
    participation: float = Field(default=0.1, gt=0, le=1)
    rounds: int = Field(default=100, ge=1)
    batch_size: int = Field(default=50, ge=1)
    lr: float = Field(default=0.1, gt=0)
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"

    def check(self) -> None:
        """Refuse epochs that are no growing list.

        Raises:
            ConfigError: in one sentence.
        """
        for name in ("local_epochs", "head_epochs"):
            epochs = getattr(self, name)
            if len(epochs) < 2 or min(epochs) < 1 or list(epochs) != sorted(set(epochs)):
                raise ConfigError(f"{name} is {list(epochs)}; name at least two whole numbers from 1 on, growing")

    def epochs_of(self, method: str) -> tuple[int, ...]:
        """E, of FedRep or FedAvg."""
        return self.head_epochs if method == "FedRep" else self.local_epochs


PAPER = EpochSettings()
SMALL = EpochSettings(
    clients=20,
    train_samples=250,
    test_samples=100,
    participation=0.5,
    local_epochs=(1, 2, 5, 10),
    head_epochs=(1, 2, 5, 10),
    precision="bf16",
)


@dataclass(frozen=True)
class Point:
    """A method with a number of epochs: by seed the mean accuracy (last 10 rounds) and the clients' final ones, both as
    shares; a seed with which training diverged has neither.
    """

    means: Mapping[int, float]
    clients: Mapping[int, Values]

    def of(self, seeds: list[int]) -> tuple[list[float], list[Values]]:
        """The same for these seeds, in their order."""
        return [self.means[seed] for seed in seeds], [self.clients[seed] for seed in seeds]


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    seeds = list(request.seed_range(3))
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    if request.scale == "small":
        most, images = max(settings.local_epochs + settings.head_epochs), settings.train_samples or "all"
        outcome.notes.append(
            f"Reduced: {settings.clients} clients of {images} training images instead of 100 of 500, "
            f"{settings.participation:.0%} of them in a round instead of 10 %, up to {most} epochs instead of 20, "
            f"products in {settings.precision}. Rounds, batches and rate are the paper's, so that an epoch of fewer "
            "images has fewer steps."
        )
    found = _measure(settings, seeds, request)
    _draw(outcome, settings, found)
    for name, E in found:
        if lost := [seed for seed in seeds if seed not in found[name, E].means]:
            outcome.notes.append(
                f"{_title(name, E)} diverged with {_seeds(lost)}, which {'is' if len(lost) == 1 else 'are'} left out "
                "wherever it is compared."
            )
    for name, one, other, text in _questions(settings):
        first, second = found[name, one], found[name, other]
        both = [seed for seed in seeds if seed in first.means and seed in second.means]
        if both:
            outcome.claims.append(difference(text, SOURCE, None, first.of(both), second.of(both)))
    outcome.notes.append(
        '"not below" and "does not gain" hold if the interval of the difference lies above 0, are open if it includes '
        "0, and fail if it lies below."
    )
    return outcome


def _questions(settings: EpochSettings) -> Iterator[tuple[str, int, int, str]]:
    """What is claimed: of which method, with how many epochs above how many, in words."""
    least, *_, most = settings.head_epochs
    for fewer, more in pairwise(settings.head_epochs):
        yield "FedRep", more, fewer, f"FedRep with {more} head epochs is not below FedRep with {fewer}"
    if len(settings.head_epochs) > 2:
        yield "FedRep", most, least, f"FedRep with {most} head epochs above FedRep with {least}"
    fewest, *others = settings.local_epochs
    for more in others:
        text = f"FedAvg does not gain from {more} local epochs over {fewest} (positive: {fewest} better)"
        yield "FedAvg", fewest, more, text


def _title(name: str, E: int) -> str:
    return f"{name} with {E} {'head' if name == 'FedRep' else 'local'} epoch{'s' if E > 1 else ''}"


def _seeds(seeds: list[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _measure(settings: EpochSettings, seeds: list[int], request: Request) -> dict[tuple[str, int], Point]:
    """Train both methods with every number of epochs and seed, all on the seed's own split."""

    @cache
    def dealt(seed: int) -> FederatedDataset:
        data = load_data(
            settings.data,
            settings.clients,
            classes_per_client=settings.classes_per_client,
            seed=seed,
            data_dir=request.data_dir,
        )
        if settings.train_samples:
            data = limit_samples(data, "train", settings.train_samples, seed)
        if settings.test_samples:
            data = limit_samples(data, "test", settings.test_samples, seed)
        return data

    run: dict[str, Any] = {
        **{key: getattr(settings, key) for key in ("participation", "rounds", "batch_size", "lr", "precision")},
        "eval_every": 20,
        "eval_last": 10,
    }
    arms = {
        (name, E): Arm(f"E = {E}", name, name.lower(), dealt, {**run, **_epochs(name, E)})
        for name in METHODS
        for E in settings.epochs_of(name)
    }
    measured = sweep(list(arms.values()), seeds, request, _read, may_diverge=True)
    found = {}
    for key, arm in arms.items():
        of_arm = measured[arm.key]
        finite = [seed for seed in seeds if seed not in of_arm.diverged]
        means, clients = zip(*of_arm.details, strict=True) if finite else ((), ())
        found[key] = Point(dict(zip(finite, means, strict=True)), dict(zip(finite, clients, strict=True)))
    return found


def _epochs(name: str, E: int) -> dict[str, Any]:
    return {"options": {"head_epochs": E}} if name == "FedRep" else {"local_epochs": E}


def _read(run: Run, data: FederatedDataset) -> tuple[float, Values]:
    """Mean accuracy over the last 10 rounds and the clients' final ones: FedAvg's of its global model."""
    means, clients = accuracies([run], "personal" if run.global_accuracy is None else "global")
    return means[0], clients[0]


def _draw(outcome: Outcome, settings: EpochSettings, found: Mapping[tuple[str, int], Point]) -> None:
    """The figure, and the same as a table with how many seeds every point has."""
    lines, rows = {}, []
    for name in METHODS:
        points = {}
        for E in settings.epochs_of(name):
            point = found[name, E]
            finite = list(point.means)
            if finite:
                points[E] = accuracy_interval(*point.of(finite))
            mean, low, high = points.get(E, (None, None, None))
            rows.append(
                {
                    "method": name,
                    "epochs": E,
                    "accuracy (%)": _percent(mean),
                    "low": _percent(low),
                    "high": _percent(high),
                    "seeds": len(finite),
                }
            )
        if points:
            lines[name] = Curve(list(points), *([p[i] for p in points.values()] for i in range(3)))
    if lines:
        outcome.figures["accuracy by local epochs"] = Figure(
            "local epochs E (FedRep: of the head)", "accuracy", lines, percent=True
        )
    outcome.add_table("accuracy by local epochs", rows)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


Experiment("fedrep-fig5", "accuracy against local epochs, FedAvg and FedRep", SOURCE, _run)
