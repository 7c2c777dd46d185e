"""Passing rows of several clients through a model whose frozen part they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor, nn
from torch.func import functional_call

from commonground.algorithms import Tensors
from commonground.data.inputs import Inputs
from commonground.errors import ModelError
from commonground.models.heads import inputs_of

__all__ = ["captured_input", "fold_call"]


class _Folded(nn.Module):
    """The model's ``folded`` as a module's call, so that tensors can be put in place of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs, route: Tensor) -> Tensor:
        # A module gives any attribute, says PyTorch; who is folded has this method.
        out: Tensor = self.model.folded(inputs, route)  # type: ignore[operator]
        return out


def fold_call(model: nn.Module, values: Tensors, inputs: Inputs, route: Tensor) -> Tensor:
    """Outputs for rows of inputs, row i under the tensors of client ``route[i]``.

    Args:
        model: has a method ``folded(inputs, route)``.
        values: tensors by the model's names; those with one more, leading axis differ between clients.
        inputs: n rows.
        route: [n] positions on that axis.
    """
    out: Tensor = functional_call(_Folded(model), {f"model.{n}": v for n, v in values.items()}, (inputs, route))
    return out


@contextmanager
def captured_input(module: nn.Module | None) -> Iterator[Callable[[], Tensor]]:
    """While open, remember what a module is given; the function yielded returns it."""
    watched: AbstractContextManager[list[Tensor]] = nullcontext([]) if module is None else inputs_of(module)
    with watched as given:

        def get() -> Tensor:
            if not given:
                raise ModelError("this method needs the head's input, but no single submodule of the model is its head")
            return given[0]

        yield get
