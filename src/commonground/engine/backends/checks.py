"""What is let into a round, in every engine: complete updates of the right shapes, and numbers that are finite.

All values of a round are looked at together, by the largest magnitude of each tensor, and read in one transfer: each
transfer would wait for the device.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.engine.backends.client_result import ClientResult
from commonground.engine.divergence import largest_weight, why_not_finite
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.errors import NotFiniteError, UpdateError
from commonground.quoting import quoted

__all__ = [
    "LARGEST_FIGURE",
    "Place",
    "RoundMagnitudes",
    "check_scores",
    "check_tensor",
    "check_updates",
    "measure",
    "odd_updates",
    "refuse_not_finite",
    "settle",
    "validate_update",
    "who",
]

LARGEST_FIGURE = math.sqrt(sys.float_info.max)
"""A loss or a score beyond this has no finite square, which metrics need."""


class Place(NamedTuple):
    """A tensor of a round: of what it is (``update``, ``personal state``, …), of which client if of one, its name."""

    what: str
    client: int | None
    name: str


class RoundMagnitudes(NamedTuple):
    """A round's results with the losses read, and the largest magnitude of every tensor (infinite or NaN if one is)."""

    results: list[ClientResult]
    sizes: dict[Place, float]


def who(setup: Setup, client: int, round: int) -> str:
    """A client and a round, for messages."""
    return f"client {setup.data.shown_name(client)} in round {round}"


# -- what is there --------------------------------------------------------------------------------------------------


def check_updates(setup: Setup, results: Sequence[ClientResult], round: int) -> None:
    """:func:`validate_update` of all of them, and that they hold the same tensors."""
    for result in results:
        validate_update(setup, result, round)
    for error in odd_updates(setup, results, round).values():
        raise error


def odd_updates(setup: Setup, results: Sequence[ClientResult], round: int) -> dict[int, UpdateError]:
    """Updates that lack a tensor which most others hold, or hold one that these lack: what may be left out, such as a
    method's own tensors, has to be left out by all, or nothing could be averaged. Those that are silent are none.

    Returns:
        By client, what is wrong.
    """
    names = {r.update.client: frozenset(r.update.tensors) for r in results if r.update.tensors}
    if len(set(names.values())) < 2:
        return {}
    counts = Counter(names.values())
    usual = max(counts, key=lambda held: (counts[held], len(held)))
    found = {}
    for client, held in names.items():
        if held != usual:
            whose = f"the update of {who(setup, client, round)}"
            lacks, more = sorted(usual - held), sorted(held - usual)
            what = f"lacks the tensor {quoted(lacks[0])} of" if lacks else f"holds the tensor {quoted(more[0])}, unlike"
            found[client] = UpdateError(f"{whose} {what} the others")
    return found


def validate_update(setup: Setup, result: ClientResult, round: int) -> None:
    """Refuse an update that is not complete, of the right shapes and types, and from the client's number of samples.

    Raises:
        UpdateError: naming client, round and tensor.
    """
    update = result.update
    whose = f"the update of {who(setup, update.client, round)}"
    uploads = setup.uploads
    expected = {**setup.initial, **setup.initial_shared, **uploads}
    travelling = [*(name for name in setup.initial_shared if name not in setup.initial), *uploads]
    wanted = [*setup.groups.names(setup.algorithm.sends(round)), *travelling]
    needed = {*setup.groups.trainable(setup.algorithm.sends(round)), *uploads}
    if setup.algorithm.may_stay_silent and not update.tensors:
        needed = set()
    for name in wanted:
        if name not in update.tensors and name in needed:
            raise UpdateError(f"{whose} lacks the tensor '{name}'")
    for name, value in update.tensors.items():
        if name not in wanted:
            raise UpdateError(f"{whose} holds the tensor {quoted(name)}, which this algorithm does not send")
        check_tensor(whose, name, value, expected[name])
    owned = int(setup.data.train_sizes[update.client])
    if type(update.samples) is not int or update.samples != owned:
        raise UpdateError(f"{whose} claims {update.samples!r} training samples, and the client has {owned}")


def check_tensor(whose: str, name: str, value: Tensor, expected: Tensor) -> None:
    """Refuse a tensor of another shape or number type than expected.

    Raises:
        UpdateError: begins with ``whose``.
    """
    shape = tuple(expected.shape)
    if tuple(value.shape) != shape:
        raise UpdateError(f"{whose} has {quoted(name)} of shape {tuple(value.shape)} instead of {shape}")
    if value.dtype != expected.dtype:
        raise UpdateError(f"{whose} has {quoted(name)} as {value.dtype} instead of {expected.dtype}")


# -- how large it is ------------------------------------------------------------------------------------------------


def settle(setup: Setup, results: Sequence[ClientResult], round: int) -> list[ClientResult]:
    """Wait for a round's results, once for all: take nothing that is not finite, complete and of the right shape, and
    read the losses.

    Raises:
        UpdateError: naming client, round and tensor.
    """
    check_updates(setup, results, round)
    measured = measure(setup, results)
    refuse_not_finite(setup, measured, round)
    return measured.results


def measure(
    setup: Setup, results: Sequence[ClientResult], others: Iterable[tuple[Place, Tensor]] = ()
) -> RoundMagnitudes:
    """Wait for a round's results, and whatever else is to be looked at with them, in one transfer.

    Args:
        setup: of the run.
        results: of the round.
        others: more tensors.
    """
    tensors = [(Place("update", r.update.client, n), v) for r in results for n, v in r.update.tensors.items()]
    tensors += [
        (Place("personal state", r.update.client, n), v) for r in results for n, v in (r.personal or {}).items()
    ]
    tensors += others
    # Whole numbers are finite, and nothing has no largest value.
    tensors = [(place, torch.view_as_real(v) if v.is_complex() else v) for place, v in tensors]
    tensors = [(place, v) for place, v in tensors if v.is_floating_point() and v.numel()]
    losses = [r.loss for r in results if isinstance(r.loss, Tensor)]
    with torch.no_grad():
        look = _ends if setup.device.type == "cpu" else _magnitudes
        ends = look([value for _, value in tensors]) if tensors else []
        read = iter(_read([*(end for both in ends for end in both), *losses], setup.device))
    sizes = {place: _largest([next(read) for _ in both]) for (place, _), both in zip(tensors, ends, strict=True)}
    settled = [replace(r, loss=next(read)) if isinstance(r.loss, Tensor) else r for r in results]
    if setup.config.dp is not None:  # no client's data end a private run by how large its loss is
        settled = [
            r if r.loss is None or abs(float(r.loss)) <= LARGEST_FIGURE else replace(r, loss=None) for r in settled
        ]
    return RoundMagnitudes(settled, sizes)


def _ends(values: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Of every tensor its smallest and its largest value: a third of the time of looking at every value for itself."""
    return [(value.amin(), value.amax()) for value in values]


def _magnitudes(values: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Of every tensor its largest magnitude, by a few launches for all."""
    return [(size,) for size in torch._foreach_norm(list(values), math.inf)]


def _largest(ends: Sequence[float]) -> float:
    """The largest magnitude; NaN if any is (a tensor with one has no other end)."""
    return math.nan if any(map(math.isnan, ends)) else max(map(abs, ends))


def _read(numbers: Sequence[Tensor], device: torch.device) -> list[float]:
    """Tensors of one number each, as numbers."""
    if not numbers:
        return []
    kinds = {(n.dtype, n.device) for n in numbers}
    if len(kinds) > 1:
        wide = torch.float64 if any(dtype == torch.float64 for dtype, _ in kinds) else torch.float32
        numbers = [n.to(device, wide) for n in numbers]
    values: list[float] = torch.stack(list(numbers)).tolist()
    return values


def refuse_not_finite(setup: Setup, measured: RoundMagnitudes, round: int) -> None:
    """Refuse updates and personal states with a value that is not finite, weights of an extreme size, and losses that
    are not finite.

    Raises:
        NotFiniteError: naming client, round and tensor.
    """
    buffers = set(setup.initial) - set(setup.groups.trainable("all"))
    largest = largest_weight(getattr(torch, setup.config.dtype))
    losses = {r.update.client: r.loss for r in measured.results}
    for place, size in measured.sizes.items():
        if place.client is None or place.what == "reply":
            continue
        extreme = size > largest and place.what == "update" and place.name not in buffers
        if extreme or not math.isfinite(size):
            how = "that is not finite" if not math.isfinite(size) else f"({size:.3g}) whose square is not finite"
            whose = f"the {place.what} of {who(setup, place.client, round)}"
            loss = losses.get(place.client)
            why = why_not_finite(setup, place.client, None if loss is None else float(loss))
            raise NotFiniteError(f"{whose} has a value in {quoted(place.name)} {how}: {why}")
    for result in measured.results:
        client, loss = result.update.client, 0.0 if result.loss is None else float(result.loss)
        if not abs(loss) <= LARGEST_FIGURE:
            how = "is not finite" if not math.isfinite(loss) else f"({loss:.3g}) has a square that is not finite"
            why = why_not_finite(setup, client)
            raise NotFiniteError(f"the training loss of {who(setup, client, round)} {how}: {why}")


# -- what a test says -----------------------------------------------------------------------------------------------

CHECKED = 50_000  # clients at once, whose figures take copies


def check_scores(setup: Setup, scores: Scores, round: int, which: str = "personal") -> None:
    """Refuse figures of a test that are not finite, or cannot be: of another number of samples than a client has, or
    beyond what the task's scores can reach.

    Raises:
        UpdateError: naming client, round and figure.
    """
    for start in range(0, len(scores.clients), CHECKED):
        _check_scores(setup, scores.between(start, start + CHECKED), round, which)


def _check_scores(setup: Setup, scores: Scores, round: int, which: str) -> None:
    owned = setup.judged(which)[1][scores.clients]
    for c in np.flatnonzero(scores.count != owned)[:1]:
        whose = who(setup, int(scores.clients[c]), round)
        raise UpdateError(f"the test of {whose} is of {scores.count[c]} samples, and the client has {owned[c]}")
    loss = scores.loss.astype(np.float64, copy=False)
    _refuse_figure(setup, scores, "loss", ~(np.abs(loss) <= LARGEST_FIGURE), loss, round)
    bounds = setup.data.task.score_bounds(setup.data.classes)
    for name, sums in scores.sums.items():
        _refuse_figure(setup, scores, name, ~(np.abs(sums) <= LARGEST_FIGURE), sums, round)
        if name in bounds:
            low, high, whole, _ = bounds[name]
            count = scores.count.reshape(-1, *[1] * (sums.ndim - 1))
            room = 0.0 if whole else 1e-9 * count  # sums of fractions are rounded
            outside = (sums < low * count - room) | (sums > high * count + room) | (whole & (sums != np.floor(sums)))
            for c in np.flatnonzero(outside.reshape(len(sums), -1).any(axis=1))[:1]:
                worst = np.atleast_1d(sums[c])[np.atleast_1d(outside[c])][0]
                raise UpdateError(
                    f"the test of {who(setup, int(scores.clients[c]), round)} says {quoted(name)}={worst:.17g} over "
                    f"{owned[c]} samples; {'whole numbers of' if whole else 'from'} {low * owned[c]:g} to "
                    f"{high * owned[c]:g} are possible"
                )


def _refuse_figure(
    setup: Setup, scores: Scores, name: str, bad: npt.NDArray[np.bool_], values: npt.NDArray[np.float64], round: int
) -> None:
    for c in np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[:1]:
        worst = np.atleast_1d(values[c])[np.atleast_1d(bad[c])][0]
        raise NotFiniteError(
            f"the test of {who(setup, int(scores.clients[c]), round)} says {quoted(name)}={worst:.3g}, which is not "
            "finite or has no finite square"
        )
