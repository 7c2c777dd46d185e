"""In which precision, and with how many threads, a process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch

from commonground.errors import ConfigError
from commonground.locks import ProcessLock
from commonground.processor import has_bf16, processor

__all__ = ["autocast", "check_precision", "computing_with", "slow_precision", "use_precision"]


def check_precision(precision: str, dtype: str, device: torch.device) -> None:
    """Refuse a precision that a device does not have, or that numbers of another type leave no room for.

    Raises:
        ConfigError: TF32 is a format of CUDA devices, or products of float64 shall be of fewer digits.
    """
    if precision != "fp32" and dtype != "float32":
        raise ConfigError(
            f"--precision {precision} is how products of float32 are computed, and --dtype is {dtype}; leave out one"
        )
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(f"the precision tf32 is one of CUDA devices, and this run computes on {device}; take fp32")


def slow_precision(precision: str, device: torch.device) -> str:
    """A sentence on a precision that a processor has no instructions for, and takes longer in than in fp32."""
    if precision != "bf16" or device.type != "cpu" or has_bf16():
        return ""
    return (
        f"this processor, {processor()}, has no instructions for bf16, so --precision bf16 is emulated: convolutions "
        "take 20 times as long as in fp32 and more, linear layers about 8 times"
    )


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """While open, convolutions and matrix products of float32 are computed in bfloat16, if that is the precision."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def use_precision(precision: str) -> None:
    """Let this process compute products of float32 matrices on CUDA devices in TF32, or strictly in float32."""
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    for kind in _cudnn_kinds():  # what the flag leaves open follows a setting for all
        kind.fp32_precision = "tf32" if tf32 else "ieee"


_lock = ProcessLock()
_open: list[str] = []  # precisions, by all threads
_threads: list[int] = []  # of PyTorch before the first, for each that is open
_put_back: list[Callable[[], None]] = []  # of the first


@contextmanager
def computing_with(precision: str, threads: int | None = None, *, unless_open: bool = False) -> Iterator[None]:
    """While open, this process computes in a precision (see :func:`use_precision`) and with so many threads, if they
    are given; afterwards as before, as a user's own code around it expects.

    Both are of the process (a new Python thread begins with its number of threads too): the first to open this sets
    the precision, the last to close it puts back what both were.

    Args:
        precision: of a run.
        threads: of PyTorch.
        unless_open: leave it as whoever has this open has set it.

    Raises:
        ConfigError: another thread computes in TF32 and this one shall not, or the other way round.
    """
    own = torch.get_num_threads()
    before = _hold_threads(own)
    try:
        held = _hold(precision, unless_open)
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            yield
        finally:
            if held:
                _let_go(precision)
    finally:
        torch.set_num_threads(own)
        _let_go_of_threads(before)


def _hold_threads(own: int) -> int:
    """How many threads the process had before anybody opened this."""
    with _lock:
        before = _threads[0] if _threads else own
        _threads.append(before)
        return before


def _let_go_of_threads(before: int) -> None:
    with _lock:
        _threads.pop()
        if not _threads:
            torch.set_num_threads(before)


def _hold(precision: str, unless_open: bool) -> bool:
    """Whether the precision was taken up."""
    with _lock:
        if _open and unless_open:
            return False
        if _open and (_open[0] == "tf32") != (precision == "tf32"):
            raise ConfigError(
                f"another run of this process computes in {_open[0]}, which is a setting for all of its threads, and "
                f"this one shall in {precision}; begin it when the other has ended"
            )
        if not _open:
            _put_back[:] = _precisions()
            use_precision(precision)
        _open.append(precision)
        return True


def _let_go(precision: str) -> None:
    with _lock:
        _open.remove(precision)
        if not _open:
            for setting in _put_back:
                setting()


def _precisions() -> list[Callable[[], None]]:
    """What puts the settings of :func:`use_precision` back as they are now; coarse ones first, which set fine ones."""
    found: list[Callable[[], None]] = []
    with suppress(RuntimeError):  # PyTorch cannot tell where its older and its newer settings were mixed
        found.append(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    with suppress(RuntimeError):
        found.append(partial(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32))
    backends: Any = torch.backends
    fine = [*_cudnn_kinds(), backends.cuda.matmul, backends.mkldnn.matmul] if _cudnn_kinds() else []
    return found + [partial(setattr, kind, "fp32_precision", kind.fp32_precision) for kind in fine]


def _cudnn_kinds() -> list[Any]:
    """Kinds of operations whose precision PyTorch 2.9 and later set by themselves."""
    cudnn: Any = torch.backends.cudnn
    return [cudnn.conv, cudnn.rnn] if hasattr(cudnn, "conv") else []
