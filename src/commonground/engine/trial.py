"""A model is tried on two real samples before a run: does it take them, does it answer what the task needs, and what
does it do besides (see :class:`~commonground.models.behaviour.Behaviour`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from commonground.data.inputs import Inputs, first_of, select
from commonground.errors import ModelError
from commonground.generators import keyed_generators
from commonground.models import FrozenBaseModel, KeyedDropout, call, tensors_of
from commonground.models.behaviour import (
    Behaviour,
    Held,
    changes,
    copied,
    has_own_code,
    held_by,
    held_generators,
    named,
    put_back,
)
from commonground.models.probe import differ, probes_of
from commonground.tasks import Task
from commonground.user_code import failing_as

__all__ = ["try_model"]

LARGE_INPUT = 1e6
_ORDERS = torch.tensor([[0, 1, 2], [1, 1, 2], [0, 2, 2], [0, 1, 0]])  # three rows, and with one of them replaced
TOLERANCE = 1e-3  # between two calls on an accelerator, which may add in another order


@dataclass(frozen=True)
class Trial:
    """What a model is tried on.

    Attributes:
        samples: two inputs by name.
        company: three of them.
        what: the samples, for messages.
        task: says what outputs are needed.
        outputs: how many.
    """

    samples: Inputs
    company: Inputs
    what: str
    task: Task
    outputs: int

    def answer(self, model: nn.Module, *, checked: bool = True) -> Tensor:
        """A call of the model, in its present mode.

        Raises:
            ModelError: it fails, or its output is none that a task could use.
        """
        mode = " in training mode" if model.training else ""
        with failing_as(f"the model cannot take {self.what}{mode}"):
            out = call(model, {name: value.clone() for name, value in self.samples.items()})
        if not isinstance(out, Tensor):
            article = "an" if type(out).__name__[0] in "aeiouAEIOU" else "a"
            given = "nothing (None)" if out is None else f"{article} {type(out).__name__}"
            raise ModelError(f"the model must return one tensor of logits, not {given}{mode}")
        if not out.is_floating_point():
            raise ModelError(f"the model's outputs must be real numbers, not {out.dtype}{mode}")
        self.task.check(out, self.outputs)
        rows = len(next(iter(self.samples.values())))
        if checked and len(out) != rows:
            raise ModelError(f"the model gives {len(out)} rows of outputs for {rows} samples{mode}; each needs its own")
        return out

    def check_lone(self, model: nn.Module, client: str) -> None:
        """Refuse a model that joins rows and cannot take a single one, where a client's test is of a single row.

        Raises:
            ModelError: names the client.
        """
        model.eval()
        what = f"the model joins rows and cannot take a single one, as client {client} has for its test"
        with failing_as(what), torch.no_grad():
            call(model, {name: value[:1].clone() for name, value in self.samples.items()})

    def check_finite(self, out: Tensor) -> None:
        """Refuse outputs that are not finite from the start, unless the samples are so large that they may be why: then
        the client who has them is named when it trains.
        """
        fine = all(bool((value.abs() <= LARGE_INPUT).all()) for value in self.samples.values())
        if fine and not bool(torch.isfinite(out).all()):
            raise ModelError(
                "the model's outputs for the first samples are not finite before any training; look at its initial "
                "weights and at what its forward computes"
            )


def try_model(model: nn.Module, trial: Trial) -> Behaviour:
    """Try a model, a copy of it in training.

    Args:
        model: on its device; one of its dropout layers may be let draw by itself, where it is used more than once.
        trial: what it is tried on.

    Raises:
        ModelError: it does not fit the data, or gives numbers that no seed keys.
    """
    model.eval()
    # On the meta device there are shapes alone, and no numbers that could differ.
    if isinstance(model, FrozenBaseModel) or any(value.is_meta for value in trial.samples.values()):
        with torch.no_grad():
            trial.answer(model, checked=False)
        return Behaviour()
    own = has_own_code(model)
    if not own:
        with torch.no_grad():
            calls = _count_dropouts(model, trial)
        own = any(count > 1 for count in calls.values())
    if not own:
        with torch.no_grad():
            return Behaviour(joins_tested=_joins(model, trial))
    with keyed_generators(0, "trial"):
        again = copied(model)
        before = held_by(again)
        with torch.no_grad():
            repeated = [name for name, count in _count_dropouts(again, trial).items() if count > 1]
        put_back(again, changes(again, before))
        for name in repeated:
            for one in (model, again):
                layer = one.get_submodule(name)
                assert isinstance(layer, KeyedDropout)
                layer.alone = False
        tested, joins, more = _in_evaluation(again, trial)
        return _in_training(again, trial, Behaviour(True, tested, tested, joins), more)


def _count_dropouts(model: nn.Module, trial: Trial) -> dict[str, int]:
    """How often every dropout layer is used in one call."""
    counts: dict[str, int] = {}
    layers = {name: m for name, m in model.named_modules() if isinstance(m, KeyedDropout) and m.p > 0}

    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    handles = [m.register_forward_pre_hook(lambda _, inputs, n=name: count(n)) for name, m in layers.items()]
    try:
        out = trial.answer(model)
    finally:
        for handle in handles:
            handle.remove()
    trial.check_finite(out)
    return counts


def _joins(model: nn.Module, trial: Trial) -> bool:
    """Whether in evaluation a row's output changes with another one beside it: each of three is replaced by its
    neighbour once, for what only sees the largest number of a batch is changed by one of them alone. A model that
    cannot take these rows is left to say so when it is given them.
    """
    device = first_of(trial.company).device
    for probe in probes_of(model):
        probe.model.eval()
        try:
            outs = [call(probe.model, probe.given(select(trial.company, order))) for order in _ORDERS.to(device)]
        except Exception:  # whatever a user's forward raises; one in single precision does not take doubles
            continue
        if all(bool(torch.isfinite(out).all()) for out in outs):
            whole, *others = outs
            places = [[place for place in range(3) if place != replaced] for replaced in range(3)]
            return any(differ(out[left], whole[left], probe.rounding) for out, left in zip(others, places, strict=True))
    return False


def _in_evaluation(model: nn.Module, trial: Trial) -> tuple[bool, bool, dict[tuple[str, str], object]]:
    """Whether a model draws in evaluation, whether it joins rows there, and what it changes that belongs to no
    client.
    """
    model.eval()
    before = held_by(model)
    outs, drew = [], False
    with torch.no_grad():
        for _ in range(2):  # nothing is put back in between: tests are not counted
            with keyed_generators(0, "trial", others=held_generators(model)) as drawn:
                outs.append(trial.answer(model))
                drew = drawn()
    changed = changes(model, before)
    travelling, _ = named(model, changed)
    if travelling:
        raise ModelError(
            f"the model's forward changes '{travelling[0]}' in evaluation as well; change it only where self.training "
            "is true"
        )
    _check_same(outs, "in evaluation", "or depends on what its forward changes, which tests leave as it is")
    put_back(model, changed)
    joins = False
    if not drew:  # with draws each client is tested by itself anyway
        with torch.no_grad(), keyed_generators(0, "trial", others=held_generators(model)):
            joins = _joins(model, trial)
    return drew, joins, dict(changed)


def _in_training(model: nn.Module, trial: Trial, tested: Behaviour, more: dict[tuple[str, str], object]) -> Behaviour:
    """The whole behaviour, given what evaluation has shown."""
    model.train()
    before = held_by(model)
    outs, drew = [], False
    changed: Held = {}
    for _ in range(2):
        with keyed_generators(0, "trial", others=held_generators(model)) as drawn:
            out = trial.answer(model)
            drew = drawn()
        _check_gradient(model, out)
        outs.append(out.detach())
        changed |= changes(model, before)
        put_back(model, changed)
    _check_same(outs, "in training", "or counts its calls outside of itself", " and its attributes back")
    travelling, rest = named(model, {**more, **changed})
    return replace(tested, draws=drew or tested.draws_tested, changed=tuple(travelling), start=tuple(rest))


def _check_gradient(model: nn.Module, out: Tensor) -> None:
    """Refuse outputs through which no parameter can be trained."""
    trained = [parameter for name, parameter in model.named_parameters() if name in tensors_of(model)]
    if not any(parameter.requires_grad for parameter in trained):
        raise ModelError("the model has no parameter that could be trained (requires_grad is False for all of them)")
    if not out.requires_grad:
        raise ModelError(
            "the model's outputs hang on no parameter: they are detached from its weights (by detach, no_grad, item or "
            "NumPy), so that nothing can be trained"
        )
    with failing_as("the model's outputs cannot be differentiated"):
        out.sum().backward()
    for parameter in model.parameters():
        parameter.grad = None


def _check_same(outs: list[Tensor], when: str, otherwise: str, more: str = "") -> None:
    """Refuse a model that answers otherwise when it is asked the same again, with the same draws.

    Args:
        outs: both answers.
        when: in training or in evaluation.
        otherwise: what it may do that makes it so, beside drawing.
        more: what was set back beside generators.
    """
    one, other = outs
    if one.device.type == "cpu":
        same = torch.equal(one, other)
    else:
        same = torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    if not same:
        raise ModelError(
            f"the model gives other outputs when it is asked the same again {when}, though PyTorch's, NumPy's and "
            f"Python's generators and its own were set to the same seed{more}: it draws from what no seed keys (a "
            f"generator made without a seed, the system, the clock) {otherwise}"
        )
