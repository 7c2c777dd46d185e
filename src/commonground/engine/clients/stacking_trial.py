"""Whether a model can be computed for many clients at once, found out before a run: by what it is made of, and by a
trial of it on two clients' batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from commonground.algorithms import Tensors
from commonground.data.inputs import Inputs, each, first_of, select
from commonground.engine.clients.stacked_layers import why_not_stackable
from commonground.engine.clients.stacking import call_stacked, names_inside
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, ModelError
from commonground.models import call_with
from commonground.models.probe import Probe, differ, probes_of
from commonground.user_code import failing_as

__all__ = ["check_stackable"]

COARSE = 0.05
"""Share of a figure by which the same may differ, computed in other shapes by a model that rounds coarsely inside."""


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


@dataclass(frozen=True)
class _Answer:
    """What a model makes of a client's rows.

    Attributes:
        tested: outputs in evaluation.
        trained: outputs in training.
        gradients: of the latter, for every tensor that is trained.
    """

    tested: Tensor
    trained: Tensor
    gradients: list[Tensor]

    @property
    def finite(self) -> bool:
        return all(bool(torch.isfinite(value).all()) for value in (self.tested, self.trained, *self.gradients))


def _compare_stacked(setup: Setup) -> None:
    """Compare two rows by themselves with the same in two clients' batches, and those with another row as padding."""
    rows = _two_and_padding(setup)
    count = len(first_of(rows)) - 1
    probe, alone = _believed(setup, each(lambda v: v[:count], rows))
    beside = _beside(setup, probe, rows)
    if alone is not None:
        if differ(beside.tested, alone.tested, COARSE) or differ(beside.trained, alone.trained, COARSE):
            raise _other("outputs")
        if probe.dtype == torch.float64 and _gradients_differ(beside.gradients, alone.gradients, probe.rounding):
            raise _other("gradients")
    # Each of the rows is the padding once: what only sees the largest number of a batch is changed by one of them.
    for turn in range(count + 1):
        order = torch.arange(count + 1, device=setup.device).roll(turn)
        one, other = (
            _second_of_two(setup, probe, select(rows, places), _stacked(setup, probe), training=True)
            for places in (order, torch.cat([order[:-1], order[:1]]))
        )
        if differ(one, other, probe.rounding):
            raise _other("outputs")


def _two_and_padding(setup: Setup) -> Inputs:
    """Two rows of a client, and another one: of one row it would not be seen that a model joins rows, since it fits
    every number of them.
    """
    sizes = setup.data.train_sizes
    client = int((sizes > 2).argmax() if (sizes > 2).any() else (sizes > 1).argmax())
    own = setup.data.train_indices(client)
    index = np.append(own[:2], own[2] if len(own) > 2 else len(setup.data.y_train) // 2)
    return setup.inputs.arrange(setup.inputs.rows("train", index)[0])


def _believed(setup: Setup, rows: Inputs) -> tuple[Probe, _Answer | None]:
    """The first probe that answers a client's rows with finite numbers; the last one where none does, with no answer
    if it fails.
    """
    for probe in probes_of(setup.model):
        alone: _Answer | None = None
        try:
            alone = _alone(setup, probe, rows)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a forward in single precision; a layer that does not take so few rows, and says so later
            continue
        if alone.finite:
            break
    return probe, alone


def _gradients_differ(beside: list[Tensor], alone: list[Tensor], rounding: float) -> bool:
    """Whether gradients differ that are more than rounding beside the largest."""
    largest = max((float(g.abs().max()) for g in alone if g.numel()), default=0.0)
    much = [g.numel() > 0 and float(g.abs().max()) > rounding * largest for g in alone]
    return any(differ(one, other, COARSE) for one, other, told in zip(beside, alone, much, strict=True) if told)


def _other(what: str) -> ModelError:
    return ModelError(
        f"the model's {what} for a client are not the same beside other clients' and padding rows, so that the engine "
        "'batched' would train another model; use --engine processes or serial"
    )


def _tensors(setup: Setup, probe: Probe) -> Tensors:
    """The probe's tensors that travel in a run of its model."""
    live = {**dict(probe.model.named_parameters()), **dict(probe.model.named_buffers())}
    return {name: live[name].detach() for name in setup.initial}


def _learns(probe: Probe, name: str) -> bool:
    """Whether a tensor is a parameter; statistics are none, whoever keeps them."""
    return name in dict(probe.model.named_parameters(remove_duplicate=False))


def _alone(setup: Setup, probe: Probe, rows: Inputs) -> _Answer:
    """The answer to a client's rows by themselves."""
    values = {n: v.clone().requires_grad_(_learns(probe, n)) for n, v in _tensors(setup, probe).items()}
    with setup.keyed("trial"):
        probe.model.eval()
        with torch.no_grad():
            tested: Tensor = call_with(probe.model, values, probe.given(rows))
        probe.model.train()
        out: Tensor = call_with(probe.model, values, probe.given(rows))
    return _Answer(tested, out.detach(), _gradients(out, values))


def _beside(setup: Setup, probe: Probe, rows: Inputs) -> _Answer:
    """The answer to all rows but the last, which is padding, in the batch of the second of two clients."""
    values = _stacked(setup, probe, gradients=True)
    with torch.no_grad():
        tested = _second_of_two(setup, probe, rows, values, training=False)
    out = _second_of_two(setup, probe, rows, values, training=True)
    with failing_as("the model cannot be stacked over clients"):
        return _Answer(tested, out.detach(), [g[1] for g in _gradients(out, values)])


def _stacked(setup: Setup, probe: Probe, *, gradients: bool = False) -> Tensors:
    """The probe's tensors for two clients."""
    return {
        n: v.expand(2, *v.shape).clone().requires_grad_(gradients and _learns(probe, n))
        for n, v in _tensors(setup, probe).items()
    }


def _second_of_two(setup: Setup, probe: Probe, rows: Inputs, values: Tensors, *, training: bool) -> Tensor:
    """Outputs for all rows but the last: a rule of PyTorch's for maps that is wrong may be right for the first."""
    count = len(first_of(rows)) - 1
    there = torch.ones(2, count + 1, dtype=probe.dtype, device=setup.device)
    there[:, -1] = 0
    probe.model.train(training)
    x = each(lambda v: torch.stack([v, v]), probe.given(rows))
    names = names_inside(probe.model, values)
    with setup.keyed("trial"):
        out, _ = call_stacked(probe.model, names, values, set(values), {}, x, None, False, there if training else None)
    return out[1, :count]


def _gradients(out: Tensor, values: Tensors) -> list[Tensor]:
    """Of a sum with weights (that of a softmax's outputs would have none), zero where nothing hangs on a tensor."""
    weights = torch.linspace(1, 2, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    trained = [value for value in values.values() if value.requires_grad]
    return list(torch.autograd.grad((out * weights).sum(), trained, allow_unused=True, materialize_grads=True))
