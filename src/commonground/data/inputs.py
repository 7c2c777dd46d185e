"""What a model is given: tensors by name. They are made of stored samples in :mod:`commonground.data.formats`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

__all__ = ["Inputs", "chunks", "each", "first_of", "select", "to_device"]

Inputs = dict[str, Tensor]
"""A batch by name, every tensor with a row per sample: ``x`` where there is one input; of texts ``input_ids`` and
``marks`` [rows, L], ``lengths`` and ``numbers`` [rows]; or the names of a data set's own arrays."""


def each(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """All tensors of a batch, changed."""
    return {name: change(value) for name, value in inputs.items()}


def select(inputs: Inputs, index: Tensor) -> Inputs:
    """Rows by position."""
    return {name: value[index] for name, value in inputs.items()}


def first_of(inputs: Inputs) -> Tensor:
    """Any of the tensors, to ask for rows or device."""
    return next(iter(inputs.values()))


def chunks(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """A batch cut into parts of at most so many rows."""
    for start in range(0, max(1, len(first_of(inputs))), size):
        yield {name: value[start : start + size] for name, value in inputs.items()}


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; from the host without the device's work having to wait for it."""
    if value.device == device:
        return value
    if device.type == "cuda" and value.device.type == "cpu":  # what lies on a device cannot be pinned
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
