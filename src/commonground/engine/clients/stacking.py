"""One forward pass of many clients: through ``torch.func``, or folded into one batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Batch, Tensors
from commonground.data.inputs import Inputs, each
from commonground.engine.clients.folding import captured_input, fold_call
from commonground.engine.clients.stacked_layers import stackable_layers, why_not_stackable
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError, ConfigError, ModelError
from commonground.models import call_with
from commonground.user_code import failing_as

__all__ = ["Stacking", "call_stacked", "check_stackable", "names_inside", "stacking_of"]

TOLERANCE = 1e-3  # between sums that may be added in another order


def check_stackable(setup: Setup) -> None:
    """Raise a ModelError or ConfigError if the model cannot be stacked over clients of unequal size."""
    if setup.behaviour.draws:
        raise ConfigError(
            "the engine 'batched' computes all clients in one call and cannot give each the draws that the model makes "
            "in its forward; use --engine processes or serial (or nn.Dropout layers that a call uses once each, whose "
            "masks are drawn outside)"
        )
    for name in setup.behaviour.counters:
        raise ConfigError(
            f"the engine 'batched' computes all clients in one call, where the model's forward would change '{name}' "
            "for all at once; use --engine processes or serial"
        )
    for name, module in setup.model.named_modules():
        if (why := why_not_stackable(name, module, folded=setup.folds)) is not None:
            raise ModelError(f"the engine 'batched' cannot {why}; use --engine processes or serial")
    _try_stacking(setup)


def _try_stacking(setup: Setup) -> None:
    """Raise a ModelError if the model cannot be computed and trained for two clients at once (its forward branches on
    values), or would be trained otherwise than by itself: where a row sees the rows beside it, it would see the padding
    of a shorter batch as well, and not every operation has the same gradient mapped over clients.
    """
    if setup.folds or setup.device.type == "meta":  # a frozen model of ours; or no numbers to compare
        return
    # Of one row it would not be seen that a model joins rows: it fits every number of them.
    client = int((setup.data.train_sizes > 1).argmax())
    index = setup.data.train_indices(client)[:2]
    stored, _ = setup.inputs.rows("train", index)
    x = setup.inputs.arrange(stored)
    padded = each(lambda v: torch.cat([v, v[:1]]), x)
    there = torch.ones(2, len(index) + 1, dtype=setup.inputs.dtype, device=setup.device)
    there[:, -1] = 0
    values = setup.moved(setup.initial)
    names = names_inside(setup.model, values)
    masks = {f"{name}.mask": there.new_ones(()) for name in setup.dropouts}
    stacked_masks = {name: mask.expand(2) for name, mask in masks.items()}
    for training in (False, True):
        setup.model.train(training)
        leaves = {n: v.expand(2, *v.shape).clone().requires_grad_(training) for n, v in values.items()}
        rows = each(lambda v: torch.stack([v, v]), padded)  # anew: a forward may change what it is given
        with setup.keyed("trial"), torch.set_grad_enabled(training):
            out, _ = call_stacked(setup.model, names, leaves, set(values), stacked_masks, rows, None, False, there)
        if training:
            out = out[:, : len(index)]
            with failing_as("the model cannot be stacked over clients"):
                gradients = torch.autograd.grad(_along(out), list(leaves.values()), allow_unused=True)
            # Of the second client: a rule of PyTorch's for maps that is wrong may be right for the first.
            _check_as_alone(setup, values | masks, x, out[1].detach(), [g if g is None else g[1] for g in gradients])
    setup.model.eval()


def _along(out: Tensor) -> Tensor:
    """A number whose gradient is that of no sum: of a softmax's outputs that would be zero."""
    return (out * torch.linspace(1, 2, out[0].numel(), dtype=out.dtype, device=out.device).view_as(out[0])).sum()


def _check_as_alone(setup: Setup, values: Tensors, x: Inputs, out: Tensor, gradients: Sequence[Tensor | None]) -> None:
    """Raise a ModelError if a client alone would have other outputs and gradients than in company.

    Args:
        setup: of the run; the model is in training mode.
        values: its tensors and masks by name.
        x: the client's rows.
        out, gradients: what the client had beside others and padding, in the order of the tensors.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    try:
        with setup.keyed("trial"):
            alone = call_with(setup.model, leaves, x)
        own = torch.autograd.grad(
            _along(alone.unsqueeze(0)), list(leaves.values())[: len(gradients)], allow_unused=True
        )
    except Exception:  # a layer that does not take so few rows says so when it trains
        return
    pairs = [(one, other) for one, other in zip(gradients, own, strict=True) if one is not None and other is not None]
    alone = alone.detach()
    largest = max((float(other.abs().max()) for _, other in pairs if other.numel()), default=0.0)
    off = max((float((one - other).abs().max()) for one, other in pairs if other.numel()), default=0.0)
    outputs = float((out - alone).abs().max()) > TOLERANCE * float(alone.abs().max())
    if outputs or off > TOLERANCE * largest:
        what = "outputs" if outputs else "gradients"
        raise ModelError(
            f"the model's {what} for a client are not the same beside other clients' and padding rows, so that the "
            "engine 'batched' would train another model; use --engine processes or serial"
        )


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
        box: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, i: box.append(i[0])) if features and head else None
        try:
            with stackable_layers(module, mine_there, lone):
                out = call_with(module, {**common, **mine, **my_masks}, rows)
        finally:
            if handle is not None:
                handle.remove()
        return (out, box[0]) if features else (out,)

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
        there = torch.nonzero(batch.weight.flatten() > 0).squeeze(1)
        x = each(lambda value: value.flatten(0, 1)[there], batch.x)
        masks = {name: mask.flatten(0, 1)[there] for name, mask in (batch.masks or {}).items()}
        with captured_input(self.head if features else None) as box:
            out = fold_call(module, {**values, **masks}, x, there // rows)

        def spread(part: Tensor) -> Tensor:
            whole = part.new_zeros(clients * rows, *part.shape[1:])
            return whole.index_copy(0, there, part).view(clients, rows, *part.shape[1:])

        return spread(out), spread(box()) if features else None


def stacking_of(setup: Setup) -> Stacking:
    """What suits the model."""
    return FoldedStacking(setup) if setup.folds else Stacking(setup)
