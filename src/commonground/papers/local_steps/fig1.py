"""Local steps' Figure 1: the first layer's filters of Local SGD and of Parallel SGD, and how distinct they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from commonground.errors import RunError
from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.local_steps.images import (
    SEEDS,
    ImageCase,
    ImageSettings,
    image_notes,
    measure,
    name_of,
    paper_settings,
    small_settings,
)
from commonground.papers.local_steps.pictures import write_pictures
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request

__all__ = ["distinctness"]

SOURCE = "Bao, Crawshaw, Liu 2024, Figure 1"
CONTRAST = 20.0  # the authors draw sigmoid(20 · weight)

_TWO = {"heterogeneity": (0.25,), "augment": ("flip-crop",)}
SMALL = small_settings(ImageSettings, intervals=(1, 16), **_TWO)
PAPER = paper_settings(ImageSettings, intervals=(1, 32), **_TWO)

# Name of the number, what it is, and whether more of it means more distinct filters.
NUMBERS = {
    "effective rank": "exponential of the entropy of the filters' squared singular values, as shares of their sum",
    "nearest cosine": "mean over filters of the largest |cosine| with another filter",
}


def distinctness(filters: Tensor) -> dict[str, float]:
    """How distinct the filters of a convolution are.

    Args:
        filters: [filters, channels, height, width], at least two.

    Returns:
        ``effective rank``: exp of the entropy of σ²/Σσ² over the singular values σ of the filters as unit vectors, from
        1 (all alike) to their number (all at right angles; Roy and Vetterli 2007, with squares). ``nearest cosine``:
        the mean over filters of the largest |cosine| with another, from 0 (all at right angles) to 1 (all alike).
        Filters that are zero are left out.
    """
    rows = filters.detach().double().flatten(1)
    norms = rows.norm(dim=1, keepdim=True)
    rows = (rows / norms.clamp(min=1e-300))[norms[:, 0] > 1e-12 * norms.max()]
    if not len(rows):
        raise RunError("the filters of a trained network are all zero: it has died, and nothing can be said of them")
    share = torch.linalg.svdvals(rows) ** 2
    share = share / share.sum()
    entropy = -(share * share.clamp(min=1e-300).log()).sum()
    cosines = (rows @ rows.T).abs().fill_diagonal_(0)
    return {"effective rank": float(entropy.exp()), "nearest cosine": float(cosines.max(1).values.mean())}


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    intervals = settings.with_parallel()
    seeds = list(request.seed_range(SEEDS))
    h, way = settings.heterogeneity[0], settings.augment[0]
    arms = [ImageCase(i, h, way) for i in intervals]
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    found = measure(settings, arms, seeds, request, outcome.notes)
    numbers = {arm: [distinctness(f) for f in found[arm].filters] for arm in arms}
    parallel, *local = arms
    for arm in local:
        for name, what in NUMBERS.items():
            values = np.array([n[name] for n in numbers[arm]]) - np.array([n[name] for n in numbers[parallel]])
            more = name == "effective rank"
            judge(
                outcome,
                f"filters of {name_of(arm.interval)} more distinct than Parallel SGD's: {name} ({what}), "
                f"{'above' if more else 'below'} it",
                SOURCE,
                "more distinguishing features",
                values,
                "above" if more else "below",
            )
    outcome.add_table(
        "how distinct the first layer's filters are",
        [
            {
                "method": name_of(arm.interval),
                **{name: round(float(np.mean([n[name] for n in numbers[arm]])), 4) for name in NUMBERS},
                "test accuracy (%)": round(float(found[arm].test.mean()), 2),
                "training accuracy (%)": round(float(found[arm].train.mean()), 2),
            }
            for arm in arms
        ],
    )
    _draw(request.folder, arms, [found[arm].filters[0] for arm in arms])
    outcome.notes = [
        *image_notes(settings, request),
        *outcome.notes,
        f"The picture shows sigmoid({CONTRAST:g} · weight), as the authors draw it, for seed "
        f"{found[parallel].seeds[0]}. The paper compares the pictures by eye and names no number and no interval for "
        "its Local SGD; effective rank and nearest cosine are ours.",
    ]
    return outcome


def _draw(folder: Path, arms: Sequence[ImageCase], filters: Sequence[Tensor]) -> None:
    panels = {
        name_of(arm.interval): torch.sigmoid(CONTRAST * f.detach()).movedim(1, -1).contiguous().numpy()
        for arm, f in zip(arms, filters, strict=True)
    }
    write_pictures(folder / "figures" / "filters.png", panels)


Experiment("local-steps-fig1", "first-layer filters of Local SGD and Parallel SGD", SOURCE, _run)
