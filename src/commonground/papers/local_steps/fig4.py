"""Local steps' Figure 4: images with growing feature noise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from pydantic import Field

from commonground.data import FederatedDataset
from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.local_steps.images import SEEDS, NoiseSettings, deal
from commonground.papers.local_steps.pictures import write_pictures
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request

__all__ = ["PictureSettings"]

SOURCE = "Bao, Crawshaw, Liu 2024, Figure 4"
KEPT = 0.9  # correlation, ours: the paper says "overall the images retain their original signal"


class PictureSettings(NoiseSettings):
    """What the pictures are made with.

    Attributes:
        images: of every client, for the correlations.
    """

    heterogeneity: tuple[float, ...] = (0.5,)
    noises: tuple[float, ...] = (0.0, 0.03125, 0.0625, 0.125, 0.25)
    images: int = Field(default=100, ge=1)


def _run(request: Request) -> Outcome:
    settings = request.choose(PictureSettings(), PictureSettings())
    settings.check()
    noises = sorted(settings.noises)
    seeds = list(request.seed_range(SEEDS))
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    correlations: dict[float, list[float]] = {noise: [] for noise in noises}
    panels: dict[str, Any] = {}
    for seed in seeds:
        for noise in noises:
            data = deal(settings, request, settings.heterogeneity[0], noise, seed)
            clean, noisy = _images(data, settings.images)
            correlations[noise].append(_correlation(clean, noisy))
            if seed == seeds[0]:
                panels[f"ρ = {noise:g}"] = noisy[:, 0]
    write_pictures(request.folder / "figures" / "feature-noise.png", panels, columns=settings.clients)
    most = noises[-1]
    text = f"images keep their signal at ρ = {most:g}: mean correlation with the clean image (at least {KEPT:g})"
    judge(outcome, text, SOURCE, "retain their original signal", correlations[most], "above", KEPT)
    for less, more in pairwise(noises):
        text = f"more noise at ρ = {more:g} than at {less:g}: the correlation falls"
        falls = np.array(correlations[more]) - np.array(correlations[less])
        judge(outcome, text, SOURCE, "slightly more noise", falls, "below")
    outcome.add_table(
        "correlation of noisy with clean images",
        [{"ρ": noise, "mean": round(float(np.mean(values)), 4)} for noise, values in correlations.items()],
    )
    outcome.notes = [
        f"One image of each of {settings.clients} clients, a row for each ρ, seed {seeds[0]}; correlations over "
        f"{settings.images} images of every client. Values below 0 are drawn as 0; models see them as they are. (The "
        "authors' code subtracts in uint8, where they wrap around to bright ones.)"
    ]
    return outcome


def _images(data: FederatedDataset, count: int) -> tuple[Any, Any]:
    """Clean and noisy training images [clients, count, height, width, channels], from 0 to 1."""
    rows = [data.train_indices(c)[:count] for c in range(data.clients)]
    fewest = min(len(r) for r in rows)
    clean = np.stack([data.x_train[r[:fewest]] * data.preprocess.scale for r in rows])
    if data.noise is None:
        return clean, clean
    foreign = data.noise.images * data.preprocess.scale
    return clean, clean - data.noise.strength * foreign[:, None]


def _correlation(one: Any, other: Any) -> float:
    """Mean over images of the correlation between two versions of it."""
    a, b = (x.reshape(-1, np.prod(x.shape[2:])) for x in (one, other))
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(1) / np.maximum(norms, 1e-12)).mean())


Experiment("local-steps-fig4", "images with feature noise", SOURCE, _run)
