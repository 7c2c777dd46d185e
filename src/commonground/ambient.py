"""What a user may have set for the whole process, or for the lines around a call, that is not to change a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["as_usual", "usual_numbers"]


@contextmanager
def usual_numbers() -> Iterator[None]:
    """While open, tensors of no type in particular are float32, as PyTorch has it unless somebody says otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def as_usual() -> Iterator[None]:
    """While open, gradients can be computed, and numbers are :func:`usual_numbers`."""
    with usual_numbers(), torch.inference_mode(False), torch.enable_grad():
        yield
