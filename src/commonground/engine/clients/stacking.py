"""One forward pass of many clients: through ``torch.func``, or folded into one batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Batch, Tensors
from commonground.data.inputs import Inputs, each, first_of, select
from commonground.engine.clients.folding import captured_input, fold_call
from commonground.engine.clients.stacked_layers import stackable_layers, why_not_stackable
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError, ConfigError, ModelError
from commonground.models import call_with
from commonground.models.probe import Probe, differ, probes_of
from commonground.user_code import failing_as

__all__ = ["Stacking", "call_stacked", "check_stackable", "names_inside", "stacking_of"]


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
    if not setup.stacking_trial:
        try:
            _compare_stacked(setup)
            setup.stacking_trial.append("")
        except ModelError as error:
            setup.stacking_trial.append(str(error))
        except torch.OutOfMemoryError:  # copies in double precision: more than training takes
            setup.stacking_trial.append("")
    if why := setup.stacking_trial[0]:
        raise ModelError(why)


COARSE = 0.05
"""Share of a figure by which the same may differ, computed in other shapes by a model that rounds coarsely inside."""


def _compare_stacked(setup: Setup) -> None:
    """Compare two rows by themselves with the same in two clients' batches, and those with another row as padding."""
    # Of one row it would not be seen that a model joins rows: it fits every number of them.
    sizes = setup.data.train_sizes
    client = int((sizes > 2).argmax() if (sizes > 2).any() else (sizes > 1).argmax())
    own = setup.data.train_indices(client)
    index = np.append(own[:2], own[2] if len(own) > 2 else len(setup.data.y_train) // 2)
    rows = setup.inputs.arrange(setup.inputs.rows("train", index)[0])
    count = len(index) - 1
    alone: list[Tensor] = []
    for probe in probes_of(setup.model):
        try:
            alone = _alone(setup, probe, each(lambda v: v[:count], rows))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a forward in single precision; a layer that does not take so few rows, and says so later
            alone = []
            continue
        if all(bool(torch.isfinite(value).all()) for value in alone):
            break
    tested, out, *gradients = _beside(setup, probe, rows)
    if alone:
        largest = max((float(g.abs().max()) for g in alone[2:] if g.numel()), default=0.0)
        plain = [g.numel() > 0 and float(g.abs().max()) > probe.rounding * largest for g in alone[2:]]
        pairs = zip(gradients, alone[2:], plain, strict=True)
        if differ(tested, alone[0], COARSE) or differ(out, alone[1], COARSE):
            raise _other("outputs")
        exact = probe.dtype == torch.float64
        if exact and any(differ(one, other, COARSE) for one, other, much in pairs if much):
            raise _other("gradients")
    # Each of the rows is the padding once: what only sees the largest number of a batch is changed by one of them.
    for turn in range(count + 1):
        order = torch.arange(count + 1, device=setup.device).roll(turn)
        padded = [select(rows, places) for places in (order, torch.cat([order[:-1], order[:1]]))]
        one, other = (_beside(setup, probe, each_rows, gradients=False)[1] for each_rows in padded)
        if differ(one, other, probe.rounding):
            raise _other("outputs")


def _other(what: str) -> ModelError:
    return ModelError(
        f"the model's {what} for a client are not the same beside other clients' and padding rows, so that the engine "
        "'batched' would train another model; use --engine processes or serial"
    )


def _tensors(setup: Setup, probe: Probe) -> Tensors:
    """The probe's tensors that travel in a run of its model."""
    live = {**dict(probe.model.named_parameters()), **dict(probe.model.named_buffers())}
    return {name: live[name].detach() for name in setup.initial}


def _alone(setup: Setup, probe: Probe, rows: Inputs) -> list[Tensor]:
    """Outputs of a client's rows by themselves, tested and in training, and gradients."""
    values = {n: v.clone().requires_grad_(n not in setup.buffers) for n, v in _tensors(setup, probe).items()}
    with setup.keyed("trial"):
        probe.model.eval()
        with torch.no_grad():
            tested: Tensor = call_with(probe.model, values, probe.given(rows))
        probe.model.train()
        out: Tensor = call_with(probe.model, values, probe.given(rows))
    return [tested, out.detach(), *_gradients(out, values)]


def _beside(setup: Setup, probe: Probe, rows: Inputs, gradients: bool = True) -> list[Tensor]:
    """The same of all rows but the last, which is padding, in the batch of the second of two clients."""
    count = len(first_of(rows)) - 1
    values = {
        n: v.expand(2, *v.shape).clone().requires_grad_(gradients and n not in setup.buffers)
        for n, v in _tensors(setup, probe).items()
    }
    names, there = names_inside(probe.model, values), torch.ones(2, count + 1, dtype=probe.dtype, device=setup.device)
    there[:, -1] = 0

    def called(there: Tensor | None) -> Tensor:
        x = each(lambda v: torch.stack([v, v]), probe.given(rows))
        with setup.keyed("trial"):
            out, _ = call_stacked(probe.model, names, values, set(values), {}, x, None, False, there)
        return out[1, :count]  # a rule of PyTorch's for maps that is wrong may be right for the first

    probe.model.eval()
    with torch.no_grad():
        tested = called(None)
    probe.model.train()
    out = called(there)
    with failing_as("the model cannot be stacked over clients"):
        return [tested, out.detach(), *([g[1] for g in _gradients(out, values)] if gradients else [])]


def _gradients(out: Tensor, values: Tensors) -> list[Tensor]:
    """Of a sum with weights (that of a softmax's outputs would have none), zero where nothing hangs on a tensor."""
    weights = torch.linspace(1, 2, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    trained = [value for value in values.values() if value.requires_grad]
    return list(torch.autograd.grad((out * weights).sum(), trained, allow_unused=True, materialize_grads=True))


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
