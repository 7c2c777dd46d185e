"""How many samples Lemma 5.3 and Theorem 5.4 of RoLoRA ask for, and claims that are shown where there are fewer."""

from __future__ import annotations

from dataclasses import replace

import torch

from commonground.papers.claims import fraction
from commonground.papers.outcome import Claim

__all__ = ["always", "enough_samples", "too_few"]


def enough_samples(samples: int, dimension: int) -> bool:
    """Whether m can be Ω(q), q ≥ d·log(2/ε0)/ε2²: the constant is unknown, but m is not below d."""
    return samples >= dimension


def too_few(samples: int, dimension: int, what: str) -> list[str]:
    """A note where there are not enough samples."""
    if enough_samples(samples, dimension):
        return []
    return [
        f"Measured with m = {samples} samples, fewer than d = {dimension}; {what} for m = Ω(q) with q ≥ "
        "d·log(2/ε0)/ε2², so that what is claimed with them is shown and not judged."
    ]


def always(text: str, source: str, happened: torch.Tensor, judged: bool = True) -> Claim:
    """That it is so in every case of every seed; where that is not judged, the share of seeds."""
    if judged:
        return fraction(text, source, 1.0, happened)
    every = happened.reshape(len(happened), -1).all(dim=1)
    return replace(fraction(text, source, 1.0, every, 1.0), holds=None)
