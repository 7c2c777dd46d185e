"""A trained model as one module from raw samples to what the run's task says of them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.data.formats import Given, InputFormat
from commonground.data.inputs import Inputs, chunks, each, to_device
from commonground.errors import DataError
from commonground.models import call
from commonground.precision import autocast, computing_with
from commonground.tasks import Task

__all__ = ["PortableModel", "model_inputs"]

# Samples of one pass: what it keeps in memory stays bounded.
PREDICTED_AT_ONCE = 4096


class PortableModel(nn.Module):
    """A network with its scaling before it and its task's reading after it, so that nobody has to know either.

    As a module it is called with stored samples, one tensor per name of :attr:`names`, and returns what the task says:
    class probabilities [n, classes], numbers [n, targets], ….

    Args:
        model: the network, with its final weights.
        format: how stored samples become its inputs.
        task: what its outputs say.
        dtype: its number type.
        noise: of one client [1, …], subtracted from its samples after scaling; None in a run without feature noise.
        precision: of the products in :meth:`outputs`, a run's own; called as a module it computes in its number type.
    """

    noise: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        format: InputFormat,
        task: Task,
        dtype: torch.dtype,
        noise: Tensor | None = None,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.model, self.format, self.task, self.dtype = model, format, task, dtype
        self.precision = precision
        self.register_buffer("noise", noise, persistent=False)
        self.eval()

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs by name."""
        return self.format.names

    def forward(self, *samples: Tensor) -> Tensor:
        """Stored samples [n, …], in the order of :attr:`names`, to what the task says of them."""
        stored = dict(zip(self.names, samples, strict=True))
        inputs = self.format.arrange(self.format.make(stored, self.dtype, self.noise))
        said = call(self.model, inputs)
        return self.task.interpret(said.double() if self.task.in_double else said)

    def outputs(self, x: Given, where: str, device: torch.device) -> Tensor:
        """What the network returns for raw samples, computed on a device, on the host; arguments as of
        :func:`model_inputs`.
        """
        inputs = model_inputs(x, self.format, self.dtype, self.noise, where)
        model = self.model.to(device)
        # As the run's own tests: left alone, cuDNN would take TF32.
        on_cuda = computing_with(self.precision, unless_open=True) if device.type == "cuda" else nullcontext()
        with torch.no_grad(), on_cuda, autocast(self.precision, device):
            said = [
                call(model, each(lambda value: to_device(value, device), part)).cpu()
                for part in chunks(inputs, PREDICTED_AT_ONCE)
            ]
        whole = torch.cat(said)
        return whole.to(self.dtype) if self.precision == "bf16" else whole

    def predict(self, x: Given, where: str, device: torch.device) -> npt.NDArray[np.float64]:
        """What the task says of raw samples; arguments as of :meth:`outputs`."""
        return self.task.predict(self.outputs(x, where, device))


def model_inputs(x: Given, format: InputFormat, dtype: torch.dtype, noise: Tensor | None, where: str) -> Inputs:
    """Raw samples as a network's inputs.

    Args:
        x: [n, …] as the training data were stored; where they have several inputs, a mapping from names to arrays.
        format: of the training data.
        dtype: the network's number type.
        noise: subtracted after scaling, if anything.
        where: whose network it is, for messages.

    Raises:
        DataError: their names or shape differ from the training data's, or a value is not finite.
    """
    # Read-only arrays, as pandas and Pillow give them, are copied: PyTorch warns of tensors that share their memory.
    stored = format.tensors(np.require(format.like(x, where), requirements=["C", "W"]))
    _check_finite(stored, "that is not finite")
    made = format.make(stored, dtype, noise)
    _check_finite(made, f"that is too large for {where}, which computes in {str(dtype).removeprefix('torch.')}")
    return format.arrange(made)


def _check_finite(inputs: Inputs, what: str) -> None:
    for rows in inputs.values():
        if not bool(torch.isfinite(rows).all()):
            bad = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0])
            raise DataError(f"sample {bad} has a value {what}")
