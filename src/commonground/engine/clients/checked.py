"""What a method's own loss and penalty give, looked at: of another shape it would be broadcast into something else."""

from __future__ import annotations

import torch
from torch import Tensor

from commonground.errors import ModelError
from commonground.tasks.objective import what_is

__all__ = ["check_depends", "checked_loss", "checked_penalty", "is_constant"]


def checked_loss(given: Tensor, rows: int, clients: int = 1) -> Tensor:
    """A method's losses of a client's batch, if they are [rows].

    Args:
        given: what the method's function gave.
        rows: of the batch.
        clients: how many are trained together.

    Raises:
        ModelError: they are something else.
    """
    if not isinstance(given, Tensor) or given.shape != (rows,):
        what = f"one number for each of {rows} rows"
        raise ModelError(f"the method's loss must give {what}, not {what_is(given)}{_hint(clients)}")
    return given


def checked_penalty(given: Tensor | float, dtype: torch.dtype, device: torch.device, clients: int = 1) -> Tensor:
    """A method's penalty of a client, if it is one number.

    Args:
        given: what the method's function gave; a plain number, as of a setting that is off, is taken as well.
        dtype, device: of the run.
        clients: how many are trained together.

    Raises:
        ModelError: it is a tensor of several, or something else.
    """
    if isinstance(given, int | float):
        return torch.full((), float(given), dtype=dtype, device=device)
    if not isinstance(given, Tensor) or given.ndim:
        raise ModelError(f"the method's penalty must give one number, not {what_is(given)}{_hint(clients)}")
    return given


def is_constant(given: Tensor) -> bool:
    """Whether penalties without a gradient are other numbers than 0, which is what one gives that is off. Nobody looks
    while a device's steps are recorded, or where there are no numbers.
    """
    return not (given.is_meta or (given.is_cuda and torch.cuda.is_current_stream_capturing())) and bool(given.any())


def check_depends(given: Tensor) -> None:
    """Refuse penalties that no tensor of the model has part in.

    Raises:
        ModelError: says what may be the cause.
    """
    if not given.requires_grad:
        raise ModelError(
            "the method's penalty does not depend on the tensors it is called with: it is a plain number, or detached "
            "from them (by detach, no_grad, item or NumPy, or read by client.get), so that it trains nothing; give 0 "
            "where it is off"
        )


def _hint(clients: int) -> str:
    if clients == 1:
        return ""
    return (
        f"; {clients} clients are trained together, and it sees one at a time: what it takes along from outside may be "
        "of all of them (ask the client inside it, or take --engine serial)"
    )
