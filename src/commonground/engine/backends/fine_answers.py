"""A client's finer figures as tensors of its answer: figures, and sums over its rows; never a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from commonground.algorithms import Tensors
from commonground.engine.backends.checks import LARGEST_FIGURE, check_tensor
from commonground.engine.fine_scores import FineScores
from commonground.engine.own_metrics import OwnFigure
from commonground.errors import UpdateError
from commonground.quoting import quoted
from commonground.tasks import FineFigures
from commonground.tasks.bounds import Bounds

__all__ = ["fine_of_answer", "fine_tensors"]


def fine_tensors(fine: FineScores | None) -> Tensors:
    """What a single client tells: ``figure/NAME`` [], NaN where it is not defined, and ``KIND/NAME``, its sums."""
    if fine is None:
        return {}
    sums = {f"{k}/{name}": value for k, counts in enumerate(fine.counts) for name, value in counts.items()}
    figures = {f"figure/{name}": value[0] for name, value in fine.figures.items()}
    return {name: torch.as_tensor(np.asarray(value, dtype=np.float64)) for name, value in {**figures, **sums}.items()}


def fine_of_answer(
    kinds: Sequence[FineFigures], tensors: Tensors, samples: int, outputs: int, whose: str
) -> FineScores:
    """A client's figures from its answer.

    Args:
        kinds: of figures.
        tensors: of the answer.
        samples: the client's test samples.
        outputs: of the model.
        whose: begins messages.

    Raises:
        UpdateError: something is missing, unknown, of another shape or type, or cannot be.
    """
    expected = dict(_expected(kinds, outputs))
    for name in expected:
        if name not in tensors:
            raise UpdateError(f"{whose} lacks the figure {quoted(name)}")
    for name, value in tensors.items():
        if name not in expected:
            raise UpdateError(f"{whose} holds the figure {quoted(name)}, which was not asked for")
        bounds = expected[name]
        check_tensor(whose, name, value, torch.empty(bounds.shape, dtype=torch.float64))
        _check_sums(f"{whose} says {quoted(name)}", value.numpy(), bounds, 1 if name.startswith("figure/") else samples)
    figures = {name: tensors[f"figure/{name}"].reshape(1).numpy() for kind in kinds for name in kind.names}
    counts = [{name: tensors[f"{k}/{name}"].numpy() for name in kind.bounds(outputs)} for k, kind in enumerate(kinds)]
    told = FineScores(kinds, figures, counts)
    _check_agreement(told, whose)
    return told


def _check_agreement(told: FineScores, whose: str) -> None:
    """Refuse figures that do not follow from the client's own sums, as far as they do."""
    within = told.within
    for name, expected in told.over_rows.items():
        said = float(told.figures[name][0])
        if math.isnan(expected) and any(isinstance(k, OwnFigure) and name in k.names for k in told.kinds):
            continue  # a number of a set of rows, of which there are no sums
        off = within.get(name, 0.0) + 1e-9 * (1 + abs(expected))
        if math.isnan(said) != math.isnan(expected) or abs(said - expected) > off:
            raise UpdateError(f"{whose} says {quoted(name)}={said:.17g}, and by its own sums that is {expected:.17g}")


def _expected(kinds: Sequence[FineFigures], outputs: int) -> Iterator[tuple[str, Bounds]]:
    for k, kind in enumerate(kinds):
        yield from ((f"figure/{name}", Bounds()) for name in kind.names)
        yield from ((f"{k}/{name}", bounds) for name, bounds in kind.bounds(outputs).items())


def _check_sums(says: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float64]], bounds: Bounds, rows: int) -> None:
    """Refuse sums over so many rows that cannot be; a figure of a client alone may be NaN."""
    plain = bounds == Bounds()
    with np.errstate(invalid="ignore"):
        room = 1e-9 * rows
        fits = (
            (value >= bounds.low * rows - room)
            & (value <= bounds.high * rows + room)
            & (np.abs(value) <= LARGEST_FIGURE)
        )
    if plain:
        fits |= np.isnan(value)
    if bounds.whole:
        fits &= value == np.floor(value)
    if not fits.all():
        raise UpdateError(f"{says}={value[~fits].flat[0]:.17g}, which cannot be of {rows} samples")
