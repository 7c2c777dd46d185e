"""What a user may have set for the whole process, or for the lines around a call, that is not to change a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from commonground.locks import ProcessLock

__all__ = ["as_usual", "usual_numbers"]


_lock = ProcessLock()
_open = 0  # how many times, by all threads
_before = torch.float32  # what the first found


@contextmanager
def usual_numbers() -> Iterator[None]:
    """While open, tensors of no type in particular are float32, as PyTorch has it unless somebody says otherwise. The
    type is one for all threads: the first that opens this sets it, the last that closes it puts it back.
    """
    global _open, _before
    with _lock:
        if not _open:
            _before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # somebody may have set another one since the first opened it
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                torch.set_default_dtype(_before)


@contextmanager
def as_usual() -> Iterator[None]:
    """While open, gradients can be computed, and numbers are :func:`usual_numbers`."""
    with usual_numbers(), torch.inference_mode(False), torch.enable_grad():
        yield
