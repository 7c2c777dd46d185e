"""Gradients of single examples, by ``torch.func``, cut and added up: for one client and for clients side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from commonground.algorithms import Batch, Tensors
from commonground.engine.clients.stacked_layers import stackable_layers
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError, ModelError
from commonground.models import call_with
from commonground.privacy.examples import clipped_sums

__all__ = ["ExampleGradients"]

# Numbers of single examples' gradients that are held at once: 64 MiB in float32.
HELD = 1 << 24


@dataclass(frozen=True)
class ExampleGradients:
    """What a batch's examples say of a model, no example more than another.

    Args:
        setup: model, objective and precision.
        clip: C, the largest L2 norm of an example's gradient.
    """

    setup: Setup
    clip: float

    def of_one(self, leaves: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
        """The sum of the cut gradients by name, and the batch's mean loss; other tensors are the model's own."""
        each = vmap(self._of_example({}), (None, 0, 0, 0))
        return self._in_parts(lambda part: each(leaves, part.x, part.y, part.masks or {}), leaves, batch)

    def of_each(self, leaves: Tensors, batch: Batch, own: Tensors, common: Tensors) -> tuple[Tensors, Tensor]:
        """As :meth:`of_one` for every client of a cohort, all with a leading axis.

        Args:
            leaves: what is differentiated for [C, …].
            batch: of all clients [C, rows, …].
            own: the model's other tensors that differ between clients [C, …].
            common: those that do not.
        """

        def client(leaves: Tensors, own: Tensors, x: Tensors, y: Tensor, masks: Tensors) -> tuple[Tensors, Tensor]:
            found: tuple[Tensors, Tensor] = vmap(self._of_example({**common, **own}), (None, 0, 0, 0))(
                leaves, x, y, masks
            )
            return found

        each = vmap(client)
        return self._in_parts(lambda part: each(leaves, own, part.x, part.y, part.masks or {}), leaves, batch)

    def _of_example(self, fixed: Mapping[str, Tensor]) -> Callable[..., tuple[Tensors, Tensor]]:
        setup = self.setup

        def loss(leaves: Tensors, x: Tensors, y: Tensor, masks: Tensors) -> Tensor:
            one = {name: value.unsqueeze(0) for name, value in x.items()}
            here = {name: value.unsqueeze(0) for name, value in masks.items()}
            with setup.autocast(), stackable_layers(setup.model):
                output: Tensor = call_with(setup.model, {**fixed, **leaves, **here}, one)
            return setup.objective.loss(setup.wide(output), y.unsqueeze(0)).sum()

        found: Callable[..., tuple[Tensors, Tensor]] = grad_and_value(loss)
        return found

    def _in_parts(
        self, gradients: Callable[[Batch], tuple[Tensors, Tensor]], leaves: Tensors, batch: Batch
    ) -> tuple[Tensors, Tensor]:
        """A batch a few rows at a time, so that all examples' gradients never exist at once."""
        axis, rows = batch.weight.ndim - 1, batch.weight.shape[-1]
        size = max(1, HELD // max(1, sum(value.numel() for value in leaves.values())))
        sums: Tensors = {}
        losses = []
        for first in range(0, rows, size):
            part = _rows(batch, axis, first, min(size, rows - first))
            try:
                found, loss = gradients(part)
            except (CommonGroundError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                text = str(error).partition("\n")[0].split(". ")[0].removeprefix("vmap: ") or type(error).__name__
                raise ModelError(
                    f"--dp example needs the gradients of single examples, which the model or a loss of one's own does "
                    f"not give ({text})"
                ) from error
            losses.append(loss.detach() * part.weight)
            cut = clipped_sums({name: value.detach() for name, value in found.items()}, part.weight, self.clip)
            sums = {name: sums[name] + value if sums else value for name, value in cut.items()}
        return sums, torch.cat(losses, axis).sum(axis) / batch.weight.sum(axis).clamp(min=1)


def _rows(batch: Batch, axis: int, first: int, count: int) -> Batch:
    def part(value: Tensor) -> Tensor:
        return value.narrow(axis, first, count)

    masks = {name: part(mask) for name, mask in (batch.masks or {}).items()}
    x = {name: part(value) for name, value in batch.x.items()}
    return Batch(x, part(batch.y), part(batch.weight), masks)
