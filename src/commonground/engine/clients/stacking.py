"""One forward pass of many clients: through ``torch.func``, or folded into one batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Batch, Tensors
from commonground.data.inputs import Inputs, each, to_device
from commonground.engine.clients.batches import real_rows
from commonground.engine.clients.folding import captured_input, fold_call
from commonground.engine.clients.stacked_layers import stackable_layers
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError, ModelError
from commonground.models import call_with
from commonground.models.heads import inputs_of

__all__ = ["Stacking", "call_stacked", "names_inside", "stacking_of"]


def names_inside(module: nn.Module, values: Tensors) -> dict[str, str]:
    """Tensors of a module that goes by the whole model's names (the model, or its leading layers)."""
    own = {name for name, _ in module.named_parameters()} | {name for name, _ in module.named_buffers()}
    return {name: name for name in values if name in own}


def call_stacked(
    module: nn.Module,
    names: Mapping[str, str],
    values: Tensors,
    own: Collection[str],
    masks: Tensors,
    x: Inputs,
    head: nn.Module | None,
    features: bool,
    there: Tensor | None = None,
    lone: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run ``module`` for every client on its own rows [C, B, …].

    Args:
        module: the model or the rest of a split.
        names: names in the whole model to names inside ``module``.
        values: tensors by name in the whole model.
        own: names of those that carry the leading axis.
        masks: dropout masks by buffer name, stacked.
        x: inputs, stacked.
        head: the model's head, whose input is asked for.
        features: whether to return what the head saw as well.
        there: [C, B] 1 for a client's row and 0 for padding, where it trains.
        lone: a client that has a batch of a single sample, if any.
    """
    stacked = {inner: values[name] for name, inner in names.items() if name in own}
    common = {inner: values[name] for name, inner in names.items() if name not in own}
    if features and head is None:
        raise ModelError("this method needs the head's input, but no single submodule of the model is its head")

    def one(mine: Tensors, my_masks: Tensors, rows: Inputs, mine_there: Tensor | None) -> tuple[Tensor, ...]:
        watched: AbstractContextManager[list[Tensor]] = nullcontext([])
        if features and head is not None:
            watched = inputs_of(head)
        with watched as given, stackable_layers(module, mine_there, lone):
            out = call_with(module, {**common, **mine, **my_masks}, rows)
        return (out, given[0]) if features else (out,)

    try:
        result = vmap(one, in_dims=(0, 0, 0, None if there is None else 0))(stacked, masks, x, there)
    except CommonGroundError:
        raise
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        text = str(error).partition("\n")[0].split(". ")[0].removeprefix("vmap: ") or type(error).__name__
        raise ModelError(f"the model cannot be stacked over clients ({text}); take the engine 'processes'") from error
    return result[0], result[1] if features else None


class Stacking:
    """How a cohort's stacked rows go through a module: every client's own by ``torch.func``.

    Attributes:
        rows_per_pass: rows of one pass through a part that all clients have in common.
        lone: a client that has a batch of a single sample in what is trained now, if any.
    """

    rows_per_pass = 4096
    lone: int | None = None

    def __init__(self, setup: Setup) -> None:
        self.model, self.head = setup.model, setup.head_module

    def run(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        values: Tensors,
        own: Collection[str],
        batch: Batch,
        features: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs [C, B, …] and, if asked for, what the head saw; arguments as of :func:`call_stacked`."""
        masks = batch.masks or {}
        return call_stacked(module, names, values, own, masks, batch.x, self.head, features, batch.weight, self.lone)


class FoldedStacking(Stacking):
    """As :class:`Stacking`, where all clients' rows go through the model's frozen part at once; padding stays zero."""

    rows_per_pass = 64

    def run(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        values: Tensors,
        own: Collection[str],
        batch: Batch,
        features: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """See :meth:`Stacking.run`."""
        if module is not self.model:  # the rest of a split, which is trained as a whole
            return super().run(module, names, values, own, batch, features)
        clients, rows = batch.weight.shape
        there = real_rows(batch.weight)
        moved = to_device(there, batch.weight.device)
        x = each(lambda value: value.flatten(0, 1)[there], batch.x)
        masks = {name: mask.flatten(0, 1)[moved] for name, mask in (batch.masks or {}).items()}
        with captured_input(self.head if features else None) as box:
            out = fold_call(module, {**values, **masks}, x, there // rows)

        def spread(part: Tensor) -> Tensor:
            whole = part.new_zeros(clients * rows, *part.shape[1:])
            return whole.index_copy(0, moved, part).view(clients, rows, *part.shape[1:])

        return spread(out), spread(box()) if features else None


def stacking_of(setup: Setup) -> Stacking:
    """What suits the model."""
    return FoldedStacking(setup) if setup.folds else Stacking(setup)
